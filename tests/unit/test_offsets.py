"""Which offsets may be committed, by hand-drawn partitions and against a model; and who may still execute what."""

from __future__ import annotations

import threading

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from forebay_schemas.offsets_metadata import NOTHING, CommitMetadata, decode_metadata
from forebay_worker.offsets import Claims, PartitionOffsets


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


def beyond(tracker: PartitionOffsets, *, running: tuple[int, ...] = ()) -> str:
    """What the commit says from its position on, drawn: o finished, x running, . nothing."""
    position = tracker.position()
    assert position is not None
    read = decode_metadata(position, tracker.metadata(running=tuple((offset, 0) for offset in running)))
    assert read is not None
    states = {offset: "o" for first, length in read.finished for offset in range(first, first + length)}
    states |= dict.fromkeys((offset for offset, _ in read.running), "x")
    return "".join(states.get(position + at, ".") for at in range(max(states) - position + 1)) if states else ""


@pytest.mark.parametrize(
    ("partition", "position", "said"),
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
        ("x__o", 0, "...o"),
        ("o_x_o_o", 2, "..o.o"),
    ],
)
def test_the_commit_stands_at_the_lowest_unfinished_and_names_what_is_finished_beyond(
    partition: str, position: int, said: str
) -> None:
    tracker = drawn(partition)
    assert tracker.position() == position
    assert beyond(tracker) == said


def test_a_gap_at_the_end_is_passed_once_a_record_shows_it() -> None:
    tracker = drawn("oo")
    assert tracker.position() == 2
    tracker.receive(9)
    assert tracker.position() == 9
    tracker.finish(9)
    assert tracker.position() == 10


@pytest.mark.parametrize(
    ("running", "said"),
    [((), ".o.o"), ((0, 2), "xoxo"), ((2,), ".oxo")],
)
def test_the_commit_names_what_runs(running: tuple[int, ...], said: str) -> None:
    assert beyond(drawn("xoxo"), running=running) == said


def test_running_offsets_below_the_commit_are_not_named() -> None:
    """Finished, but whoever executes it has not let go of its claim yet."""
    assert beyond(drawn("oox"), running=(1, 2)) == "x"


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
    assert beyond(tracker) == ".o"
    tracker.receive(5)
    assert tracker.position() == 5
    assert beyond(tracker) == ""


def test_finishing_twice_changes_nothing() -> None:
    tracker = drawn("xox")
    for offset in (1, 0, 0, 1):
        tracker.finish(offset)
    assert tracker.position() == 2
    assert beyond(tracker) == ""
    tracker.finish(2)
    tracker.finish(2)
    assert tracker.position() == 3
    assert beyond(tracker) == ""


def test_a_partition_never_read_has_nothing_to_commit() -> None:
    tracker = PartitionOffsets(committed=None)
    assert (tracker.position(), tracker.next_offset, tracker.metadata(running=())) == (None, None, "")
    assert tracker.receive(400)
    assert (tracker.position(), tracker.next_offset) == (400, 401)


def test_records_that_retention_took_away_hold_nothing_up() -> None:
    """Committed at 10, but the log now begins at 500."""
    tracker = PartitionOffsets(committed=10, metadata=CommitMetadata(finished=((11, 3),)))
    assert tracker.receive(500)
    assert tracker.position() == 500
    assert beyond(tracker) == ""


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

    @precondition(lambda self: self.finished)
    @rule(data=st.data())
    def finish_again(self, data: st.DataObject) -> None:
        self.tracker.finish(data.draw(st.sampled_from(sorted(self.finished))))

    @rule()
    def commit(self) -> None:
        position = self.tracker.position()
        if position is not None:
            running = tuple((offset, 0) for offset in sorted(self.handed_out - self.finished))
            self.committed = (position, self.tracker.metadata(running=running))

    @rule(committing=st.booleans())
    def reassign(self, committing: bool) -> None:
        """The partition goes and comes back; without a last commit, what finished since is not known."""
        if committing:
            self.commit()
        offset, text = self.committed if self.committed is not None else (None, "")
        metadata = NOTHING if offset is None else decode_metadata(offset, text)
        assert metadata is not None
        self.tracker = PartitionOffsets(committed=offset, metadata=metadata)
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
        read = decode_metadata(position, self.tracker.metadata(running=()))
        assert read is not None
        said = {offset for first, length in read.finished for offset in range(first, first + length)}
        assert said == {offset for offset in self.finished if offset >= position}


TestOffsetsModel = OffsetsModel.TestCase
TestOffsetsModel.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_after_close_nothing_is_claimed() -> None:
    claims = Claims()
    assert claims.claim(3)
    assert claims.claim(1)
    assert claims.running() == (1, 3)
    assert claims.close() == (1, 3)
    assert not claims.is_open
    assert not claims.claim(2)
    assert claims.running() == (1, 3)
    claims.release(1)
    claims.release(7)
    assert claims.close() == (3,)


def test_what_close_returned_is_all_that_runs_whatever_the_threads_do() -> None:
    for _ in range(30):
        claims = Claims()
        granted: list[list[int]] = [[] for _ in range(4)]
        start = threading.Barrier(5)

        def claim_all(
            number: int,
            claims: Claims = claims,
            granted: list[list[int]] = granted,
            start: threading.Barrier = start,
        ) -> None:
            start.wait()
            for offset in range(number, 4_000, 4):
                if not claims.claim(offset):
                    return
                granted[number].append(offset)

        threads = [threading.Thread(target=claim_all, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        start.wait()
        while sum(map(len, granted)) < 200:
            pass
        closed_with = claims.close()
        for thread in threads:
            thread.join()
        assert sorted(offset for each in granted for offset in each) == list(closed_with)
        assert claims.running() == closed_with
