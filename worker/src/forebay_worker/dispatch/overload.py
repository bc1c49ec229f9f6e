"""The overload ladder: what waits too long is told first, then low requests that would be late are shed, then mid ones;
high never. Pure, but for a line in the log at each step; times are monotonic seconds that the caller passes in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

import structlog

from forebay_schemas.contract.tiers import DEFAULT_TIER_TIMES, Tier, TierTimes
from forebay_worker.request.work import Work

SHED_FOR: Final = (Tier.HIGH, Tier.MID)
"""The tiers whose waits have others shed. Nothing is shed for low: it is there to wait."""

UP_SHARE: Final = 0.7
"""Of what is tolerated, from where it goes up."""

UP_SECONDS: Final = 1.0
"""A single estimate is noise; two, a second apart, are not."""

DOWN_SHARE: Final = 0.5
DOWN_SECONDS: Final = 5.0
"""It goes down a step when no tier's wait was above this share for so long."""

ACT_SECONDS: Final = 3.0
"""A step has so long to show what it does before the next one up."""

LATE_SHARE: Final = 0.5
"""What is shed is predicted to end later than its deadline by more than this share of the prediction: an estimate is
easily off by that, and what is wrongly kept can still be dropped when its turn comes. On the pacing benchmark's mixed
load .1 costs 3 % of what is done in time, .3 costs .3 %, .5 less than can be told."""

STEPS_KEPT: Final = 20

log = structlog.get_logger("forebay.overload")


class OverloadLevel(IntEnum):
    """A rung of the ladder."""

    NORMAL = 0
    SHED_LOW = 1
    SHED_MID = 2


