"""Commits that fail, are never answered, or are answered late."""

from __future__ import annotations

from confluent_kafka import KafkaError

from forebay_worker.intake.commits import ANSWER_SECONDS_MAX
from simulated.bay import P0, P1, bay_with


def test_a_commit_that_fails_for_one_partition_is_made_again() -> None:
    bay = bay_with(0, 1)
    bay.fill(P1, 0, 1)
    bay.consumer.assign(P1)
    bay.step(2)
    bay.finish(0)
    bay.finish(0, 1, key=P1)
    bay.consumer.commit_partition_errors[P0] = KafkaError(KafkaError.COORDINATOR_LOAD_IN_PROGRESS)
    bay.settle()
    assert (bay.committed(), bay.committed(P1)) == (0, 2)
    assert bay.intake.commits.failed_count >= 1
    bay.consumer.commit_partition_errors.clear()
    bay.settle()
    bay.settle()
    assert bay.committed() == 1
    assert list(bay.consumer.commits[-1][0]) == [P0], "only what failed is made again"


def test_a_commit_that_fails_as_a_whole_is_made_again() -> None:
    bay = bay_with(0)
    bay.finish(0)
    bay.consumer.commit_error = KafkaError(KafkaError.NOT_COORDINATOR)
    bay.settle()
    assert bay.committed() is None
    bay.consumer.commit_error = None
    bay.settle()
    bay.settle()
    assert bay.committed() == 1


def test_one_commit_at_a_time_and_one_that_is_never_answered_is_made_again() -> None:
    bay = bay_with(0, 1)
    bay.settle()
    bay.consumer.answers_commits = False
    bay.finish(0)
    bay.settle()
    sent = len(bay.consumer.commits)
    bay.finish(1)
    bay.settle()
    assert len(bay.consumer.commits) == sent
    bay.clock.advance(ANSWER_SECONDS_MAX)
    bay.settle()
    assert bay.consumer.commits[-1][0][P0][0] == 2


def test_the_late_answer_to_a_commit_is_not_taken_for_that_of_the_next() -> None:
    bay = bay_with(0, 1)
    bay.settle()
    bay.consumer.answers_commits = False
    bay.finish(0)
    bay.settle()
    bay.clock.advance(ANSWER_SECONDS_MAX)
    bay.finish(1)
    # The second one, which fails, is answered after the first.
    bay.consumer.commit_partition_errors[P0] = KafkaError(KafkaError.NOT_COORDINATOR)
    bay.settle()
    bay.consumer.commit_partition_errors.clear()
    bay.consumer.answers_commits = True
    bay.settle()
    bay.settle()
    assert bay.committed() == 2


def test_a_commit_answered_after_the_revocation_brings_nothing_back() -> None:
    bay = bay_with(0, 1)
    bay.settle()
    bay.consumer.answers_commits = False
    bay.finish(0)
    bay.settle()
    bay.consumer.revoke(P0)
    bay.step()
    bay.consumer.answers_commits = True
    bay.step()
    assert bay.assigned() == []
    # Nor is it taken for one of the assignment that follows.
    confirmed = bay.intake.commits.confirmed_count
    bay.consumer.assign(P0)
    bay.step()
    assert bay.intake.commits.confirmed_count == confirmed


def test_a_commit_answered_after_the_partition_came_back_says_nothing_of_the_new_assignment() -> None:
    bay = bay_with(0, 1)
    bay.settle()
    bay.consumer.answers_commits = False
    bay.finish(0)
    bay.settle()
    bay.consumer.lose(P0)
    bay.consumer.assign(P0)
    bay.step()
    confirmed = bay.intake.commits.confirmed_count
    bay.consumer.answers_commits = True
    bay.consumer.poll(0)
    assert bay.intake.commits.confirmed_count == confirmed
