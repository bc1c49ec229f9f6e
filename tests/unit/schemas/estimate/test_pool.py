"""A pool's load: lanes of several workers, unread records, retries, costs by tier, corrections, and older workers."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from forebay_schemas.contract.coordination import Capacity, decode_capacity, encode_capacity
from forebay_schemas.contract.tiers import TIERS, Tier
from forebay_schemas.contract.worker_load import (
    CHANGES_MAX,
    TEXT_CHARS_MAX,
    BreakerReport,
    LimitedBy,
    LimitStep,
    OverloadState,
    WorkerLoad,
    load_of,
    with_load,
)
from forebay_schemas.estimate.pool import TierRecords, load_of_pool
from simulated.capacities import make_capacity

HIGH, MID, LOW = TIERS


def worker(name: str, share: int, seconds: float | None, /, **load: Any) -> Capacity:
    capacity = make_capacity(name, limit_requests=100, share_requests=share, service_seconds=seconds)
    return with_load(capacity, WorkerLoad(**load)) if load else capacity


def test_a_load_comes_back_and_an_older_worker_has_none() -> None:
    full = WorkerLoad(
        waiting_requests={HIGH: 3},
        work_seconds={HIGH: 1.5},
        wait_correction={HIGH: (200, 1.1, 1.6)},
        limited_by=LimitedBy(signal="limit", value=8, threshold=8),
        limit_changes=[LimitStep(at_ms=1, before=8, after=7, cause="HTTP 429")],
        overload=OverloadState(level="shed_low", sheds=[LOW], cause="a new high request waits"),
        breaker=BreakerReport(state="open", error="refused", fix="start it"),
    )
    decoded = decode_capacity(encode_capacity(with_load(make_capacity(), full)))
    assert decoded is not None
    assert load_of(decoded) == full
    assert load_of(make_capacity()) is None
    older = msgspec.json.decode(encode_capacity(make_capacity()))
    del older["load"]
    found = decode_capacity(msgspec.json.encode(older))
    assert found is not None
    assert load_of(found) is None


@pytest.mark.parametrize(
    "load", [{"work_seconds": {"high": -1}}, {"running_requests": 7}, "much", {"limited_by": {"signal": 1}}]
)
def test_an_invalid_load_does_not_void_the_capacity(load: Any) -> None:
    value = msgspec.json.encode(msgspec.json.decode(encode_capacity(make_capacity("w-9"))) | {"load": load})
    decoded = decode_capacity(value)
    assert decoded is not None
    assert decoded.worker == "w-9"
    assert load_of(decoded) is None


def test_the_largest_load_fits_into_four_kibibytes() -> None:
    text = "x" * TEXT_CHARS_MAX
    largest = WorkerLoad(
        waiting_requests=dict.fromkeys(TIERS, 100_000),
        running_requests=dict.fromkeys(TIERS, 100_000),
        open_slots=dict.fromkeys(TIERS, 100_000),
        work_seconds=dict.fromkeys(TIERS, 604_799.123),
        arriving=dict.fromkeys(TIERS, 604_799.123),
        service_seconds=dict.fromkeys(TIERS, 604_799.123),
        wait_correction=dict.fromkeys(TIERS, (200, 9.123, 9.876)),
        limited_by=LimitedBy(signal=text, value=1e15, threshold=1e15),
        limit_changes=[LimitStep(at_ms=2**52, before=100_000, after=99_999, cause=text)] * CHANGES_MAX,
        overload=OverloadState(level=text, sheds=list(TIERS), cause=text),
        breaker=BreakerReport(state=text, error=text, fix=text),
    )
    capacity = with_load(make_capacity(), largest)
    assert load_of(capacity) == largest
    assert len(encode_capacity(capacity)) <= 4096


def test_workers_count_by_their_rates() -> None:
    # 4 and 1 requests a second: the first has 8 s of its work waiting, the second 8 s of its own.
    fast = worker("a", 8, 2.0, waiting_requests={HIGH: 32}, work_seconds={HIGH: 8.0})
    slow = worker("b", 2, 2.0, waiting_requests={HIGH: 8}, work_seconds={HIGH: 8.0})
    found = load_of_pool([fast, slow], None)
    assert found.rate == 5.0
    assert found.tiers[HIGH].work_seconds == pytest.approx(8.0)
    assert found.cost_seconds[HIGH] == pytest.approx(0.2), "by those that wait and those that ended alike"
    assert found.tiers[HIGH].waiting_requests == 40


def test_unread_records_cost_as_much_as_those_in_the_lanes_and_those_that_ended() -> None:
    at_work = worker(
        "a",
        4,
        1.0,
        waiting_requests={HIGH: 10},
        work_seconds={HIGH: 5.0},
        running_requests={HIGH: 4},
        service_seconds={HIGH: 1.0, LOW: 3.0},
    )
    records = {HIGH: TierRecords(unfinished=34, running=4), LOW: TierRecords(unfinished=8)}
    found = load_of_pool([at_work], records)
    assert found.tiers[HIGH].waiting_requests == 30
    # Ten in the lane at 0.5 s, and as if ten more at the 0.25 s of those that ended.
    assert found.cost_seconds[HIGH] == pytest.approx(0.375)
    assert found.tiers[HIGH].work_seconds == pytest.approx(5.0 + 20 * 0.375)
    assert found.tiers[LOW].work_seconds == pytest.approx(8 * 3.0 / 4)
    assert found.service_seconds == {HIGH: 1.0, MID: 1.0, LOW: 3.0}


def test_a_worker_of_an_older_version_counts_by_the_offsets() -> None:
    found = load_of_pool([worker("old", 4, 2.0)], {MID: TierRecords(unfinished=10, running=4, arriving_per_second=1.0)})
    assert found.tiers[MID].work_seconds == pytest.approx(3.0)
    assert found.tiers[MID].arriving == pytest.approx(0.5)
    assert found.tiers[MID].open_slots == 0


def test_retries_that_no_worker_holds_wait_for_their_delay() -> None:
    holds = worker("a", 1, 1.0, waiting_requests={HIGH: 5}, work_seconds={HIGH: 5.0})
    found = load_of_pool([holds], {HIGH: TierRecords(unfinished=3, retries={1.0: 3, 30.0: 7})})
    assert found.tiers[HIGH].waiting_requests == 5
    assert found.tiers[HIGH].retries == ((1.0, 1.0), (30.0, 7.0)), "two of the first are in the lane"


def test_slots_of_a_worker_that_drains_or_is_not_served_are_not_open() -> None:
    drains = msgspec.structs.replace(worker("a", 4, 1.0, open_slots={HIGH: 4}), draining=True)
    broken = worker("b", 4, 1.0, open_slots={HIGH: 4}, breaker=BreakerReport(state="open"))
    serves = worker("c", 4, 1.0, open_slots={HIGH: 2})
    found = load_of_pool([drains, broken, serves], None)
    assert (found.workers, found.serving_workers, found.tiers[HIGH].open_slots) == (3, 1, 2)


def test_corrections_count_by_their_starts() -> None:
    one = worker("a", 4, 1.0, wait_correction={HIGH: (150, 1.0, 1.2)})
    two = worker("b", 4, 1.0, wait_correction={HIGH: (50, 2.0, 3.2)})
    found = load_of_pool([one, two], None).corrections
    assert set(found) == {HIGH}
    assert found[HIGH].starts == 200
    assert [found[HIGH].p50, found[HIGH].p90] == pytest.approx([1.25, 1.7])


@pytest.mark.parametrize(("workers", "rate"), [([], 0.0), ([worker("a", 4, None)], None)])
def test_without_a_rate_there_are_no_waits(workers: list[Capacity], rate: float | None) -> None:
    found = load_of_pool(workers, {HIGH: TierRecords(unfinished=3)})
    assert found.rate == rate
    assert found.waits() == {}
    assert found.tiers[HIGH].waiting_requests == 3


def test_waits_are_told_as_median_and_p90() -> None:
    busy = worker(
        "a", 4, 2.0, waiting_requests={HIGH: 20}, work_seconds={HIGH: 9.5}, wait_correction={HIGH: (200, 1.1, 1.5)}
    )
    wait = load_of_pool([busy], None).waits()[HIGH]
    assert [wait.raw_seconds, wait.p50_seconds, wait.p90_seconds] == pytest.approx([9.5, 10.5, 14.5])


def test_tiers_are_those_of_the_contract() -> None:
    assert set(load_of_pool([], None).tiers) == set(Tier)
