"""The exporter's figures: rate, waits and risks, and counters that only grow."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from forebay_producer.cluster.backlog import PartitionState
from forebay_producer.exporter.figures import (
    RATIO_MAX,
    RISK_MAX,
    Age,
    PoolFigures,
    TierReading,
    figures_of,
)
from forebay_schemas.contract.coordination import REQUESTS_MAX, SECONDS_MAX, SERVICE_SECONDS_MIN, Capacity
from forebay_schemas.contract.tiers import DEFAULT_TIER_TIMES, TIERS, Tier, TierTimes, tier_times
from forebay_schemas.contract.worker_load import WorkerLoad, with_load
from forebay_schemas.estimate.pool import serving_rate
from simulated.capacities import make_capacity

LONG = tier_times({Tier.HIGH: 60_000}, {Tier.HIGH: 10_000})


def worker(
    share: int, service_seconds: float | None, *, draining: bool = False, times: TierTimes = DEFAULT_TIER_TIMES
) -> Capacity:
    return make_capacity(
        f"w-{share}",
        times,
        limit_requests=100,
        share_requests=share,
        service_seconds=service_seconds,
        draining=draining,
        incarnation=share,
    )


def partition(waiting: int, *, done: int = 0, running: int = 0) -> PartitionState:
    return PartitionState(first=0, end=done + waiting, committed=done, finished_beyond=0, running=running)


def pool(
    workers: list[Capacity],
    waiting: dict[Tier, int],
    *,
    retries: int = 0,
    running: int = 0,
    age: float = 0.0,
    ages: tuple[Age, ...] | None = None,
    heard_all: bool = True,
    done: int = 0,
    before: PoolFigures | None = None,
    times: TierTimes = DEFAULT_TIER_TIMES,
) -> PoolFigures:
    readings = {
        tier: TierReading(
            requests=(partition(waiting.get(tier, 0), done=done, running=running),),
            retries=(partition(retries),),
            ages=(Age(seconds=age, lived_seconds=age, ttl_seconds=None),) if ages is None else ages,
        )
        for tier in TIERS
    }
    return figures_of(readings, dead_lettered=done, workers=workers, heard_all=heard_all, before=before, times=times)


@pytest.mark.parametrize(
    ("workers", "rate"),
    [
        ([], 0.0),
        ([worker(4, None)], None),
        ([worker(4, 2.0)], 2.0),
        ([worker(4, 2.0), worker(8, 1.0)], 10.0),
        # As fast as the others, until it has answered itself.
        ([worker(4, 2.0), worker(8, None)], 6.0),
        ([worker(4, 2.0), worker(8, 1.0, draining=True)], 2.0),
        ([worker(8, 1.0, draining=True)], 0.0),
        ([worker(0, 1.0)], 0.0),
        # The most and the least that a worker can say.
        ([worker(REQUESTS_MAX, SERVICE_SECONDS_MIN)], 1e9),
        ([worker(1, SECONDS_MAX)], 1 / 604_800),
    ],
)
def test_the_rate_is_what_may_be_in_flight_by_what_a_request_takes(workers: list[Capacity], rate: float | None) -> None:
    assert serving_rate(workers) == rate


def test_a_tier_waits_for_what_is_ahead_in_it_and_above() -> None:
    figures = pool([worker(4, 2.0)], {Tier.HIGH: 3, Tier.MID: 15, Tier.LOW: 100})
    waits = [figures.tiers[tier].wait_seconds for tier in TIERS]
    # While they wait, mid has its guaranteed twentieth and low its hundredth.
    assert waits == pytest.approx([1.5 / 0.94, 9.0 / 0.99, 59.0])
    assert [figures.tiers[tier].risk for tier in TIERS] == pytest.approx([0.5 / 0.94, 0.5 / 0.99, 59 / 51_840])
    assert figures.limit_requests == 4


def test_what_arrives_above_lengthens_a_wait() -> None:
    reading = TierReading(requests=(partition(0),), retries=(), ages=())
    readings = {
        Tier.HIGH: replace(reading, arriving_per_second=8.0),
        Tier.MID: replace(reading, requests=(partition(100),)),
        Tier.LOW: reading,
    }
    figures = figures_of(
        readings, dead_lettered=0, workers=[worker(10, 1.0)], heard_all=True, before=None, times=DEFAULT_TIER_TIMES
    )
    assert [figures.tiers[tier].wait_seconds for tier in TIERS] == pytest.approx([0.0, 50.0, 0.1 / 0.01])


def test_free_slots_make_no_wait() -> None:
    idle = with_load(worker(4, 2.0), WorkerLoad(open_slots={Tier.HIGH: 4}))
    assert pool([idle], {Tier.HIGH: 4}).tiers[Tier.HIGH].wait_seconds == 0.0
    assert pool([idle], {Tier.HIGH: 6}).tiers[Tier.HIGH].wait_seconds == 1.0


def test_what_runs_waits_for_nobody_and_retries_wait_too() -> None:
    figures = pool([worker(1, 1.0)], {Tier.HIGH: 5}, running=2, retries=4)
    high = figures.tiers[Tier.HIGH]
    assert (high.backlog_records, high.retry_backlog_records, high.wait_seconds) == (5, 4, 7.0)


@pytest.mark.parametrize(
    ("workers", "waiting", "heard_all", "age", "wait_seconds", "risk"),
    [
        ([], 0, True, 0.0, 0.0, 0.0),
        ([], 1, True, 0.5, math.inf, RISK_MAX),
        # Nobody was heard yet, but for too short a time: the oldest has waited so long at least.
        ([], 1, False, 1.5, None, 0.5),
        ([worker(4, None)], 8, True, 6.0, None, 2.0),
        ([worker(4, 2.0)], 10_000, True, 6.0, 5_000.0, RISK_MAX),
    ],
)
def test_the_risk_is_finite_and_known_whatever_is_known_of_the_workers(
    workers: list[Capacity], waiting: int, heard_all: bool, age: float, wait_seconds: float | None, risk: float
) -> None:
    high = pool(workers, {Tier.HIGH: waiting}, heard_all=heard_all, age=age).tiers[Tier.HIGH]
    assert (high.wait_seconds, high.risk) == (wait_seconds, risk)


def test_counters_only_grow_until_the_topics_are_made_anew() -> None:
    first = pool([], {Tier.HIGH: 4}, done=100)
    assert (first.tiers[Tier.HIGH].enqueued, first.tiers[Tier.HIGH].dequeued, first.dead_lettered) == (104, 100, 100)
    # A commit that knows less of what is finished beyond it, and an end that a new leader does not have.
    second = pool([], {Tier.HIGH: 40}, done=60, before=first)
    assert (second.tiers[Tier.HIGH].enqueued, second.tiers[Tier.HIGH].dequeued, second.dead_lettered) == (104, 100, 100)
    third = pool([], {Tier.HIGH: 2}, done=1, before=second)
    assert (third.tiers[Tier.HIGH].enqueued, third.tiers[Tier.HIGH].dequeued, third.dead_lettered) == (3, 1, 1)


def aged(seconds: float, ttl_seconds: float | None, *, lived: float | None = None, tier: Tier | None = None) -> Age:
    lived_seconds = seconds if lived is None else lived
    return Age(seconds=seconds, lived_seconds=lived_seconds, ttl_seconds=ttl_seconds, expedited_tier=tier)


@pytest.mark.parametrize(
    ("ages", "times", "age_seconds", "ratio"),
    [
        ((), DEFAULT_TIER_TIMES, 0.0, 0.0),
        # A chat that may take a minute and takes 8 s is well; the same without a deadline of its own is late.
        ((aged(8.0, 60.0),), DEFAULT_TIER_TIMES, 8.0, 8 / 60),
        ((aged(8.0, None),), DEFAULT_TIER_TIMES, 8.0, 1.6),
        ((aged(8.0, None),), LONG, 8.0, 8 / 60),
        # The nearest to its deadline need not be the oldest.
        ((aged(8.0, 60.0), aged(3.0, 4.0)), LONG, 8.0, 0.75),
        ((aged(1.0, None, lived=43_200.0, tier=Tier.LOW),), DEFAULT_TIER_TIMES, 1.0, 0.5),
        ((aged(1.0, 0.0),), DEFAULT_TIER_TIMES, 1.0, RATIO_MAX),
        ((aged(900.0, 0.1),), DEFAULT_TIER_TIMES, 900.0, RATIO_MAX),
    ],
)
def test_an_age_is_judged_by_the_requests_own_deadline(
    ages: tuple[Age, ...], times: TierTimes, age_seconds: float, ratio: float
) -> None:
    high = pool([worker(4, 2.0, times=times)], {Tier.HIGH: 2}, running=2, ages=ages).tiers[Tier.HIGH]
    assert high.oldest_age_seconds == age_seconds
    assert high.oldest_age_ratio == pytest.approx(ratio)
    assert high.risk == 0, "nothing waits"


def test_what_is_finished_has_no_age() -> None:
    high = pool([worker(4, 2.0)], {}, ages=(aged(8.0, 10.0),)).tiers[Tier.HIGH]
    assert (high.oldest_age_seconds, high.oldest_age_ratio) == (0.0, 0.0)


def test_the_workers_tolerated_wait_makes_the_risk() -> None:
    assert pool([worker(4, 2.0)], {Tier.HIGH: 6}).tiers[Tier.HIGH].risk == 1.0
    assert pool([worker(4, 2.0, times=LONG)], {Tier.HIGH: 6}).tiers[Tier.HIGH].risk == pytest.approx(0.3)


def test_the_workers_deadlines_count_and_stay_when_there_is_none_any_more() -> None:
    own = tier_times({Tier.HIGH: 9_000}, {})
    cold = pool([], {}, times=own)
    assert (cold.times, cold.agreement) == (own, None)
    mixed = pool([worker(4, 2.0), worker(8, 2.0, times=LONG)], {}, before=cold, times=own)
    assert mixed.times == LONG
    assert mixed.agreement is not None
    assert mixed.agreement.differing == {"w-4": DEFAULT_TIER_TIMES}
    assert pool([], {}, before=mixed, times=own).times == LONG
