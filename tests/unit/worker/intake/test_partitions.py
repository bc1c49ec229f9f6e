"""Partitions that come: notices before one is read, notices afterwards, and partitions that are read on."""

from __future__ import annotations

import random

import pytest
from confluent_kafka import TopicPartition

from forebay_schemas.contract.coordination import LEASE_SECONDS, Notice
from forebay_schemas.contract.offsets_metadata import CommitMetadata, runs_of
from forebay_worker.bounds import Bounds
from forebay_worker.partition.notices import KEPT_SECONDS
from forebay_worker.partition.opening import FLOOD_SECONDS_MAX, READ_SECONDS_MAX
from simulated.bay import (
    FINISHED,
    P0,
    P1,
    REFUSED,
    RELEASED,
    RUNNING,
    TOPIC,
    Bay,
    bay_before_assignment,
    bay_with,
    last_commit,
    said_by,
    says,
)
from simulated.ports import Key


def test_a_partition_is_not_read_before_all_is_heard_that_was_said_until_it_was_assigned() -> None:
    bay = bay_before_assignment(metadata=CommitMetadata())
    bay.peers.read_until = bay.clock.monotonic() - 0.1
    bay.step(5)
    assert bay.offsets() == []
    assert bay.is_paused()
    wanted = bay.peers.wanted_until
    assert wanted is not None, "it asks to be told how far it has heard"
    bay.peers.read_until = wanted - 0.001
    bay.step(2)
    assert bay.offsets() == []
    bay.peers.read_until = wanted
    bay.step()
    assert bay.offsets() == [0, 1, 2, 3, 4]


def test_what_the_group_gives_to_one_that_is_leaving_is_not_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    """The question would not be answered any more, and the group would wait for it."""
    bay = bay_before_assignment(metadata=CommitMetadata())
    asked: list[object] = []

    def close() -> None:
        bay.consumer.poll(0.0)  # the last callbacks

    monkeypatch.setattr(bay.consumer, "committed", lambda *given, **_: asked.append(given))
    monkeypatch.setattr(bay.consumer, "close", close)
    bay.intake.close()
    assert asked == []
    assert bay.intake.assigned == {}


def test_what_is_heard_while_a_partition_opens_counts() -> None:
    bay = bay_before_assignment(metadata=CommitMetadata())
    bay.peers.read_until = 0.0
    bay.step(2)
    bay.intake.receive(last_commit(2, CommitMetadata(finished=((3, 1),), handed_over=((2, 0),))))
    bay.peers.read_until = bay.clock.monotonic()
    bay.step(3)
    assert bay.offsets() == [4]
    assert bay.intake.held_records == 1


