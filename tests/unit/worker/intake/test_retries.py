"""Retries through the intake: each joins dispatch when it is due, never early, and none stops what is not due later."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException

from forebay_schemas.contract.coordination import LEASE_SECONDS
from forebay_schemas.contract.offsets_metadata import CommitMetadata, encode_metadata
from forebay_worker.bounds import BOUNDS
from forebay_worker.intake.intake import LANE_FULL_WAIT_SECONDS, POLL_SECONDS
from simulated.bay import TIER, Bay, said_by
from simulated.ports import NOW_MS, Key, MemoryRecord
from simulated.works import POOL, envelope

SHORT, LONG = POOL.retry(TIER, 1), POOL.retry(TIER, 30)
S0, L0 = (SHORT, 0), (LONG, 0)
EARLY_SECONDS = 0.0005
"""Epoch milliseconds are whole: half of one is no promise."""


def retry_bay(*keys: Key) -> Bay:
    bay = Bay(delays_seconds=(1, 30))
    bay.consumer.assign(*(keys or (S0,)))
    bay.step()
    return bay


def put(
    bay: Bay, key: Key, offset: int, *, due_seconds: float | None, size: int = 0, enqueued_at: int = NOW_MS
) -> None:
    """Appends a retry that is due this many seconds after the clock's start, or that does not say when."""
    headers: list[tuple[str, bytes | None]] = [("forebay-attempt", b"2")]
    if due_seconds is not None:
        headers.append(("forebay-not-before", str(NOW_MS + round(due_seconds * 1000)).encode()))
    bay.consumer.append(
        MemoryRecord(
            topic_name=key[0],
            partition_number=key[1],
            offset_number=offset,
            value_bytes=envelope(f"{key}-{offset}", payload={"x": "y" * size}, ttl_ms=3_600_000),
            header_list=headers,
            timestamp_ms=enqueued_at,
        )
    )


def seconds_since_start(bay: Bay) -> float:
    return (bay.clock.wall_ms() - NOW_MS) / 1000


def steps_until_handed(bay: Bay, count: int, *, steps_max: int = 1_000) -> float:
    """Steps until ``count`` were handed over. Returns the time of the last, in seconds after the clock's start."""
    for _ in range(steps_max):
        if len(bay.handed) >= count:
            return bay.handed_at[count - 1] - (bay.clock.monotonic() - seconds_since_start(bay))
        bay.step()
    raise AssertionError("not handed over")


@pytest.mark.parametrize("due_seconds", [0.3, 0.999, 0.61])
def test_a_retry_starts_when_it_is_due_never_early_and_hardly_late(due_seconds: float) -> None:
    bay = retry_bay()
    put(bay, S0, 0, due_seconds=due_seconds)
    at = steps_until_handed(bay, 1)
    assert due_seconds - EARLY_SECONDS <= at <= due_seconds + 0.01
    [work] = bay.handed
    assert (work.attempt, work.offset, work.assignment.retry_delay_seconds) == (2, 0, 1)


def test_a_retry_is_not_early_although_the_records_before_it_took_their_time() -> None:
    bay = retry_bay()

    class SlowRecord(MemoryRecord):
        def value(self) -> bytes | None:
            bay.clock.advance(0.02)
            return super().value()

    for offset in range(5):
        value = envelope(f"{offset}", ttl_ms=3_600_000)
        headers: list[tuple[str, bytes | None]] = [("forebay-not-before", str(NOW_MS + 700).encode())]
        bay.consumer.append(SlowRecord(topic_name=SHORT, offset_number=offset, value_bytes=value, header_list=headers))
    steps_until_handed(bay, 5)
    started = bay.clock.monotonic() - seconds_since_start(bay)
    assert min(bay.handed_at) - started >= 0.7 - EARLY_SECONDS


def test_what_is_due_on_arrival_starts_at_once() -> None:
    bay = retry_bay()
    bay.clock.advance(5.0)
    put(bay, S0, 0, due_seconds=1.0)
    bay.step(2)
    assert bay.offsets(S0) == [0]


def test_a_retry_that_does_not_say_when_waits_for_its_topics_delay() -> None:
    """Another client wrote it."""
    bay = retry_bay()
    put(bay, S0, 0, due_seconds=None, enqueued_at=NOW_MS + 200)
    at = steps_until_handed(bay, 1)
    assert 1.2 - EARLY_SECONDS <= at <= 1.21


@pytest.mark.parametrize("due_seconds", [1e6, 40.0], ids=["days", "half a minute"])
def test_whatever_the_clocks_say_a_retry_waits_no_longer_than_its_topics_delay(due_seconds: float) -> None:
    bay = retry_bay(L0)
    put(bay, L0, 0, due_seconds=due_seconds)
    at = steps_until_handed(bay, 1)
    assert 30.0 <= at <= 30.0 + POLL_SECONDS + 0.01


