"""The estimated wait: what waits, what arrives above, what is guaranteed, what is free, and the correction."""

from __future__ import annotations

import math

import pytest

from forebay_schemas.contract.tiers import TIERS, Tier
from forebay_schemas.estimate.accuracy import STARTS_KEPT, STARTS_MIN, CounterRate, RecentRate, WaitAccuracy
from forebay_schemas.estimate.waits import LEFT_MIN, UNCORRECTED, Correction, TierLoad, corrected, raw_waits

HIGH, MID, LOW = TIERS
NO_SHARES: dict[Tier, float] = {}


def load(requests: float = 0, seconds: float = 0, **fields: float) -> TierLoad:
    return TierLoad(waiting_requests=requests, work_seconds=seconds, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("loads", "waits"),
    [
        ({}, [0, 0, 0]),
        ({HIGH: load(3, 1.5), MID: load(15, 7.5), LOW: load(100, 50)}, [1.5, 9, 59]),
        ({LOW: load(100, 50)}, [0, 0, 50]),
        # 100 requests at 10 a second, while 8 a second arrive above: 50 s, not 10 s.
        ({HIGH: load(arriving=0.8), MID: load(100, 10)}, [0, 50, 50]),
        ({HIGH: load(arriving=0.5), MID: load(arriving=0.4), LOW: load(10, 2)}, [0, 0, 20]),
        # What arrives above is more than the pool can do: without a guaranteed share the wait is bounded by LEFT_MIN.
        ({HIGH: load(arriving=3.0), MID: load(1, 1)}, [0, 1 / LEFT_MIN, 1 / LEFT_MIN]),
    ],
    ids=["nothing", "above goes first", "below does not", "arrives above", "arrives in two", "overload above"],
)
def test_a_tier_waits_for_what_waits_and_arrives_in_it_and_above(
    loads: dict[Tier, TierLoad], waits: list[float]
) -> None:
    found = raw_waits(loads, minimum_shares=NO_SHARES)
    assert [found[tier] for tier in TIERS] == pytest.approx(waits)


def test_the_guaranteed_share_bounds_a_wait_and_slows_the_tiers_above() -> None:
    shares = {MID: 0.2, LOW: 0.1}
    loads = {HIGH: load(100, 70, arriving=1.5), MID: load(10, 2), LOW: load(10, 2.7, request_seconds=0.3)}
    found = raw_waits(loads, minimum_shares=shares)
    assert found[HIGH] == pytest.approx(70 / (1 - 0.3)), "the lower tiers take 30 % while they wait"
    assert found[MID] == pytest.approx(2 / 0.2)
    assert found[LOW] == pytest.approx(3 / 0.1)
    alone = raw_waits({HIGH: load(100, 70)}, minimum_shares=shares)
    assert alone[HIGH] == pytest.approx(70), "nothing waits below"


@pytest.mark.parametrize(("requests", "slots", "wait"), [(0, 1, 0), (3, 4, 0), (4, 4, 0), (8, 4, 4), (8, 0, 8)])
def test_what_free_slots_take_does_not_wait(requests: int, slots: int, wait: float) -> None:
    loads = {MID: TierLoad(waiting_requests=requests, work_seconds=requests, open_slots=slots)}
    assert raw_waits(loads, minimum_shares=NO_SHARES)[MID] == pytest.approx(wait)


def test_retries_count_as_far_as_they_become_due_during_the_wait() -> None:
    def high(delay: float, seconds: float) -> float:
        loads = {HIGH: TierLoad(waiting_requests=10, work_seconds=10, retries=((delay, seconds),))}
        return raw_waits(loads, minimum_shares=NO_SHARES)[HIGH]

    assert high(1, 4) == pytest.approx(14), "all are due within the wait"
    assert 10 + 4 / 3 <= high(30, 4) < 12, "a third of them"
    assert high(0, 4) == pytest.approx(14)
    idle = raw_waits({HIGH: TierLoad(retries=((5, 4.0),))})
    assert idle[HIGH] == 0