SHED_TIERS: Final[Mapping[OverloadLevel, tuple[Tier, ...]]] = {
    OverloadLevel.NORMAL: (),
    OverloadLevel.SHED_LOW: (Tier.LOW,),
    OverloadLevel.SHED_MID: (Tier.LOW, Tier.MID),
}
"""Of which tiers requests that would be late are shed, in this order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OverloadStep:
    """The level changed at ``at_ms`` (epoch). ``tier``: whose wait is the largest share of what it tolerates."""

    at_ms: int
    before: OverloadLevel
    after: OverloadLevel
    tier: Tier
    wait_seconds: float
    tolerated_seconds: float
    cause: str

    @property
    def direction(self) -> str:
        """``up`` or ``down``."""
        return "up" if self.after > self.before else "down"


class OverloadLadder:
    """Goes up while a tier waits for more than 70 % of what it tolerates, down when all wait for less than half."""

    def __init__(self, tier_times: TierTimes = DEFAULT_TIER_TIMES) -> None:
        self._tolerated_seconds = {tier: tier_times.wait_seconds(tier) for tier in SHED_FOR}
        self.level = OverloadLevel.NORMAL
        self.steps: deque[OverloadStep] = deque(maxlen=STEPS_KEPT)
        self.steps_total: dict[str, int] = {"up": 0, "down": 0}
        self._stepped_at = float("-inf")
        self._tight_since: float | None = None
        self._calm_since: float | None = None

    def status(self) -> dict[str, Any]:
        """For /status: the level, what is shed, and the last steps with their causes, latest last."""
        return {
            "level": self.level.name.lower(),
            "sheds": list(self.shed_tiers),
            "steps": [
                {
                    "at_ms": step.at_ms,
                    "before": step.before.name.lower(),
                    "after": step.after.name.lower(),
                    "cause": step.cause,
                }
                for step in self.steps
            ],
        }

    @property
    def cause(self) -> str:
        """Why the level is what it is; empty before the first step."""
        return self.steps[-1].cause if self.steps else ""

    @property
    def shed_tiers(self) -> tuple[Tier, ...]:
        """The tiers of which requests that would be late are shed now."""
        return SHED_TIERS[self.level]

    def step(self, now: float, now_ms: int, waits: Mapping[Tier, float]) -> OverloadStep | None:
        """Decides, once a second, by the estimated waits in seconds. Returns what changed, if anything did.

        ``now`` is monotonic, ``now_ms`` epoch milliseconds.

        Without any estimate (a backend that serves nobody has no pace) the level stays as it is.
        """
        shares = {tier: waits[tier] / seconds for tier, seconds in self._tolerated_seconds.items() if tier in waits}
        if not shares:
            self._tight_since = self._calm_since = None
            return None
        tier = max(shares, key=lambda each: shares[each])
        share = shares[tier]
        self._tight_since = _since(self._tight_since, now) if share >= UP_SHARE else None
        self._calm_since = _since(self._calm_since, now) if share < DOWN_SHARE else None
        is_tight = self._tight_since is not None and now - self._tight_since >= UP_SECONDS
        if is_tight and self.level < OverloadLevel.SHED_MID and now - self._stepped_at >= ACT_SECONDS:
            self._stepped_at = now
            return self._go(OverloadLevel(self.level + 1), now_ms, tier, waits[tier])
        is_calm = self._calm_since is not None and now - self._calm_since >= DOWN_SECONDS
        if is_calm and self.level > OverloadLevel.NORMAL:
            self._stepped_at = self._calm_since = now
            return self._go(OverloadLevel(self.level - 1), now_ms, tier, waits[tier])
        return None

    def _go(self, level: OverloadLevel, now_ms: int, tier: Tier, wait_seconds: float) -> OverloadStep:
        tolerated_seconds = self._tolerated_seconds[tier]
        share = f"a new {tier} request waits {wait_seconds:.2f} s, {wait_seconds / tolerated_seconds:.0%} of the "
        limit = (
            f"{UP_SHARE:.0%} is too much" if level > self.level else f"under {DOWN_SHARE:.0%} for {DOWN_SECONDS:g} s"
        )
        step = OverloadStep(
            at_ms=now_ms,
            before=self.level,
            after=level,
            tier=tier,
            wait_seconds=wait_seconds,
            tolerated_seconds=tolerated_seconds,
            cause=f"{share}{tolerated_seconds:g} s tolerated; {limit}",
        )
        self.level = level
        self.steps.append(step)
        self.steps_total[step.direction] += 1
        say = log.warning if step.direction == "up" else log.info
        say("overload", before=step.before.name.lower(), after=level.name.lower(), cause=step.cause)
        return step


def _since(known: float | None, now: float) -> float:
    return now if known is None else known


@dataclass(frozen=True, slots=True)
class Shed:
    """A request to be shed, and the seconds from now to the end that it would have had."""

    work: Work
    predicted_seconds: float


@dataclass(frozen=True, slots=True)
class SheddingPlan:
    """``shed``: oldest first. ``ahead_seconds``: until what comes behind those that are kept would start."""

    shed: list[Shed]
    ahead_seconds: float


def plan_shedding(
    waiting: Iterable[Work],
    *,
    now_ms: int,
    ahead_seconds: float,
    turn_seconds: Callable[[Work], float],
    service_seconds: Callable[[Work], float],
) -> SheddingPlan:
    """Which requests of a tier to shed: those that would end too late behind what is kept before them.

    ``waiting``: the tier's requests, in the order in which they would start. ``ahead_seconds``: until the first of
    them would, for what waits in higher tiers. ``turn_seconds``: by how much a request delays those behind it (its
    work, in seconds of this worker). ``service_seconds``: from its start to its end.
    """
    shed = []
    for work in waiting:
        predicted_seconds = ahead_seconds + service_seconds(work)
        left_seconds = (work.deadline_ms - now_ms) / 1000
        if predicted_seconds * (1 - LATE_SHARE) > left_seconds:
            shed.append(Shed(work, predicted_seconds))
        else:
            ahead_seconds += turn_seconds(work)
    shed.sort(key=lambda each: each.work.first_enqueued_at)
    return SheddingPlan(shed, ahead_seconds)
