"""A plan's waits and drain against a simulated run."""

from __future__ import annotations

import random
import statistics

import pytest
from benchmarks.pacing.lanes_front import make_lanes_front
from benchmarks.pacing.virtual import Run, run
from benchmarks.pacing.workloads import Arrival, physics

from forebay_producer.planning.demand import Service
from forebay_producer.planning.waits import Flow, floods, waits
from forebay_schemas.contract.tiers import TIERS, Tier
from forebay_worker.pacing.policies.fixed import FixedLimit

ENGINE = physics()
PROMPT_TOKENS, OUTPUT_TOKENS, LIMIT = 1000, 100, 40
PEAK_SECONDS, ALL_SECONDS = 60.0, 150.0
SEEDS = (1,)
RATES = {Tier.HIGH: (3.0, 1.0), Tier.MID: (3.0, 1.0), Tier.LOW: (8.0, 2.0)}
"""At the peak, and afterwards."""


def engine_service() -> Service:
    """Service times as a calibration finds them: a request among `LIMIT` takes its own steps, and the prompts of all
    others."""
    steps = OUTPUT_TOKENS * ENGINE.a_seconds
    own = OUTPUT_TOKENS * ENGINE.b_seconds + PROMPT_TOKENS * ENGINE.c_seconds
    return Service(seconds=steps + own * LIMIT, limit_requests=LIMIT, cv=0.1)


def played(seed: int) -> Run:
    chance = random.Random(seed)
    arrivals: list[Arrival] = []
    for tier, (peak, rest) in RATES.items():
        now = 0.0
        while (now := now + chance.expovariate(peak if now < PEAK_SECONDS else rest)) < ALL_SECONDS:
            arrivals.append(
                Arrival(
                    at_seconds=now,
                    tier=tier,
                    prompt_tokens=PROMPT_TOKENS,
                    output_tokens=OUTPUT_TOKENS,
                    deadline_seconds=now + 3600.0,
                    hint_max_tokens=OUTPUT_TOKENS,
                    biz_type="chat_completion",
                    row=len(arrivals),
                )
            )
    arrivals.sort(key=lambda arrival: arrival.at_seconds)
    return run(
        arrivals,
        physics=ENGINE,
        make_front=lambda engine, ledger, clock: make_lanes_front(
            engine, ledger, clock, policy=FixedLimit(limit_requests=LIMIT)
        ),
        seed=seed,
    )


def test_backlog_drain_and_waits_come_true_in_a_simulated_run() -> None:
    service = engine_service()
    flows = {
        tier: Flow(peak_per_second=p, peak_seconds=PEAK_SECONDS, rest_per_second=r) for tier, (p, r) in RATES.items()
    }
    flood = floods(flows, done_per_second=service.per_second)
    predicted = waits(
        places=LIMIT,
        service_seconds=service.seconds,
        service_cv=service.cv,
        per_second=[RATES[tier][0] for tier in TIERS],
        is_flooded=True,
    )
    backlogs: list[float] = []
    drains: list[float] = []
    waited: dict[Tier, list[float]] = {tier: [] for tier in TIERS}
    for seed in SEEDS:
        found = played(seed)
        ledger = found.ledger
        assert not ledger.dropped
        backlogs.append(max(sample.waiting for sample in found.samples))
        drained = next(s.at_seconds for s in found.samples if s.at_seconds > PEAK_SECONDS and s.waiting <= 2)
        drains.append(drained - PEAK_SECONDS)
        for tier, seconds in waited.items():
            seconds += [
                ledger.started_at[key] - one.at_seconds
                for key, one in enumerate(ledger.offered)
                if one.tier is tier and 10 < one.at_seconds < PEAK_SECONDS
            ]
    drain, longest = flood[Tier.LOW].drained_seconds, flood[Tier.LOW].wait_seconds
    assert drain is not None
    assert statistics.fmean(backlogs) == pytest.approx(flood[Tier.LOW].backlog_requests, rel=0.35)
    assert statistics.fmean(drains) == pytest.approx(drain, rel=0.5)
    assert max(waited[Tier.LOW]) == pytest.approx(longest, rel=0.6)
    assert predicted[0] is not None
    assert predicted[1] is not None
    # Some tenths of a second, by formulas for places that do not slow each other down.
    assert statistics.fmean(waited[Tier.HIGH]) <= predicted[0].mean_seconds + 0.5
    assert statistics.fmean(waited[Tier.MID]) <= 3 * predicted[1].mean_seconds + 0.5
