"""The three priority tiers, and how the envelope's priority maps to them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Tier(StrEnum):
    """A priority tier. Each has topics of its own; the topic a record lies in decides its tier."""

    HIGH = "high"
    MID = "mid"
    LOW = "low"

    # Enum's own hash is written in Python, and each request uses it several times.
    __hash__ = str.__hash__


TIERS: tuple[Tier, ...] = (Tier.HIGH, Tier.MID, Tier.LOW)
"""Most urgent first."""

PRIORITY_MIN, PRIORITY_MAX = 0, 10

DEFAULT_PRIORITY: dict[Tier, int] = {Tier.HIGH: 8, Tier.MID: 5, Tier.LOW: 1}
"""The integer priority of a tier's name, or of no priority: about the middle of the tier's range."""

DEFAULT_TTL_MS: dict[Tier, int] = {Tier.HIGH: 5_000, Tier.MID: 30_000, Tier.LOW: 86_400_000}
"""Default deadlines in milliseconds from the first enqueue, for requests that name none."""

TTL_MS_MAX: Final = 7 * 86_400_000
"""The latest deadline after the first enqueue, in milliseconds. Topics keep requests a day longer, so that an expired
request can still be reported."""


HIGH_WAIT_MS: Final = 3_000
WAIT_SHARE: Final = 0.6
"""The share of its deadline that a request may wait; the rest is for its execution."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TierTimes:
    """Deadlines and waits of a pool's tiers, in milliseconds. Made by `tier_times`.

    ``ttl_ms``: deadline of requests that name none, from the first enqueue. ``wait_ms``: tolerated wait before the
    start, shorter than ``ttl_ms``. Both have every tier.
    """

    ttl_ms: Mapping[Tier, int]
    wait_ms: Mapping[Tier, int]

    def ttl_seconds(self, tier: Tier) -> float:
        """The tier's default deadline."""
        return self.ttl_ms[tier] / 1000

    def wait_seconds(self, tier: Tier) -> float:
        """The tier's tolerated wait."""
        return self.wait_ms[tier] / 1000


def tier_times(ttl_ms: Mapping[Tier, int], wait_ms: Mapping[Tier, int]) -> TierTimes:
    """Fills in the defaults of missing tiers: for ``ttl_ms`` `DEFAULT_TTL_MS`; for ``wait_ms`` 60 % of the tier's
    ``ttl_ms``, at most 3 s for high."""
    ttls = {tier: ttl_ms.get(tier, DEFAULT_TTL_MS[tier]) for tier in TIERS}
    waits = {tier: max(1, int(WAIT_SHARE * ttls[tier])) for tier in TIERS}
    waits[Tier.HIGH] = min(HIGH_WAIT_MS, waits[Tier.HIGH])
    return TierTimes(ttl_ms=ttls, wait_ms={tier: wait_ms.get(tier, waits[tier]) for tier in TIERS})


DEFAULT_TIER_TIMES: Final = tier_times({}, {})
"""The defaults: high 5 s and 3 s, mid 30 s and 18 s, low 24 h and 14.4 h."""


def tier_of(priority: int) -> Tier:
    """The tier of an integer priority (0 to 10, more is more urgent): 7-10 high, 4-6 mid, 0-3 low."""
    if priority >= 7:
        return Tier.HIGH
    return Tier.MID if priority >= 4 else Tier.LOW