def test_a_retry_that_is_not_due_stops_none_behind_it() -> None:
    """Whether in its partition or in another topic."""
    bay = retry_bay(S0, L0)
    put(bay, L0, 0, due_seconds=20.0)
    put(bay, L0, 1, due_seconds=0.5)
    put(bay, S0, 0, due_seconds=0.4)
    at = steps_until_handed(bay, 2)
    assert [(work.assignment.topic, work.offset) for work in bay.handed] == [(SHORT, 0), (LONG, 1)]
    assert at <= 0.51
    assert steps_until_handed(bay, 3) >= 20.0 - EARLY_SECONDS


def test_a_retry_that_waits_is_not_committed_past() -> None:
    bay = retry_bay()
    put(bay, S0, 0, due_seconds=1.0)
    put(bay, S0, 1, due_seconds=0.0)
    steps_until_handed(bay, 1)
    bay.finish(1, key=S0)
    bay.settle()
    offset, text = bay.consumer.committed_by_group[S0]
    assert (offset, said_by(offset, text)) == (0, CommitMetadata(finished=((1, 1),)))
    assert bay.intake.held_records == 1


@pytest.mark.parametrize(
    ("count", "size"), [(BOUNDS.parked_records_max + 40, 0), (10, BOUNDS.parked_bytes_max // 4)], ids=["many", "large"]
)
def test_a_partition_that_holds_much_is_paused_and_read_on_when_it_holds_less_than_half(count: int, size: int) -> None:
    bay = retry_bay(S0, L0)
    for offset in range(count):
        put(bay, L0, offset, due_seconds=10.0 + 0.15 * offset, size=size)
        bay.step()
    assert bay.is_paused(L0)
    held = bay.intake.held_records
    assert held == (4 if size else BOUNDS.parked_records_max)
    put(bay, S0, 0, due_seconds=seconds_since_start(bay))
    bay.step(3)
    assert bay.offsets(S0) == [0], "the others go on"
    while bay.is_paused(L0):
        bay.step()
    assert len(bay.offsets(L0)) == held // 2 + 1
    steps_until_handed(bay, 1 + count, steps_max=10_000)
    assert bay.offsets(L0) == list(range(count))


def test_due_retries_wait_for_room_and_keep_their_place() -> None:
    bay = retry_bay()
    bay.allow(0)
    bay.credit.spend(bay.credit.room_records, 0)
    for offset in range(3):
        put(bay, S0, offset, due_seconds=0.1 * offset)
    for _ in range(40):
        bay.step()
    assert bay.handed == []
    bay.allow(1_000_001 + 1)
    allowed_at = seconds_since_start(bay)
    assert steps_until_handed(bay, 2) - allowed_at <= LANE_FULL_WAIT_SECONDS + 0.01
    assert sorted(bay.offsets(S0)) == [0, 1]
    bay.step(20)
    assert len(bay.handed) == 2


def test_retries_of_a_partition_that_goes_are_left_to_its_next_owner() -> None:
    bay = retry_bay()
    put(bay, S0, 0, due_seconds=0.8)
    bay.step(2)
    assert bay.intake.held_records == 1
    bay.consumer.revoke(S0)
    bay.step()
    assert bay.intake.held_records == 0
    for _ in range(20):
        bay.step()
    assert bay.handed == []
    assert bay.committed(S0) == 0


def test_a_retry_that_a_former_owner_runs_waits_for_it_and_then_starts_at_once() -> None:
    bay = Bay(delays_seconds=(1, 30))
    put(bay, L0, 0, due_seconds=0.0)
    bay.consumer.committed_by_group[L0] = (0, encode_metadata(0, CommitMetadata(handed_over=((0, 0),))))
    bay.consumer.assign(L0)
    bay.step(20)
    assert bay.handed == []
    at = steps_until_handed(bay, 1)
    assert LEASE_SECONDS <= at <= LEASE_SECONDS + 2 * POLL_SECONDS
    assert bay.handed[0].crashes == 1


def test_a_trouble_with_retries_ends_when_they_come_again() -> None:
    """None of them is handed over at once: that must not keep the worker from being ready."""
    bay = retry_bay()
    bay.consumer.free_unseen(S0, 0, exception=KafkaException(KafkaError(KafkaError._TRANSPORT)))
    bay.step()
    assert len(bay.intake.troubles) == 1
    put(bay, S0, 0, due_seconds=0.9)
    bay.step(2)
    assert bay.handed == []
    assert bay.intake.troubles == []
