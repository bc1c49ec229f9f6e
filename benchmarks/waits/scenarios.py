"""Loads, faults and what they should show. Pure but for virtual runs."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from benchmarks.pacing.contestants import POLICIES
from benchmarks.pacing.engine import Fault
from benchmarks.pacing.scenarios import OUTPUT_TOKENS, PROMPT_TOKENS, sustained_per_second
from benchmarks.pacing.shared_front import Scale
from benchmarks.pacing.virtual import run
from benchmarks.pacing.workloads import Arrival, Hint, hint_max_tokens
from benchmarks.waits.front import EstimatingFront, Rules, make_estimating_front
from forebay_producer.admission.decision import AdmissionPolicy
from forebay_sandbox.engine.physics import EnginePhysics
from forebay_schemas.contract.tiers import DEFAULT_TIER_TIMES, Tier

WORKERS = 2
WARM_SECONDS, UNTIL_SECONDS = 60.0, 300.0
"""Between these moments estimates are judged: models and corrections learn first, and the load goes on afterwards."""

SHORT_SECONDS = 0.5
"""Below it only the absolute error counts."""

TIERS_DRAWN = (Tier.LOW, Tier.HIGH, Tier.LOW, Tier.MID)
PATIENT_SECONDS = 86_400.0
SIZES = (0.25, 0.5, 0.75, 1.0, 1.0, 1.25, 1.5, 1.75)
"""Factors of the output's length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """``load(seconds)``: the arrivals as a share of what the engine sustains."""

    load: Callable[[float], float]
    seconds: float = 600.0
    faults: Sequence[Fault] = ()
    scales: Sequence[Scale] = (Scale(0.0, WORKERS),)
    tiers: Sequence[Tier] = TIERS_DRAWN
    deadline_seconds: Mapping[Tier, float] = field(default_factory=lambda: dict.fromkeys(Tier, PATIENT_SECONDS))
    rules: Rules = field(default_factory=Rules)
    is_steady: bool = False


def constant(load: float) -> Callable[[float], float]:
    """The same load all the time."""
    return lambda _: load


SCENARIOS: Mapping[str, Scenario] = {
    "load .5": Scenario(load=constant(0.5), is_steady=True),
    "load .8": Scenario(load=constant(0.8), is_steady=True),
    "load .95": Scenario(load=constant(0.95), is_steady=True),
    "load 1.2": Scenario(load=constant(1.2)),
    "pulse 4x": Scenario(load=lambda at: 4 / 1.5 if 100 <= at < 130 else 1 / 1.5),
    "worker lost": Scenario(load=constant(0.95), scales=(Scale(0.0, WORKERS), Scale(150.0, WORKERS - 1))),
    "engine 30 % slower": Scenario(load=constant(0.8), faults=(Fault(at_seconds=120.0, for_seconds=120.0, speed=0.7),)),
}

OVERLOAD = Scenario(
    load=lambda at: 0.5 if at < WARM_SECONDS else 2.0,
    seconds=WARM_SECONDS + 120.0,
    tiers=(Tier.HIGH, Tier.MID),
    deadline_seconds={Tier.HIGH: 30.0, Tier.MID: 60.0},
    rules=Rules(policy=AdmissionPolicy(service_seconds_max={}), times=DEFAULT_TIER_TIMES),
)
"""Twice the sustainable load for two minutes, after a quiet one, with admission. Here a request takes about 10 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """An estimate and what came of it, in seconds. ``at_seconds``: of the arrival."""

    at_seconds: float
    tier: Tier
    p50_seconds: float
    p90_seconds: float
    actual_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """``error_ratio``: median error of the P50 over the actual wait, or over half a second if that is longer.
    ``long_error_ratio``: the same of `long_waits`, those of which estimate or actual wait is at least half a second.
    ``within_p90``: share that started before the P90, or within half a second."""

    waits: int
    long_waits: int
    error_ratio: float | None
    long_error_ratio: float | None
    within_p90: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A run: its pairs in the order of arrival, and what became of the requests that came after `WARM_SECONDS`.
    ``on_time``: of the admitted."""

    pairs: list[Pair]
    offered: int
    refused: int
    admitted: int
    on_time: int
    retry_after_seconds: list[float]


def play(scenario: Scenario, *, seed: int) -> Outcome:
    """Runs a scenario."""
    engine = EnginePhysics()
    offered = _arrivals(scenario, engine, seed=seed)
    made: list[EstimatingFront] = []
    make = make_estimating_front(
        made, make_policy=lambda: POLICIES["slo_aimd"](engine), scales=scenario.scales, rules=scenario.rules
    )
    ledger = run(offered, physics=engine, make_front=make, seed=seed, faults=scenario.faults).ledger
    [front] = made
    pairs = [
        Pair(
            at_seconds=offered[key].at_seconds,
            tier=offered[key].tier,
            p50_seconds=wait.p50_seconds,
            p90_seconds=wait.p90_seconds,
            actual_seconds=ledger.started_at[key] - offered[key].at_seconds,
        )
        for key, wait in sorted(front.estimated.items())
        if key in ledger.started_at
    ]
    counted = [key for key, arrival in enumerate(offered) if arrival.at_seconds >= WARM_SECONDS]
    admitted = [key for key in counted if key not in front.not_admitted]
    return Outcome(
        pairs=pairs,
        offered=len(counted),
        refused=len(counted) - len(admitted),
        admitted=len(admitted),
        on_time=sum(ledger.finished_at.get(key, math.inf) <= offered[key].deadline_seconds for key in admitted),
        retry_after_seconds=[each.retry_after_seconds or 0.0 for each in front.not_admitted.values()],
    )


def accuracy(pairs: Sequence[Pair]) -> Accuracy:
    """How good the estimates were, after `WARM_SECONDS`."""
    known = [pair for pair in pairs if WARM_SECONDS <= pair.at_seconds < UNTIL_SECONDS]
    long = [pair for pair in known if max(pair.p50_seconds, pair.actual_seconds) >= SHORT_SECONDS]

    def error(pair: Pair) -> float:
        return abs(pair.p50_seconds - pair.actual_seconds) / max(pair.actual_seconds, SHORT_SECONDS)

    within = sum(pair.actual_seconds <= max(pair.p90_seconds, SHORT_SECONDS) for pair in known)
    return Accuracy(
        waits=len(known),
        long_waits=len(long),
        error_ratio=round(median(map(error, known)), 3) if known else None,
        long_error_ratio=round(median(map(error, long)), 3) if long else None,
        within_p90=round(within / len(known), 3) if known else None,
    )


def _arrivals(scenario: Scenario, engine: EnginePhysics, *, seed: int) -> list[Arrival]:
    chance = random.Random(f"waits {seed}")
    sustained = sustained_per_second(engine)
    offered: list[Arrival] = []
    now = 0.0
    while True:
        now += chance.expovariate(scenario.load(now) * sustained)
        if now >= scenario.seconds:
            return offered
        tier = chance.choice(scenario.tiers)
        output_tokens = round(OUTPUT_TOKENS * chance.choice(SIZES))
        offered.append(
            Arrival(
                at_seconds=now,
                tier=tier,
                prompt_tokens=PROMPT_TOKENS,
                output_tokens=output_tokens,
                deadline_seconds=now + scenario.deadline_seconds[tier],
                hint_max_tokens=hint_max_tokens(output_tokens, hint=Hint.NOISY, noise=chance),
                biz_type="chat",
                row=len(offered),
            )
        )
