"""Credit: how much an intake may hand over, by records and by bytes, whichever comes first."""

from __future__ import annotations

import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay_worker.partition.credit import Credit


def credit_with(room_records: int, room_bytes: int) -> Credit:
    credit = Credit(capacity_records=room_records)
    credit.allow(room_records, room_bytes, capacity_records=room_records, capacity_bytes=room_bytes)
    return credit


def test_before_anything_is_allowed_there_is_no_room() -> None:
    assert Credit(capacity_records=9).room_records == 0


@pytest.mark.parametrize(
    ("spent", "room"),
    [
        ([], 10),
        ([(3, 100)], 7),
        ([(10, 100)], 0),
        # While a byte is free a record may go: the last one may be larger than what is left.
        ([(1, 999)], 9),
        ([(1, 1_000)], 0),
        ([(1, 5_000)], 0),
        ([(9, 500), (1, 100)], 0),
    ],
)
def test_both_bounds_hold(spent: list[tuple[int, int]], room: int) -> None:
    credit = credit_with(10, 1_000)
    for records, size_bytes in spent:
        credit.spend(records, size_bytes)
    assert credit.room_records == room


@pytest.mark.parametrize(
    ("records", "size_bytes", "is_half_free"),
    [(0, 0, True), (5, 500, True), (6, 0, False), (0, 501, False), (10, 1_000, False)],
)
def test_half_free_means_by_records_and_by_bytes(records: int, size_bytes: int, is_half_free: bool) -> None:
    credit = credit_with(10, 1_000)
    credit.spend(records, size_bytes)
    assert credit.is_half_free is is_half_free


def test_room_counts_from_what_has_arrived_not_from_what_is_on_its_way() -> None:
    """The intake has handed over four that dispatch has not seen yet: they take room all the same."""
    credit = credit_with(10, 1_000)
    credit.spend(4, 400)
    credit.allow(10, 1_000, capacity_records=10, capacity_bytes=1_000)
    assert credit.room_records == 6
    credit.received(4, 400)
    credit.allow(8, 900, capacity_records=10, capacity_bytes=1_000)
    assert credit.room_records == 8
    credit.spend(0, 899)
    assert credit.room_records == 8
    credit.spend(0, 1)
    assert credit.room_records == 0


def test_what_was_allowed_is_not_taken_back() -> None:
    """The lookahead has shrunk; the intake may have used it already."""
    credit = credit_with(10, 1_000)
    credit.allow(2, 10, capacity_records=2, capacity_bytes=10)
    assert (credit.room_records, credit.capacity_records) == (10, 2)


def test_waiting_ends_when_more_is_allowed() -> None:
    credit = credit_with(1, 1)
    credit.wait(0)
    waiter = threading.Thread(target=credit.wait, args=(30,))
    waiter.start()
    credit.allow(1, 1, capacity_records=1, capacity_bytes=1)
    assert waiter.is_alive(), "nothing more than before"
    credit.allow(2, 1, capacity_records=1, capacity_bytes=1)
    waiter.join(10)
    assert not waiter.is_alive()


def test_waiting_ends_by_itself() -> None:
    began = time.monotonic()
    Credit(capacity_records=1).wait(0.01)
    assert time.monotonic() - began >= 0.01


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 500), st.booleans()), max_size=30))
def test_never_more_is_under_way_than_the_capacity_and_one_record(steps: list[tuple[int, int, bool]]) -> None:
    """The lane holds what has arrived and not left; dispatch allows what would fill it."""
    capacity_records, capacity_bytes = 8, 1_000
    credit = credit_with(capacity_records, capacity_bytes)
    under_way: list[int] = []
    lane: list[int] = []
    for count, size, dispatches in steps:
        for _ in range(count):
            if credit.room_records > 0:
                credit.spend(1, size)
                under_way.append(size)
        if dispatches:
            credit.received(len(under_way), sum(under_way))
            lane, under_way = [*lane, *under_way][count:], []
            credit.allow(
                capacity_records - len(lane),
                max(0, capacity_bytes - sum(lane)),
                capacity_records=capacity_records,
                capacity_bytes=capacity_bytes,
            )
        assert len(lane) + len(under_way) <= capacity_records
        assert sum(lane) + sum(under_way) < capacity_bytes + 500