def test_waits_never_shrink_as_load_grows() -> None:
    for tier in TIERS:
        before = -1.0
        for work in range(0, 200, 7):
            loads = {HIGH: load(5, 3, arriving=0.4), MID: load(9, 4, arriving=0.3), LOW: load(20, 40)}
            loads[tier] = load(work + 1, work + 1, arriving=0.2)
            found = raw_waits(loads)[tier]
            assert found >= before
            before = found


# Correction


def test_half_the_starts_come_before_the_median_and_nine_tenths_before_the_p90() -> None:
    accuracy = WaitAccuracy()
    for number in range(STARTS_KEPT):
        accuracy.started(HIGH, estimated_seconds=9.5, actual_seconds=9.5 + number / 10)
    found = accuracy.correction(HIGH)
    assert found.starts == STARTS_KEPT
    assert [found.p50, found.p90] == pytest.approx([2.0, 2.8])
    wait = corrected(9.5, found)
    assert [wait.p50_seconds, wait.p90_seconds] == pytest.approx([19.5, 27.5])
    assert accuracy.correction(MID) == UNCORRECTED


def test_only_the_last_starts_count_and_a_few_are_too_few() -> None:
    accuracy = WaitAccuracy()
    for _ in range(STARTS_MIN - 1):
        accuracy.started(LOW, estimated_seconds=1.0, actual_seconds=90.0)
    assert accuracy.correction(LOW) == UNCORRECTED
    for _ in range(STARTS_KEPT):
        accuracy.started(LOW, estimated_seconds=1.0, actual_seconds=1.0)
    assert accuracy.correction(LOW) == Correction(starts=STARTS_KEPT, p50=1.0, p90=1.0)


@pytest.mark.parametrize(("estimated", "actual"), [(0.0, 1e9), (1e9, 0.0)])
def test_no_start_makes_a_correction_absurd(estimated: float, actual: float) -> None:
    accuracy = WaitAccuracy()
    for _ in range(STARTS_KEPT):
        accuracy.started(MID, estimated_seconds=estimated, actual_seconds=actual)
    assert 0.1 <= accuracy.correction(MID).p90 <= 10


def test_short_waits_are_corrected_by_seconds_and_none_is_negative() -> None:
    late = corrected(0.0, Correction(starts=200, p50=1.0, p90=1.4))
    assert [late.p50_seconds, late.p90_seconds] == pytest.approx([0.0, 0.2])
    early = corrected(0.0, Correction(starts=200, p50=0.5, p90=0.8))
    assert (early.p50_seconds, early.p90_seconds) == (0.0, 0.0)
    assert math.isinf(corrected(math.inf).p90_seconds)


# Rate


def test_the_rate_is_the_mean_of_ten_seconds() -> None:
    rate = RecentRate(0.0)
    assert rate.per_second(0.0) == 0.0
    for tenth in range(50):
        rate.add(tenth / 10, 2.0)
    assert rate.per_second(5.0) == pytest.approx(20.0), "of a shorter time while it is new"
    for tenth in range(50, 300):
        rate.add(tenth / 10, 1.0)
    assert rate.per_second(30.0) == pytest.approx(10.0, rel=0.02)
    assert rate.per_second(41.0) == 0.0


def test_the_growth_of_a_counter_is_the_mean_of_ten_seconds_too() -> None:
    rate = CounterRate()
    assert rate.per_second(0.0, 1_000) is None
    assert rate.per_second(3.0, 1_030) == pytest.approx(10.0)
    found = [rate.per_second(float(second), 1_030 + 20 * (second - 3)) for second in range(6, 40, 3)]
    assert found[-1] == pytest.approx(20.0)
    assert rate.per_second(42.0, 5) is None, "topics made anew"
    assert rate.per_second(44.0, 15) == pytest.approx(5.0)


def test_a_million_additions_keep_a_hundred_entries() -> None:
    rate = RecentRate(0.0)
    for number in range(100_000):
        rate.add(number / 5_000, 1.0)
    assert len(rate._entries) <= 201
    assert rate.per_second(20.0) == pytest.approx(5_000, rel=0.02)
