"""Partitions that go: their last commits, their hand-over, and the notices to other workers."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from forebay_schemas.contract.coordination import NoticeKind
from forebay_schemas.contract.offsets_metadata import CommitMetadata
from forebay_worker.intake.commits import LAST_COMMIT_SECONDS_MAX
from simulated.bay import P0, P1, REFUSED, RUNNING, TOPIC, bay_with, said_by

REBALANCING = KafkaError(KafkaError.ILLEGAL_GENERATION)


# Letting go


def test_a_lost_partition_is_not_handed_over_and_its_requests_know_it() -> None:
    """Its new owner runs what runs here: nobody could tell it in time."""
    bay = bay_with(0, 1)
    bay.handed[0].assignment.claims.claim(0)
    bay.consumer.lose(P0)
    bay.step()
    assert bay.handed_over == []
    assert bay.peers.published == []
    assert bay.handed[0].assignment.lost


def test_a_revoked_partition_of_which_nothing_runs_is_not_handed_over() -> None:
    bay = bay_with(0, 1)
    bay.consumer.revoke(P0)
    bay.step()
    assert bay.handed_over == []
    assert not bay.handed[0].assignment.lost


def test_a_worker_that_leaves_hands_over_what_runs() -> None:
    bay = bay_with(0, 1, 2)
    bay.handed[1].assignment.claims.claim(1)
    bay.finish(0)
    bay.intake.close()
    assert bay.consumer.closed
    assert bay.committed() == 1
    [over] = bay.handed_over
    assert (over.assignment, over.running) == (bay.handed[0].assignment, (1,))


def test_a_last_commit_that_is_refused_is_told_to_the_others() -> None:
    bay = bay_with(0, 1, 2)
    bay.handed[1].assignment.claims.claim(1)
    bay.finish(0, 2)
    bay.consumer.commit_error = REFUSED
    bay.consumer.revoke(P0)
    bay.step()
    notice, running = bay.peers.published
    assert (running.kind, running.offsets) == (RUNNING, [1])
    assert (notice.kind, notice.worker, notice.topic, notice.partition) == (
        NoticeKind.LAST_COMMIT,
        bay.peers.worker_id,
        TOPIC,
        0,
    )
    assert notice.committed == 1
    expected = CommitMetadata(finished=((2, 1),), handed_over=((1, 0),), released=True, is_open=True)
    assert said_by(1, notice.metadata) == expected
    assert len(bay.handed_over) == 1


def test_only_the_partitions_whose_last_commit_is_refused_are_told() -> None:
    bay = bay_with(0, 1)
    bay.fill(P1, 0, 1)
    bay.consumer.assign(P1)
    bay.step(2)
    bay.consumer.commit_partition_errors[P1] = REFUSED
    bay.consumer.revoke(P0, P1)
    bay.step()
    assert [notice.partition for notice in bay.peers.published] == [1]
    assert bay.committed(P0) == 0


def test_a_last_commit_that_is_taken_is_not_told() -> None:
    bay = bay_with(0)
    bay.consumer.revoke(P0)
    bay.step()
    assert bay.peers.published == []


def test_what_runs_on_is_said_before_the_partition_is_let_go_of() -> None:
    """Its commit says so too, but only the order of notices tells it from what an earlier owner said of the same."""
    bay = bay_with(0, 1)
    bay.handed[1].assignment.claims.claim(1)
    bay.consumer.revoke(P0)
    bay.step()
    [notice] = bay.peers.published
    assert (notice.kind, notice.partition, notice.offsets) == (RUNNING, 0, [1])


def test_a_last_commit_in_the_middle_of_a_rebalance_is_made_again_for_half_a_second() -> None:
    """The broker refuses it until the client has heard of the new generation, in the background."""
    bay = bay_with(0, 1)
    bay.finish(0)
    bay.consumer.commit_error = REBALANCING
    began = bay.clock.monotonic()
    bay.consumer.revoke(P0)
    bay.step()
    assert LAST_COMMIT_SECONDS_MAX <= bay.clock.monotonic() - began < 1.0, "it lets go within a second all the same"
    last_ones = [offsets for offsets, asynchronous in bay.consumer.commits if not asynchronous]
    assert len(last_ones) > 3
    assert len(bay.peers.published) == 1


def test_another_error_of_a_last_commit_does_not_pass_by_waiting() -> None:
    bay = bay_with(0)
    bay.consumer.commit_error = REFUSED
    bay.consumer.revoke(P0)
    bay.step()
    assert len([offsets for offsets, asynchronous in bay.consumer.commits if not asynchronous]) == 1


@pytest.mark.parametrize("code", [KafkaError.UNKNOWN_MEMBER_ID, KafkaError.FENCED_MEMBER_EPOCH])
def test_who_is_no_member_any_more_says_and_hands_over_nothing(code: int) -> None:
    """The partitions are another's already: a notice about them now would count against that one."""
    bay = bay_with(0, 1)
    bay.handed[1].assignment.claims.claim(1)
    bay.finish(0)
    bay.consumer.commit_error = KafkaError(code)
    bay.consumer.revoke(P0)
    bay.step()
    assert (bay.peers.published, bay.handed_over, bay.assigned()) == ([], [], [])
    assert bay.handed[1].assignment.lost


def test_what_was_told_but_may_not_be_durable_still_lets_go() -> None:
    bay = bay_with(0)
    bay.handed[0].assignment.claims.claim(0)
    bay.consumer.commit_error = REFUSED
    bay.peers.can_be_told = False
    bay.consumer.revoke(P0)
    bay.step()
    assert bay.assigned() == []
    assert len(bay.handed_over) == 1


def test_a_partition_that_comes_back_begins_with_what_was_told_when_it_went() -> None:
    """This worker's own notices reach it like those of others."""
    bay = bay_with(0, 1, 2)
    bay.handed[1].assignment.claims.claim(1)
    bay.finish(0, 2)
    bay.consumer.commit_error = REFUSED
    bay.consumer.revoke(P0)
    bay.step()
    bay.consumer.commit_error = None
    for each in bay.peers.published:
        bay.intake.receive(each)
    bay.consumer.assign(P0)
    bay.step(3)
    assert bay.offsets() == [0, 1, 2], "1 still runs here, for its former assignment"
    assert bay.intake.held_records == 1
