"""Partitions that are assigned, revoked and lost, with commits that are unknown and callbacks that fail."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka import OFFSET_STORED, KafkaError, KafkaException, TopicPartition

from forebay_schemas.contract.offsets_metadata import CommitMetadata, encode_metadata
from forebay_worker.intake.commits import COMMIT_SECONDS
from forebay_worker.intake.committed import ASK_AGAIN_SECONDS
from simulated.bay import BROKEN, P0, P1, Bay, bay_with, explode, said_by
from simulated.consumer import ScriptedConsumer
from simulated.ports import Key


def test_a_revoked_partition_is_committed_at_once_and_then_left_alone() -> None:
    bay = bay_with(0, 1, 2)
    assert bay.handed[1].assignment.claims.claim(1)
    bay.finish(0)
    bay.consumer.revoke(P0)
    bay.step()
    offset, text = bay.consumer.committed_by_group[P0]
    assert (offset, said_by(offset, text)) == (
        1,
        CommitMetadata(handed_over=((1, 0),), released=True, is_open=True),
    )
    assert bay.consumer.commits[-1][1] is False
    assert [(over.assignment.partition, over.running) for over in bay.handed_over] == [(0, (1,))]
    assert not bay.handed[0].assignment.claims.claim(2)
    commits = len(bay.consumer.commits)
    bay.finish(1, 2)
    bay.settle()
    assert len(bay.consumer.commits) == commits


def test_a_lost_partition_is_not_committed() -> None:
    bay = bay_with(0, 1)
    bay.settle()
    commits = len(bay.consumer.commits)
    bay.finish(0, 1)
    bay.consumer.lose(P0)
    bay.clock.advance(-COMMIT_SECONDS)
    bay.step()
    bay.settle()
    assert len(bay.consumer.commits) == commits
    assert not bay.handed[0].assignment.claims.is_open


def test_what_finishes_of_an_old_assignment_says_nothing_of_the_new_one() -> None:
    bay = bay_with(0, 1)
    old = bay.handed[0].assignment
    bay.consumer.lose(P0)
    bay.consumer.assign(P0)
    bay.step(2)
    assert bay.offsets() == [0, 1, 0, 1]
    old.done.extend((0, 1))
    bay.settle()
    assert bay.committed() == 0


# Nothing runs of a partition whose commits are unknown


def unknown_bay(*, count: int = 6, committed: int | None = 3) -> Bay:
    """A bay that was assigned a partition while the broker could not say what is committed."""
    bay = Bay()
    bay.fill(P0, *range(count))
    if committed is not None:
        bay.consumer.committed_by_group[P0] = (committed, "")
    bay.consumer.committed_error = KafkaException(KafkaError(KafkaError._TIMED_OUT))
    bay.consumer.assign(P0)
    bay.step(4)
    assert bay.offsets() == []
    assert bay.is_paused()
    return bay


def test_with_unknown_committed_offsets_nothing_runs_until_they_are_told_and_it_says_so() -> None:
    bay = unknown_bay()
    assert bay.intake.troubles == ["mid: committed offsets unknown of 1 partitions (Local: Timed out)"]
    bay.consumer.committed_error = None
    bay.clock.advance(ASK_AGAIN_SECONDS)
    bay.step(2)
    assert bay.offsets() == [3, 4, 5]
    assert bay.intake.troubles == []
    bay.finish(3, 4)
    bay.settle()
    assert bay.committed() == 5


@pytest.mark.parametrize("committed", [None, 3])
def test_with_committed_offsets_told_late_an_exception_still_loses_nothing(committed: int | None) -> None:
    bay = unknown_bay(committed=committed)
    bay.consumer.free_unseen(P0, 2, exception=KafkaException(BROKEN))
    bay.step(3)
    assert bay.offsets() == []
    bay.consumer.committed_error = None
    bay.clock.advance(ASK_AGAIN_SECONDS)
    bay.step(5)
    assert bay.offsets() == list(range(committed or 0, 6))


def test_an_error_of_one_partition_among_the_committed_counts_as_unknown() -> None:
    bay = Bay()
    bay.fill(P0, *range(3))
    bay.consumer.committed_partition_error = KafkaError(KafkaError.NOT_COORDINATOR)
    bay.consumer.assign(P0)
    bay.step(2)
    assert bay.offsets() == []
    bay.consumer.committed_partition_error = None
    bay.clock.advance(ASK_AGAIN_SECONDS)
    bay.step(2)
    assert bay.offsets() == [0, 1, 2]


@pytest.mark.parametrize("take_back", [ScriptedConsumer.revoke, ScriptedConsumer.lose], ids=["revoked", "lost"])
def test_an_unknown_partition_that_goes_again_is_forgotten(take_back: Callable[[ScriptedConsumer, Key], None]) -> None:
    bay = unknown_bay()
    take_back(bay.consumer, P0)
    bay.step()
    bay.consumer.committed_error = None
    bay.clock.advance(ASK_AGAIN_SECONDS)
    bay.step(2)
    assert (bay.offsets(), bay.assigned(), bay.intake.troubles) == ([], [], [])


# Callbacks never raise, whatever happens in them


class ForgettingConsumer(ScriptedConsumer):
    """Refuses once to be given a start when it is assigned."""

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        if any(each.offset != OFFSET_STORED for each in partitions) and self.polls < 2:
            raise RuntimeError("odd")
        super().incremental_assign(partitions)


@pytest.mark.parametrize("fails", ["committed", "incremental_assign"])
def test_an_assignment_that_fails_oddly_is_made_good_and_loses_nothing(fails: str) -> None:
    """The client then assigns the partition itself, unpaused, and begins to read it."""
    bay = Bay()
    if fails == "committed":
        bay.consumer.committed_error = RuntimeError("odd")
    else:
        bay.consumer = ForgettingConsumer(clock=bay.clock)
        bay.intake = bay.start()
    bay.fill(P0, *range(6))
    text = encode_metadata(2, CommitMetadata(finished=((4, 1),)))
    bay.consumer.committed_by_group[P0] = (2, text)
    bay.peers.read_until = 0.0
    bay.consumer.assign(P0)
    bay.step(2)
    bay.consumer.committed_error = None
    bay.clock.advance(ASK_AGAIN_SECONDS)
    bay.step(3)
    assert bay.offsets() == [], "its peers have not been heard"
    bay.peers.read_until = bay.clock.monotonic()
    bay.step(2)
    assert bay.offsets() == [2, 3, 5]
    bay.finish(2, 3, 5)
    bay.settle()
    assert bay.committed() == 6


def test_nothing_is_committed_for_a_partition_whose_letting_go_failed_oddly(monkeypatch: pytest.MonkeyPatch) -> None:
    bay = bay_with(0, 1)
    monkeypatch.setattr(bay.peers, "publish", explode)
    bay.consumer.commit_error = KafkaError(KafkaError.COORDINATOR_LOAD_IN_PROGRESS)
    bay.consumer.revoke(P0)
    bay.step()
    bay.consumer.commit_error = None
    commits = len(bay.consumer.commits)
    bay.finish(0)
    bay.settle()
    assert bay.assigned() == []
    assert len(bay.consumer.commits) == commits
    assert not bay.handed[0].assignment.claims.is_open


def test_callbacks_never_raise_whatever_happens_in_them(monkeypatch: pytest.MonkeyPatch) -> None:
    bay = bay_with(0, 1)
    for name in ("_assign", "_revoke"):
        monkeypatch.setattr(bay.intake._ownership, name, explode)
    bay.consumer.assign(P1)
    bay.consumer.revoke(P0)
    bay.consumer.lose(P1)
    assert bay.consumer.poll(0.1) is None


def test_an_empty_assignment_is_one() -> None:
    """More workers than partitions: this one is ready and has nothing to do."""
    bay = Bay()
    bay.consumer.assign()
    bay.step()
    assert bay.intake.assigned_once
    assert bay.assigned() == []


def test_records_of_partitions_that_are_not_ours_are_left_alone() -> None:
    bay = bay_with(0)
    bay.consumer.log_of(P1).position = 0
    bay.fill(P1, 0)
    bay.step(2)
    assert bay.offsets(P1) == []
