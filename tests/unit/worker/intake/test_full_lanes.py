"""Intake while a lane is full: partitions are paused and taken up again."""

from __future__ import annotations

import random

import pytest

from forebay_worker.intake import partitions as ownership_module
from forebay_worker.intake.intake import LANE_FULL_WAIT_SECONDS
from forebay_worker.partition.fullness import FULL_SECONDS_BEFORE_PAUSE
from forebay_worker.request.memory import RECORD_OVERHEAD_BYTES
from simulated.bay import MANY_BYTES, P0, P1, TOPIC, Bay, bay_with
from simulated.ports import MemoryRecord
from simulated.works import envelope


def test_a_full_lane_pauses_only_after_half_a_second_and_polls_on() -> None:
    bay = Bay(capacity=4)
    bay.fill(P0, 0)
    bay.consumer.assign(P0)
    bay.step(3)
    bay.fill(P0, *range(1, 20))
    bay.step()
    assert len(bay.handed) == 4
    bay.step()
    bay.clock.advance(-LANE_FULL_WAIT_SECONDS)
    bay.clock.advance(FULL_SECONDS_BEFORE_PAUSE - 0.1)
    bay.step()
    assert not bay.is_paused()
    bay.clock.advance(0.1)
    bay.step()
    assert bay.is_paused()
    polls = bay.consumer.polls
    bay.step(3)
    assert bay.consumer.polls == polls + 3
    assert len(bay.handed) == 4


def test_a_full_lane_pauses_at_once_while_a_first_start_waits_for_its_commit() -> None:
    """Only polls bring the answer, and these need room or a pause."""
    bay = Bay(capacity=4)
    bay.fill(P0, *range(20))
    bay.consumer.assign(P0)
    bay.step(5)
    assert bay.is_paused()
    assert bay.handed[0].assignment.claims.is_announced


def paused_bay(*, capacity: int) -> Bay:
    bay = Bay(capacity=capacity)
    bay.fill(P0, *range(100))
    bay.consumer.assign(P0)
    bay.step(3)
    bay.clock.advance(FULL_SECONDS_BEFORE_PAUSE)
    bay.step(2)
    assert bay.is_paused()
    return bay


def test_it_takes_up_again_at_half() -> None:
    bay = paused_bay(capacity=10)
    bay.allow(14, capacity=10)
    bay.step()
    assert bay.is_paused()
    bay.allow(15, capacity=10)
    bay.step()
    assert not bay.is_paused()
    assert bay.offsets() == list(range(15))


def test_it_takes_up_again_only_when_half_of_the_bytes_are_free_too() -> None:
    bay = paused_bay(capacity=10)
    credit = bay.credit
    used = sum(work.size_bytes + RECORD_OVERHEAD_BYTES for work in bay.handed)
    credit.allow(20, MANY_BYTES, capacity_records=10, capacity_bytes=2 * (MANY_BYTES - used) + 2)
    bay.step()
    assert bay.is_paused()
    credit.allow(20, MANY_BYTES, capacity_records=10, capacity_bytes=MANY_BYTES)
    bay.step()
    assert not bay.is_paused()


def test_large_records_are_taken_no_further_than_their_bytes_allow() -> None:
    bay = Bay(capacity=0, capacity_bytes=0)
    for offset in range(10):
        bay.consumer.append(
            MemoryRecord(topic_name=TOPIC, offset_number=offset, value_bytes=envelope(payload={"x": "y" * 100_000}))
        )
    bay.consumer.assign(P0)
    for _ in range(4):
        bay.credit.allow(len(bay.handed) + 1, 250_000, capacity_records=256, capacity_bytes=250_000)
        bay.step()
    assert len(bay.handed) == 3


def test_a_partition_that_comes_while_it_is_full_is_paused_too() -> None:
    bay = paused_bay(capacity=10)
    bay.fill(P1, 0)
    bay.consumer.assign(P1)
    bay.step(2)
    assert bay.is_paused(P1)
    assert bay.offsets(P1) == []


def test_a_partition_whose_commit_says_hardly_more_is_held_back_until_it_can() -> None:
    bay = Bay()
    bay.fill(P0, *range(16_000))
    bay.fill(P1, 0, 1)
    bay.consumer.assign(P0, P1)
    bay.step(30)
    # With ever different gaps, so that it does not compress well.
    rng = random.Random(1)
    finished = [offset for offset in range(1, 16_000) if rng.random() < 0.4]
    bay.handed[0].assignment.done.extend(finished)
    bay.settle()
    assert bay.is_paused()
    assert not bay.is_paused(P1)
    assert bay.consumer.committed_by_group[P0][0] == 0
    bay.handed[0].assignment.done.extend(set(range(16_000)) - set(finished))
    bay.settle()
    assert not bay.is_paused()
    assert bay.committed() == 16_000


def test_a_partition_behind_one_slow_request_is_held_back_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A million finished offsets in turn take a few bytes of metadata, but a hundred megabytes of memory."""
    monkeypatch.setattr(ownership_module, "PENDING_RECORDS_MAX", 100)
    bay = bay_with(*range(100))
    bay.finish(*range(1, 100))
    bay.settle()
    assert bay.is_paused()
    bay.finish(0)
    bay.settle()
    assert not bay.is_paused()
