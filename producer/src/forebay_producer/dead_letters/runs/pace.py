"""Limits replays to a rate, and keeps them behind live traffic. Pure.

A tier tolerates a wait: high and mid as the settings say (`TierTimes.wait_ms`), low any. A replay joins its tier's
queue, so that later requests there and in lower tiers wait longer. Replays are sent only while no wait exceeds what is
tolerated, and their own wait stays within 60 % of their time to live. The wait is the number of unstarted requests in a
tier and those above it, divided by the rate at which the pool's workers finish requests, measured while they were busy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from forebay_schemas.contract.tiers import TIERS, WAIT_SHARE, Tier, TierTimes

UNMEASURED_RECORDS_MAX: Final = 10
"""Requests that may wait while the rate is unknown."""

DOUBT_SECONDS: Final = 5.0
"""Time without a finished request, while some wait, after which the user is asked whether a worker runs."""

STANDSTILL_PER_SECOND: Final = 0.05
"""A slower pool counts as one that finishes nothing. Even then the low tier takes replays: they wait for workers."""

_ANY: Final = 1_000_000

BURST_SECONDS: Final = 0.5
SMOOTHING_SECONDS: Final = 5.0


class RateLimit:
    """A rate limit with a burst of half a second. Times: monotonic seconds."""

    def __init__(self, *, per_second: float, now: float) -> None:
        self._per_second = per_second
        self._most = max(1.0, per_second * BURST_SECONDS)
        self._saved = self._most
        self._at = now

    def allows(self, now: float) -> int:
        """How many may be sent now."""
        self._saved = min(self._most, self._saved + max(0.0, now - self._at) * self._per_second)
        self._at = now
        return int(self._saved + 1e-9)

    def seconds_until(self, count: int) -> float:
        """Seconds until this many may be sent, counted from the last call of `allows`."""
        return max(0.0, (count - self._saved) / self._per_second)

    def spend(self, count: int) -> None:
        """Counts sent replays."""
        self._saved -= count


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The pool at one moment.

    ``waiting``: unstarted requests of each tier. ``finished``: a counter of finished requests of all tiers.
    ``at_seconds``: monotonic.
    """

    at_seconds: float
    waiting: Mapping[Tier, int]
    finished: int


class BacklogFollower:
    """Computes how many replays a tier takes: none before the first `Load`."""

    def __init__(self, tier_times: TierTimes) -> None:
        self._tolerated_seconds = {tier: tier_times.wait_seconds(tier) for tier in TIERS} | {Tier.LOW: math.inf}
        self._load: Load | None = None
        self._sent: dict[Tier, int] = dict.fromkeys(TIERS, 0)
        self._moved_at_seconds = 0.0
        self.finished_per_second: float | None = None
        """The measured rate; None before anything waited."""

    def observe(self, load: Load) -> None:
        """Updates the state of the pool; it includes the replays `sent` before."""
        before, self._load = self._load, load
        self._sent = dict.fromkeys(TIERS, 0)
        if before is None or load.finished > before.finished or not any(before.waiting.values()):
            self._moved_at_seconds = load.at_seconds
        if before is None:
            return
        seconds = load.at_seconds - before.at_seconds
        # Idle workers show nothing about the possible rate.
        if seconds <= 0 or not (sum(before.waiting.values()) or load.finished > before.finished):
            return
        rate = max(0, load.finished - before.finished) / seconds
        known = self.finished_per_second
        weight = 1 - math.exp(-seconds / SMOOTHING_SECONDS)
        self.finished_per_second = rate if known is None else known + weight * (rate - known)

    def stands_still(self, finished: int) -> bool:
        """Whether requests seem to wait and none was finished since the last `Load`; the offsets may hold no
        records."""
        load = self._load
        return load is None or (finished <= load.finished and any(load.waiting.values()))

    def sent(self, tier: Tier) -> None:
        """Counts a replay sent since the last `Load`."""
        self._sent[tier] += 1

    def room(self, tier: Tier, *, ttl_seconds: float) -> int:
        """How many replays with this time to live the tier takes now."""
        load = self._load
        if load is None:
            return 0
        ahead = self._waiting(tier)
        # The first replays are needed to measure a rate.
        least = 0 if ahead else 1
        rate = self.finished_per_second
        if rate is None or rate < STANDSTILL_PER_SECOND:
            if self._tolerated_seconds[tier] == math.inf:
                return _ANY
            return max(least, UNMEASURED_RECORDS_MAX - ahead if rate is None else 0)
        room = max(least, min(WAIT_SHARE * ttl_seconds, self._tolerated_seconds[tier]) * rate - ahead)
        for lower in TIERS[TIERS.index(tier) + 1 :]:
            if load.waiting[lower]:
                room = min(room, self._tolerated_seconds[lower] * rate - self._waiting(lower))
        return max(0, int(min(room, _ANY)))

    @property
    def knows_why(self) -> bool:
        """Whether `why_full` knows more than that the rate is unknown."""
        if self._load is None:
            return False
        rate = self.finished_per_second
        is_measured = rate is not None and rate >= STANDSTILL_PER_SECOND
        return is_measured or self._load.at_seconds - self._moved_at_seconds >= DOUBT_SECONDS

    def why_full(self, tier: Tier) -> str:
        """Why the tier takes no replays now, as text."""
        if self._load is None:
            return "the backlog is not known yet"
        ahead = self._waiting(tier)
        rate = self.finished_per_second
        if rate is None or rate < STANDSTILL_PER_SECOND:
            if not self.knows_why:
                return f"{ahead:,} wait in {tier}, and how fast they go is not known yet"
            return f"{ahead:,} wait in {tier} and nothing gets finished: does a worker run?"
        return f"{ahead:,} wait in {tier}, {ahead / rate:.1f} s of work at {rate:.1f}/s: more would make others late"

    def _waiting(self, tier: Tier) -> int:
        """The waiting requests of the tier and those above it."""
        load = self._load
        assert load is not None
        return sum(load.waiting[one] + self._sent[one] for one in TIERS[: TIERS.index(tier) + 1])
