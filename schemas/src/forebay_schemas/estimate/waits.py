"""The wait of a new request of each tier, from the work that waits and the work that arrives. Pure.

All work is in *pool seconds*: a pool second is what the workers together do in a second at their limits. So work that
arrives at 0.8 pool seconds a second takes 80 % of the pool.

The wait of tier i is A / (1 - rho), where A is the work that waits in tier i and above, and rho is what the tiers above
bring in meanwhile plus the guaranteed shares of the lower tiers in which something waits. A tier's own guaranteed share
m bounds its wait: it is never longer than its own work / m. See docs/admission.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from forebay_schemas.contract.tiers import TIERS, Tier

MINIMUM_SHARES: Final[Mapping[Tier, float]] = MappingProxyType({Tier.MID: 0.05, Tier.LOW: 0.01})
"""The part of the slots that is guaranteed to a tier while more urgent tiers would take everything."""

LEFT_MIN: Final = 0.01
"""The least part of the pool that is assumed to be left to a tier. Without a bound the wait would be infinite."""

OFFSET_SECONDS: Final = 0.5
"""Below this wait only the absolute error counts: corrections are ratios of (wait + 0.5 s)."""

_RETRY_ROUNDS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class TierLoad:
    """The work of one tier.

    ``waiting_requests`` and ``work_seconds`` (pool seconds): due and not started. ``request_seconds``: of one request.
    ``arriving``: pool seconds that arrive in a second. ``retries``: pairs of a delay in seconds and the pool seconds of
    the retries that wait for it; they become due evenly over the delay. ``open_slots``: how many of its requests could
    start at once.
    """

    waiting_requests: float = 0.0
    work_seconds: float = 0.0
    request_seconds: float = 0.0
    arriving: float = 0.0
    retries: tuple[tuple[float, float], ...] = ()
    open_slots: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """Factors from estimated to actual waits, both plus `OFFSET_SECONDS`: the median and the 90th percentile of the
    last starts. ``starts``: how many these are."""

    starts: int
    p50: float
    p90: float


UNCORRECTED: Final = Correction(starts=0, p50=1.0, p90=1.5)
"""Before the first starts are known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """An estimated wait in seconds. ``raw_seconds``: before the correction. One in ten waits longer than ``p90``."""

    raw_seconds: float
    p50_seconds: float
    p90_seconds: float


NO_LOAD: Final = TierLoad()


def raw_waits(
    loads: Mapping[Tier, TierLoad], *, minimum_shares: Mapping[Tier, float] = MINIMUM_SHARES
) -> dict[Tier, float]:
    """The uncorrected wait of a new request of each tier, in seconds. A missing tier has no load."""
    waits: dict[Tier, float] = {}
    above: list[TierLoad] = []
    arriving_above = 0.0
    guaranteed_below = {tier: _guaranteed_below(tier, loads, minimum_shares) for tier in TIERS}
    for tier in TIERS:
        own = loads.get(tier, NO_LOAD)
        left = max(LEFT_MIN, 1 - arriving_above - guaranteed_below[tier])
        share = minimum_shares.get(tier, 0.0)
        wait = 0.0
        # Retries that become due during the wait go first. The wait grows with them, so it is computed again.
        for _ in range(_RETRY_ROUNDS):
            ahead = _behind_open_slots([*above, own], own.open_slots, wait)
            longer = ahead / left
            if share > 0:
                # Its own share starts this request too.
                alone = _behind_open_slots([own], own.open_slots, wait) + own.request_seconds
                longer = min(longer, alone / share) if alone > 0 else longer
            if longer <= wait or math.isinf(longer):
                wait = max(wait, longer)
                break
            wait = longer
            if not own.retries and not any(load.retries for load in above):
                break
        waits[tier] = wait
        above.append(own)
        arriving_above += own.arriving
    return waits


def corrected(raw_seconds: float, correction: Correction = UNCORRECTED) -> Wait:
    """The wait told to a user."""
    if math.isinf(raw_seconds):
        return Wait(raw_seconds=raw_seconds, p50_seconds=raw_seconds, p90_seconds=raw_seconds)
    p50 = max(0.0, (raw_seconds + OFFSET_SECONDS) * correction.p50 - OFFSET_SECONDS)
    p90 = max(p50, (raw_seconds + OFFSET_SECONDS) * correction.p90 - OFFSET_SECONDS)
    return Wait(raw_seconds=raw_seconds, p50_seconds=p50, p90_seconds=p90)


def _guaranteed_below(tier: Tier, loads: Mapping[Tier, TierLoad], minimum_shares: Mapping[Tier, float]) -> float:
    """The part of the pool that goes to lower tiers even while this one waits."""
    lower = TIERS[TIERS.index(tier) + 1 :]
    return sum(minimum_shares.get(each, 0.0) for each in lower if loads.get(each, NO_LOAD).waiting_requests >= 1)


def _behind_open_slots(loads: list[TierLoad], open_slots: int, wait_seconds: float) -> float:
    """The work that must start first, without the requests that free slots take at once."""
    requests = sum(load.waiting_requests for load in loads)
    work = sum(load.work_seconds for load in loads)
    if open_slots > 0 and requests > 0:
        work *= max(0.0, requests - open_slots) / requests
        if requests < open_slots:
            return 0.0
    return work + sum(
        seconds * (min(1.0, wait_seconds / delay) if delay > 0 else 1.0)
        for load in loads
        for delay, seconds in load.retries
    )
