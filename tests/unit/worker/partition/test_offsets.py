"""Offsets that may be committed, by hand-drawn partitions and against a model."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from forebay_schemas.contract.offsets_metadata import CommitMetadata, decode_metadata, encode_metadata
from forebay_worker.partition.offsets import PartitionOffsets


def drawn(partition: str) -> PartitionOffsets:
    """A tracker that received what is drawn from offset 0 on: o finished, x running or waiting, _ a gap."""
    tracker = PartitionOffsets(committed=0)
    for offset, state in enumerate(partition):
        if state != "_":
            assert tracker.receive(offset)
    # Finished in the worst order: the last one first.
    for offset in reversed(range(len(partition))):
        if partition[offset] == "o":
            tracker.finish(offset)
    return tracker


def said(tracker: PartitionOffsets) -> str:
    """Offsets named as finished from the position on, drawn: o finished, . not."""
    position = tracker.position()
    finished = {each for first, length in tracker.finished_beyond() for each in range(first, first + length)}
    if not finished:
        return ""
    assert position is not None
    assert min(finished) >= position, "below the commit everything is finished: it is not named"
    return "".join("o" if position + at in finished else "." for at in range(max(finished) - position + 1))


@pytest.mark.parametrize(
    ("partition", "position", "beyond"),
    [
        ("", 0, ""),
        ("x", 0, ""),
        ("o", 1, ""),
        ("ooo", 3, ""),
        ("oox", 2, ""),
        ("oxo", 1, ".o"),
        ("xooo", 0, ".ooo"),
        ("xoxo", 0, ".o.o"),
        ("ooxooxxo", 2, ".oo..o"),
        ("xxxo", 0, "...o"),
        # Gaps hold nothing up, wherever they lie; the commit goes to the next record that exists.
        ("_o", 2, ""),
        ("o_o", 3, ""),
        ("o__x", 3, ""),
        ("__x", 2, ""),
        # Beyond what is unfinished they are named as finished: nobody is to take them for records that wait.
        ("x__o", 0, ".ooo"),
        ("o_x_o_o", 2, ".oooo"),
    ],
)
def test_the_commit_stands_at_the_lowest_unfinished_and_names_what_is_finished_beyond(
    partition: str, position: int, beyond: str
) -> None:
    tracker = drawn(partition)
    assert tracker.position() == position
    assert said(tracker) == beyond


def test_a_gap_at_the_end_is_passed_once_a_record_shows_it() -> None:
    tracker = drawn("oo")
    assert tracker.position() == 2
    tracker.receive(9)
    assert tracker.position() == 9
    tracker.finish(9)
    assert tracker.position() == 10


@pytest.mark.parametrize(
    ("partition", "end", "position", "beyond"),
    [
        ("", 0, 0, ""),
        ("", 3, 3, ""),
        ("oo", 2, 2, ""),
        # A marker behind the last record.
        ("oo", 3, 3, ""),
        ("ox", 4, 1, ".oo"),
        ("xo", 4, 0, ".ooo"),
        # The end of a log that is another, or whose end was lost.
        ("oox", 1, 2, ""),
    ],
)
def test_a_partition_read_to_its_end_is_committed_to_there(
    partition: str, end: int, position: int, beyond: str
) -> None:
    tracker = drawn(partition)
    tracker.end_at(end)
    assert (tracker.position(), said(tracker)) == (position, beyond)
    assert tracker.receive(max(end, len(partition)))


def test_a_wide_gap_takes_no_memory() -> None:
    tracker = drawn("x")
    tracker.end_at(10**15)
    assert (tracker.position(), said(tracker)) == (0, "")
    tracker.finish(0)
    assert tracker.position() == 10**15


def test_what_was_delivered_before_is_not_handed_out_again() -> None:
    tracker = drawn("oxx")
    assert [tracker.receive(offset) for offset in range(4)] == [False, False, False, True]
    assert tracker.position() == 1
    assert tracker.pending_count == 3


def test_what_finished_before_it_arrived_is_not_handed_out() -> None:
    tracker = drawn("o")
    tracker.finish(2)
    assert [tracker.receive(offset) for offset in (1, 2, 3)] == [True, False, True]
    tracker.finish(1)
    assert tracker.position() == 3


def test_what_finished_ahead_and_never_arrives_is_forgotten() -> None:
    tracker = drawn("o")
    tracker.finish(2)
    assert said(tracker) == ".o"
    tracker.receive(5)
    assert tracker.position() == 5
    assert said(tracker) == ""


def test_finishing_twice_changes_nothing() -> None:
    tracker = drawn("xox")
    for offset in (1, 0, 0, 1):
        tracker.finish(offset)
    assert tracker.position() == 2
    assert said(tracker) == ""
    tracker.finish(2)
    tracker.finish(2)
    assert tracker.position() == 3
    assert said(tracker) == ""


def test_a_partition_never_read_has_nothing_to_commit() -> None:
    tracker = PartitionOffsets(committed=None)
    assert (tracker.position(), tracker.next_offset, tracker.finished_beyond()) == (None, None, ())
    assert tracker.receive(400)
    assert (tracker.position(), tracker.next_offset) == (400, 401)


def test_records_that_retention_took_away_hold_nothing_up() -> None:
    """Committed at 10, but the log now begins at 500."""
    tracker = PartitionOffsets(committed=10, finished=((11, 3),))
    assert tracker.receive(500)
    assert tracker.position() == 500
    assert said(tracker) == ""


@pytest.mark.parametrize(
    ("partition", "below", "position", "beyond"),
    [
        ("xxxx", 0, 0, ""),
        ("xxxx", 2, 2, ""),
        ("xxox", 2, 3, ""),
        ("xoxo", 1, 2, ".o"),
        ("xxxx", 4, 4, ""),
        # Before it is received: what arrives below is known as finished.
        ("", 3, 3, ""),
        ("xx", 3, 3, ""),
        ("o_x", 9, 9, ""),
        ("ooo", 2, 3, ""),
    ],
)
def test_what_another_owner_committed_past_is_finished(partition: str, below: int, position: int, beyond: str) -> None:
    tracker = drawn(partition)
    tracker.finish_below(below)
    assert (tracker.position(), said(tracker)) == (position, beyond)
    next_offset = tracker.next_offset
    assert next_offset is not None
    assert not any(tracker.receive(offset) for offset in range(next_offset))
    assert tracker.receive(next_offset)
    assert tracker.position() == position


def test_a_commit_heard_of_before_anything_was_read_is_where_reading_begins() -> None:
    tracker = PartitionOffsets(committed=None)
    tracker.finish_below(400)
    assert (tracker.position(), tracker.next_offset) == (400, 400)


def test_a_commit_far_ahead_takes_no_memory() -> None:
    tracker = drawn("xx")
    tracker.finish_below(10**15)
    assert (tracker.position(), tracker.pending_count, said(tracker)) == (10**15, 0, "")


class OffsetsModel(RuleBasedStateMachine):
    """One partition over many assignments. The log has gaps; what finished and what was committed is known."""

    @initialize(gaps=st.sets(st.integers(0, 60), max_size=30), committed=st.none() | st.integers(0, 5))
    def start(self, gaps: set[int], committed: int | None) -> None:
        self.log = [offset for offset in range(61) if offset not in gaps]
        self.read_to = committed or 0
        self.tracker = PartitionOffsets(committed=committed)
        self.finished: set[int] = set()
        self.handed_out: set[int] = set()
        self.committed: tuple[int, str] | None = None if committed is None else (committed, "")
        self.start_of_log = committed or 0
        self.highest_position = -1

    def next_record(self) -> int | None:
        return next((offset for offset in self.log if offset >= self.read_to), None)

    @precondition(lambda self: self.next_record() is not None)
    @rule()
    def receive(self) -> None:
        offset = self.next_record()
        assert offset is not None
        self.read_to = offset + 1
        if self.tracker.receive(offset):
            assert offset not in self.finished, "finished before, and durably said so in this tracker"
            assert offset not in self.handed_out, "handed out twice in one assignment"
            self.handed_out.add(offset)
        else:
            assert offset in self.finished or offset in self.handed_out

    @precondition(lambda self: self.next_record() is None)
    @rule()
    def read_to_the_end(self) -> None:
        self.read_to = 61
        self.tracker.end_at(61)

    @rule(back=st.integers(1, 20))
    def seek_back(self, back: int) -> None:
        """The client delivers again what it delivered before."""
        self.read_to = max(self.start_of_log, self.read_to - back)

    @precondition(lambda self: self.handed_out - self.finished)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(sorted(self.handed_out - self.finished)))
        self.tracker.finish(offset)
        self.finished.add(offset)

    @rule(ahead=st.integers(0, 15))
    def finish_before_it_arrives(self, ahead: int) -> None:
        """Somebody else ended it: a cancel, a hand-over. It may be a gap."""
        next_offset = self.tracker.next_offset
        if next_offset is not None:
            self.tracker.finish(next_offset + ahead)
            self.finished.add(next_offset + ahead)

    @rule(ahead=st.integers(-5, 15))
    def another_owner_committed(self, ahead: int) -> None:
        """Another owner's commit arrives: everything below it is finished, be it received, still to come, or a gap."""
        position = self.tracker.position()
        if position is not None:
            self.tracker.finish_below(position + ahead)
            self.finished.update(range(position, position + ahead))

    @precondition(lambda self: self.finished)
    @rule(data=st.data())
    def finish_again(self, data: st.DataObject) -> None:
        self.tracker.finish(data.draw(st.sampled_from(sorted(self.finished))))

    @rule()
    def commit(self) -> None:
        position = self.tracker.position()
        if position is not None:
            text = encode_metadata(position, CommitMetadata(finished=self.tracker.finished_beyond()))
            self.committed = (position, text)

    @rule(committing=st.booleans())
    def reassign(self, committing: bool) -> None:
        """The partition goes and comes back; without a last commit, what finished since is not known."""
        if committing:
            self.commit()
        offset, text = self.committed if self.committed is not None else (None, "")
        metadata = decode_metadata(offset or 0, text)
        assert metadata is not None
        self.tracker = PartitionOffsets(committed=offset, finished=metadata.finished)
        known = set().union(*(range(first, first + length) for first, length in metadata.finished))
        self.finished = {each for each in self.finished if each in known or (offset is not None and each < offset)}
        self.handed_out = set()
        self.read_to = offset if offset is not None else self.start_of_log
        self.highest_position = -1 if offset is None else offset

    @invariant()
    def commits_at_the_lowest_unfinished(self) -> None:
        position = self.tracker.position()
        if position is None:
            return
        unfinished = [offset for offset in self.log if offset not in self.finished and offset >= self.start_of_log]
        lowest = unfinished[0] if unfinished else 10**9
        assert position <= lowest, "committed past a request that did not finish"
        if self.handed_out - self.finished:
            assert position == min(self.handed_out - self.finished), "held up by a gap, or by what is finished"
        assert position >= self.highest_position, "lower than before"
        self.highest_position = position

    @invariant()
    def says_nothing_that_is_not_so(self) -> None:
        position = self.tracker.position()
        if position is None:
            return
        named = {each for first, length in self.tracker.finished_beyond() for each in range(first, first + length)}
        # A gap that was passed may be named or not: nobody waits for it.
        gaps = set(range(61)).difference(self.log)
        assert named - gaps == {offset for offset in self.finished if offset >= position} - gaps


TestOffsetsModel = OffsetsModel.TestCase
TestOffsetsModel.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
