"""Parked requests: retries until they are due, and requests that a former owner may still run."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay_schemas.contract.coordination import LEASE_SECONDS, Notice, NoticeKind
from forebay_schemas.contract.offsets_metadata import CommitMetadata
from forebay_worker.bounds import BOUNDS
from forebay_worker.intake.parked import Parked
from forebay_worker.partition.assignment import Assignment
from forebay_worker.request.work import Work
from simulated.works import make_assignment, make_work


def retries(assignment: Assignment, count: int, *, size_bytes: int = 0) -> list[Work]:
    works = [make_work(assignment, offset=offset) for offset in range(count)]
    for work in works:
        work.size_bytes = size_bytes
    return works


def offsets(works: list[Work]) -> list[int]:
    return [work.offset for work in works]


# Retries


def test_retries_leave_when_they_are_due_soonest_first() -> None:
    held = Parked()
    first, second, third, fourth = retries(make_assignment(retry_delay_seconds=5), 4)
    for work, due in ((first, 12.0), (second, 10.0), (third, 11.0), (fourth, 10.0)):
        held.hold_until(work, due)
    assert (held.next_due, len(held)) == (10.0, 4)
    assert held.take_due(9.999) == []
    assert held.take_due(11.0) == [second, fourth, third]
    assert (held.next_due, len(held)) == (12.0, 1)
    assert held.take_due(99.0) == [first]
    assert (held.next_due, len(held)) == (None, 0)


def test_retries_of_a_partition_that_was_given_up_never_leave() -> None:
    held = Parked()
    ours, gone, closed = (make_assignment(partition=number, retry_delay_seconds=1) for number in range(3))
    for number, assignment in enumerate((ours, gone, closed)):
        held.hold_until(make_work(assignment, offset=number), 10.0)
    held.drop(gone)
    assert len(held) == 2
    closed.claims.close()
    assert offsets(held.take_due(10.0)) == [0]
    assert len(held) == 0


# Withheld requests


def handed_over(*held_offsets: int) -> tuple[Parked, Assignment]:
    """A partition of which these were handed over and have arrived."""
    assignment = make_assignment(metadata=CommitMetadata(handed_over=tuple((offset, 0) for offset in held_offsets)))
    held = Parked()
    for offset in held_offsets:
        assignment.receive(offset)
        held.withhold(make_work(assignment, offset=offset))
    return held, assignment


def says(kind: NoticeKind, *said: int) -> Notice:
    return Notice(kind=kind, worker="other", topic="t", partition=0, offsets=list(said))


def test_withheld_requests_leave_when_their_former_owner_gives_them_back() -> None:
    held, assignment = handed_over(0, 1, 2)
    assert held.take_released(assignment) == []
    assignment.apply(says(NoticeKind.RELEASED, 1), 0.0)
    assert offsets(held.take_released(assignment)) == [1]
    assert held.take_released(assignment) == []
    assert len(held) == 2


def test_withheld_requests_that_their_former_owner_finished_are_dropped() -> None:
    held, assignment = handed_over(0, 1, 2)
    assignment.apply(says(NoticeKind.FINISHED, 0, 2), 0.0)
    assert held.take_released(assignment) == []
    assert len(held) == 1


def test_withheld_requests_leave_when_their_former_owner_is_silent() -> None:
    held, assignment = handed_over(0, 1)
    assignment.end_leases(LEASE_SECONDS)
    assert offsets(held.take_released(assignment)) == [0, 1]
    assert len(held) == 0


def test_withheld_requests_of_a_partition_that_was_given_up_are_forgotten() -> None:
    held, assignment = handed_over(0, 1)
    held.drop(assignment)
    assert len(held) == 0
    assignment.end_leases(LEASE_SECONDS)
    assert held.take_released(assignment) == []


def test_a_partition_without_withheld_requests_releases_none() -> None:
    assert Parked().take_released(make_assignment()) == []


# How much is held


@pytest.mark.parametrize(
    ("count", "size_bytes", "full_at", "still_full_at"),
    [
        (BOUNDS.parked_records_max, 0, BOUNDS.parked_records_max, BOUNDS.parked_records_max // 2),
        (8, BOUNDS.parked_bytes_max // 4, 4, 2),
        (1, BOUNDS.parked_bytes_max, 1, 1),
    ],
    ids=["by records", "by bytes", "by one of the largest"],
)
def test_a_partition_is_full_at_a_bound_and_until_less_than_half_of_it(
    count: int, size_bytes: int, full_at: int, still_full_at: int
) -> None:
    held, assignment = Parked(), make_assignment(retry_delay_seconds=1)
    for number, work in enumerate(retries(assignment, count, size_bytes=size_bytes)):
        assert held.is_full(assignment, was_full=False) is (number >= full_at)
        held.hold_until(work, float(number))
    assert held.is_full(assignment, was_full=False)
    assert not held.is_full(make_assignment(partition=1), was_full=True), "each partition by itself"
    for left in range(count - 1, -1, -1):
        held.take_due(float(count - 1 - left))
        assert held.is_full(assignment, was_full=True) is (left >= still_full_at)


_steps = st.lists(
    st.one_of(
        st.tuples(st.just("hold"), st.integers(0, 2), st.integers(0, 50)),
        st.tuples(st.just("withhold"), st.integers(0, 2), st.just(0)),
        st.tuples(st.just("due"), st.just(0), st.integers(0, 60)),
        st.tuples(st.just("release"), st.integers(0, 2), st.just(0)),
        st.tuples(st.just("drop"), st.integers(0, 2), st.just(0)),
    ),
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(_steps)
def test_whatever_comes_and_goes_nothing_leaves_twice_and_nothing_is_counted_for_ever(
    steps: list[tuple[str, int, int]],
) -> None:
    held = Parked()
    assignments = [make_assignment(partition=number) for number in range(3)]
    inside: list[Work] = []
    for offset, (step, partition, number) in enumerate(steps):
        assignment = assignments[partition]
        match step:
            case "hold":
                inside.append(make_work(assignment, offset=offset))
                held.hold_until(inside[-1], float(number))
            case "withhold":
                inside.append(make_work(assignment, offset=offset))
                held.withhold(inside[-1])
            case "due":
                for work in held.take_due(float(number)):
                    inside.remove(work)
            case "release":
                for work in held.take_released(assignment):
                    inside.remove(work)
            case _:
                assignment.claims.close()
                held.drop(assignment)
                inside = [work for work in inside if work.assignment is not assignment]
                assignments[partition] = make_assignment(partition=partition)
        assert len(held) == len(inside)
    held.take_due(1e9)
    for assignment in assignments:
        held.take_released(assignment)
        assert not held.is_full(assignment, was_full=True)
    assert len(held) == 0
