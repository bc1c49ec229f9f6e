"""Loads that are made rather than recorded: a pulse, and a steady overload in which the engine goes wrong. Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import mean, median

from benchmarks.pacing.engine import Fault
from benchmarks.pacing.scores import percentile
from benchmarks.pacing.virtual import Run
from benchmarks.pacing.workloads import Arrival, Hint, hint_max_tokens, work_seconds
from forebay_sandbox.engine.physics import EnginePhysics
from forebay_schemas.contract.tiers import Tier

PROMPT_TOKENS, OUTPUT_TOKENS = 1046, 196
"""The medians of the conv workload."""

SUSTAINED_OVER_VALLEY = 1.5
PULSE_OVER_VALLEY = 4.0
PULSE_SECONDS = 60.0
PULSE_TIERS = (Tier.LOW, Tier.HIGH, Tier.LOW, Tier.MID)
"""A quarter high, a quarter mid, half low."""
PULSE_DEADLINE_SECONDS = {Tier.HIGH: 60.0, Tier.MID: 120.0, Tier.LOW: 600.0}
"""Long enough that no request has to be dropped: at full load the engine takes 25 s for one of them, and the high and
mid ones alone exceed it during the pulse."""

STEADY_SECONDS = 300.0
STEADY_OVER_SUSTAINED = 1.1
STEADY_DEADLINE_SECONDS = 60.0

WORKS_AGAIN_SHARE = 0.9


def sustained_per_second(engine: EnginePhysics) -> float:
    """Requests like conv's median that a full batch gets done in a second."""
    return 1 / work_seconds(_request(0.0, Tier.MID, 1.0), engine)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulse:
    """``ideal_seconds``: when a server that is never idle while something waits, and does what the engine sustains, has
    done them all."""

    offered: list[Arrival]
    ideal_seconds: float


def pulse(engine: EnginePhysics, *, seed: int, seconds: float = PULSE_SECONDS) -> Pulse:
    """A valley of ``seconds``, four times its rate for the same time, and the valley again until an ideal server has
    nothing left."""
    chance = random.Random(f"pulse {seed}")
    sustained = sustained_per_second(engine)
    valley = sustained / SUSTAINED_OVER_VALLEY
    offered: list[Arrival] = []
    now = ideal = 0.0
    while True:
        rate = valley * (PULSE_OVER_VALLEY if seconds <= now < 2 * seconds else 1.0)
        now += chance.expovariate(rate)
        if now > 2 * seconds and now > ideal:
            return Pulse(offered=offered, ideal_seconds=ideal)
        tier = PULSE_TIERS[len(offered) % len(PULSE_TIERS)]
        offered.append(_hinted(_request(now, tier, PULSE_DEADLINE_SECONDS[tier]), chance, row=len(offered)))
        ideal = max(ideal, now) + 1 / sustained


@dataclass(frozen=True, slots=True, kw_only=True)
class PulseScore:
    """Score of a pulse. ``time_ratio``: time until all was done, over the ideal server's time."""

    high_wait_p95_seconds: float
    lost: int
    """Dropped, late or refused for good: all had time enough."""
    time_ratio: float
    idle_waiting_share: float


def score_pulse(run: Run, ideal_seconds: float) -> PulseScore:
    ledger = run.ledger
    waits = sorted(
        ledger.started_at.get(key, run.ended_seconds) - arrival.at_seconds
        for key, arrival in enumerate(ledger.offered)
        if arrival.tier is Tier.HIGH
    )
    in_time = sum(finished <= ledger.offered[key].deadline_seconds for key, finished in ledger.finished_at.items())
    return PulseScore(
        high_wait_p95_seconds=percentile(waits, 95),
        lost=len(ledger.offered) - in_time,
        time_ratio=max(ledger.finished_at.values(), default=0.0) / ideal_seconds,
        idle_waiting_share=run.idle_waiting_seconds / run.waiting_seconds if run.waiting_seconds else 0.0,
    )


def steady(engine: EnginePhysics, *, seed: int) -> list[Arrival]:
    """A tenth more than the engine sustains, for five minutes."""
    chance = random.Random(f"steady {seed}")
    rate = STEADY_OVER_SUSTAINED * sustained_per_second(engine)
    offered: list[Arrival] = []
    now = chance.expovariate(rate)
    while now < STEADY_SECONDS:
        offered.append(_hinted(_request(now, Tier.MID, STEADY_DEADLINE_SECONDS), chance, row=len(offered)))
        now += chance.expovariate(rate)
    return offered