def test_after_a_last_commit_reading_begins_where_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies below is not fetched to be skipped record by record."""
    bay = bay_before_assignment(metadata=CommitMetadata())
    bay.peers.read_until = 0.0
    bay.step(2)
    looks: list[Key] = []

    def look(partition: TopicPartition, timeout: float = 0.0, *, cached: bool = False) -> tuple[int, int]:  # noqa: ARG001 - the client's own names
        if not cached:
            looks.append((partition.topic, partition.partition))
        return 0, 5

    monkeypatch.setattr(bay.consumer, "get_watermark_offsets", look)
    bay.intake.receive(last_commit(3, CommitMetadata()))
    bay.peers.read_until = bay.clock.monotonic()
    bay.step(2)
    assert bay.offsets() == [3, 4]
    assert looks == []


def test_who_has_not_heard_what_was_said_of_a_partition_commits_nothing_of_it_and_lets_go_without_a_word() -> None:
    """It would say that offset 1 killed its worker, and the next owner could not tell that it is wrong."""
    bay = bay_before_assignment(metadata=CommitMetadata(running=((1, 0),)))
    before = bay.consumer.committed_by_group[P0]
    bay.peers.read_until = 0.0
    bay.settle()
    assert bay.consumer.committed_by_group[P0] == before
    bay.consumer.commit_error = REFUSED
    bay.consumer.revoke(P0)
    bay.step()
    assert bay.consumer.committed_by_group[P0] == before
    assert bay.peers.published == []


def test_a_partition_is_committed_as_soon_as_it_is_opened() -> None:
    bay = bay_before_assignment(metadata=CommitMetadata(running=((1, 0),)))
    bay.peers.read_until = 0.0
    bay.step(3)
    bay.intake.receive(last_commit(1, CommitMetadata(released=True)))
    bay.peers.read_until = bay.clock.monotonic()
    bay.step(2)
    assert bay.committed() == 1
    assert said_by(*bay.consumer.committed_by_group[P0]) == CommitMetadata(), "nobody died of offset 1"


def test_a_partition_whose_peers_cannot_be_heard_is_read_in_the_end() -> None:
    """The coordination topic has no leader, say: nothing may wait for it for ever."""
    bay = bay_before_assignment(metadata=CommitMetadata())
    bay.peers.read_until = 0.0
    bay.step()
    bay.clock.advance(READ_SECONDS_MAX - 1.0)
    bay.step()
    assert bay.offsets() == []
    bay.clock.advance(1.0)
    bay.step()
    assert bay.offsets() == [0, 1, 2, 3, 4]


def test_a_partition_waits_while_what_its_peers_said_is_still_being_read_but_not_for_ever() -> None:
    """A million cancels take longer to read than nothing may take to come."""
    bay = bay_before_assignment(metadata=CommitMetadata())
    bay.peers.read_until = 0.0
    bay.step()
    opens_at = bay.clock.monotonic() + FLOOD_SECONDS_MAX
    while bay.clock.monotonic() < opens_at - 1.0:
        bay.clock.advance(0.5)
        bay.peers.read_at = bay.clock.monotonic()
        bay.step()
        assert bay.offsets() == []
    bay.clock.advance(2.0)
    bay.step()
    assert bay.offsets() == [0, 1, 2, 3, 4]


def test_a_partition_is_opened_when_its_peers_fall_silent_while_they_are_heard() -> None:
    bay = bay_before_assignment(metadata=CommitMetadata())
    bay.peers.read_until = 0.0
    bay.step()
    bay.clock.advance(5.0)
    bay.peers.read_at = bay.clock.monotonic()
    bay.clock.advance(READ_SECONDS_MAX - 1.0)
    bay.step()
    assert bay.offsets() == []
    bay.clock.advance(1.5)
    bay.step()
    assert bay.offsets() == [0, 1, 2, 3, 4]


def test_one_partition_that_opens_holds_up_no_other() -> None:
    bay = bay_with(0, key=P1)
    bay.peers.read_until = bay.clock.monotonic()
    bay.clock.advance(1.0)
    bay.fill(P0, 0)
    bay.fill(P1, 1)
    bay.consumer.assign(P0)
    bay.step(3)
    assert bay.offsets(P0) == []
    assert bay.offsets(P1) == [0, 1]


@pytest.mark.parametrize(
    ("seconds_ago", "notices", "runs"),
    [
        pytest.param(0, [says(FINISHED, 1)], [0, 2], id="finished"),
        pytest.param(KEPT_SECONDS, [says(FINISHED, 1)], [0, 2], id="finished a minute ago"),
        pytest.param(KEPT_SECONDS + 1, [says(FINISHED, 1)], [0, 1, 2], id="finished too long ago to be remembered"),
        pytest.param(0, [last_commit(2, CommitMetadata())], [2], id="a last commit"),
        pytest.param(LEASE_SECONDS + 1, [last_commit(2, CommitMetadata())], [2], id="one that is older"),
        pytest.param(KEPT_SECONDS + 1, [last_commit(2, CommitMetadata())], [0, 1, 2], id="one that is too old"),
        pytest.param(0, [says(RUNNING, 1)], [0, 2], id="still runs"),
        pytest.param(LEASE_SECONDS + 1, [says(RUNNING, 1)], [0, 1, 2], id="ran, and is silent since"),
        pytest.param(0, [says(RUNNING, 1), says(RELEASED, 1)], [0, 1, 2], id="given back"),
        pytest.param(0, [says(RUNNING, 1), says(FINISHED, 1)], [0, 2], id="ran and finished"),
    ],
)
def test_what_was_heard_before_the_assignment_is_not_forgotten(
    seconds_ago: float, notices: list[Notice], runs: list[int]
) -> None:
    bay = bay_before_assignment(metadata=CommitMetadata(), records=3)
    for each in notices:
        bay.intake.receive(each)
    bay.consumer._during_poll.clear()
    bay.step()
    bay.clock.advance(seconds_ago - 0.2)
    bay.intake.receive(Notice(kind=FINISHED, worker="other", topic="another", partition=0, offsets=[2]))
    bay.consumer.assign(P0)
    bay.step(2)
    assert sorted(bay.offsets()) == runs


# What was handed over waits


def handed_over_bay() -> Bay:
    """Offset 1 was handed over after a crash, 3 without one."""
    bay = bay_before_assignment(metadata=CommitMetadata(handed_over=((1, 1), (3, 0))))
    bay.step(2)
    assert bay.offsets() == [0, 2, 4]
    assert bay.intake.held_records == 2
    return bay


def test_what_a_former_owner_finishes_is_never_run_here_and_is_committed() -> None:
    bay = handed_over_bay()
    bay.finish(0, 2, 4)
    bay.intake.receive(says(FINISHED, 1, 3))
    bay.settle()
    assert bay.offsets() == [0, 2, 4]
    assert bay.committed() == 5
    assert bay.intake.held_records == 0


def test_what_a_former_owner_gives_back_runs_here_at_once() -> None:
    bay = handed_over_bay()
    bay.intake.receive(says(RELEASED, 1))
    bay.step()
    assert bay.offsets() == [0, 2, 4, 1]
    assert bay.handed[-1].crashes == 1, "nobody died of it meanwhile"


def test_what_a_silent_former_owner_ran_runs_here_with_one_more_crash() -> None:
    bay = handed_over_bay()
    bay.clock.advance(5.0)
    bay.intake.receive(says(RUNNING, 3))
    bay.step()
    bay.clock.advance(LEASE_SECONDS - 5.0)
    bay.step()
    assert bay.offsets() == [0, 2, 4, 1]
    assert bay.handed[-1].crashes == 2
    bay.clock.advance(5.0)
    bay.step()
    assert bay.offsets() == [0, 2, 4, 1, 3]
    assert bay.handed[-1].crashes == 1


def test_what_waits_for_a_former_owner_is_dropped_when_the_partition_goes_again() -> None:
    bay = handed_over_bay()
    bay.consumer.revoke(P0)
    bay.step()
    assert bay.intake.held_records == 0
    offset, text = bay.consumer.committed_by_group[P0]
    read = said_by(offset, text)
    assert read is not None
    assert read.handed_over == ((1, 1), (3, 0)), "its next owner waits too"
    bay.clock.advance(LEASE_SECONDS)
    bay.step()
    assert bay.offsets() == [0, 2, 4]


def test_a_crash_found_in_the_commit_is_counted() -> None:
    bay = bay_before_assignment(metadata=CommitMetadata(running=((1, 0),), waiting=((2, 1),)))
    bay.step(2)
    assert [work.crashes for work in bay.handed] == [0, 1, 1, 0, 0]


# Which partitions are read


def test_a_partition_whose_outcomes_are_refused_stops_and_says_so_and_others_go_on() -> None:
    bay = bay_with(0)
    bay.fill(P1, 0)
    bay.consumer.assign(P1)
    bay.step(2)
    bay.handed[0].assignment.refused = "results: no permission"
    bay.fill(P0, 1)
    bay.fill(P1, 1)
    bay.step(2)
    assert (bay.offsets(P0), bay.offsets(P1)) == ([0], [0, 1])
    assert bay.intake.troubles == [f"{TOPIC}/0: outcomes are refused: results: no permission"]
    bay.handed[0].assignment.refused = None
    bay.step(2)
    assert bay.offsets(P0) == [0, 1]
    assert bay.intake.troubles == []


def test_a_partition_whose_commit_a_former_owner_left_full_is_read_on() -> None:
    """Reading on is all that makes the commit smaller: paused it would stay full for ever."""
    bounds = Bounds(metadata_bytes_max=400)
    rng = random.Random(1)
    finished = runs_of(sorted(rng.sample(range(1, 3_000), 1_000)))
    bay = bay_before_assignment(metadata=CommitMetadata(finished=finished), records=3_000, bounds=bounds)
    bay.step(2)
    bay.settle()
    assert bay.intake.commits.metadata_bytes(P0) > bounds.metadata_bytes_nearly_full
    for _ in range(10):
        for work in bay.handed:
            work.assignment.done.append(work.offset)
        bay.settle()
    assert bay.committed() == 3_000