REFUSALS = (
    Fault(at_seconds=60.0, for_seconds=60.0, refused_share=0.1, refused_status=429),
    Fault(at_seconds=180.0, for_seconds=10.0, refused_share=1.0, refused_status=503),
)
"""For a minute one submit in ten is answered 429; later all are answered 503 for ten seconds."""

SLOW = (Fault(at_seconds=120.0, for_seconds=60.0, speed=0.7),)
"""The engine loses 30 % of its speed for a minute."""

RESTART = (Fault(at_seconds=120.0, for_seconds=5.0, down=True),)
"""The engine is gone for five seconds, and with it what it ran."""

FAULTS = {"refusals": REFUSALS, "slow": SLOW, "restart": RESTART}
SETTLE_SECONDS = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """A run with a fault. Work is a share of the engine's own best (at its speed of the moment)."""

    work_before: float
    work_during: float
    work_after: float
    recovered_seconds: float
    """From the (last) fault's end until the rate was nine tenths of what it had been, over three seconds."""
    swing_during: float
    swing_after: float
    """The greatest distance of the limit, all workers' together, from its median, as a share of it, once settled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultScore(Recovery):
    """A steady overload with a fault in it."""

    on_time_share: float
    lost_to_refusals: int
    """Dropped because the engine refused or lost them, though they had time left."""


def score_faults(run: Run, faults: Sequence[Fault]) -> FaultScore:
    begins = min(fault.at_seconds for fault in faults)
    last = max(faults, key=lambda fault: fault.at_seconds)
    ends = last.at_seconds + last.for_seconds
    ledger = run.ledger
    in_time = sum(finished <= ledger.offered[key].deadline_seconds for key, finished in ledger.finished_at.items())
    lost = sum(
        reason.startswith(("refused", "failed")) and ledger.dropped_at[key] < ledger.offered[key].deadline_seconds
        for key, reason in ledger.dropped.items()
    )

    def work(since: float, until: float) -> float:
        return _mean([s.work_share for s in run.samples if since + 1 < s.at_seconds <= until])

    before = work(begins - 30.0, begins)
    return FaultScore(
        on_time_share=in_time / len(ledger.offered),
        lost_to_refusals=lost,
        work_before=before,
        work_during=work(last.at_seconds, ends) / last.speed,
        work_after=work(ends, STEADY_SECONDS),
        recovered_seconds=_recovered_seconds(run, ends, WORKS_AGAIN_SHARE * before),
        swing_during=_swing(run, last.at_seconds + SETTLE_SECONDS, ends),
        swing_after=_swing(run, ends + SETTLE_SECONDS, STEADY_SECONDS),
    )


def _recovered_seconds(run: Run, ends: float, work_share: float) -> float:
    after = [sample for sample in run.samples if ends <= sample.at_seconds <= STEADY_SECONDS]
    for first, *others in zip(after, after[1:], after[2:], strict=False):
        if _mean([first.work_share, *(each.work_share for each in others)]) >= work_share:
            return first.at_seconds - ends
    return STEADY_SECONDS - ends


def _swing(run: Run, since: float, until: float) -> float:
    limits = [sample.limit_requests for sample in run.samples if since <= sample.at_seconds <= until]
    if not limits or not (middle := median(limits)):
        return 0.0
    return max(abs(limit - middle) for limit in limits) / middle


def _mean(values: Sequence[float]) -> float:
    return mean(values) if values else 0.0


def _request(at_seconds: float, tier: Tier, allowed_seconds: float) -> Arrival:
    return Arrival(
        at_seconds=at_seconds,
        tier=tier,
        prompt_tokens=PROMPT_TOKENS,
        output_tokens=OUTPUT_TOKENS,
        deadline_seconds=at_seconds + allowed_seconds,
        hint_max_tokens=OUTPUT_TOKENS,
        biz_type="chat",
        row=0,
    )


def _hinted(arrival: Arrival, chance: random.Random, *, row: int) -> Arrival:
    hint = hint_max_tokens(arrival.output_tokens, hint=Hint.NOISY, noise=chance)
    return replace(arrival, hint_max_tokens=hint, row=row)
