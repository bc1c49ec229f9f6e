"""The three priority tiers and the rules that tie the envelope's priority to them. Pure."""

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

    # Enum's own hash is written in Python, and each request asks for it several times.
    __hash__ = str.__hash__


TIERS: tuple[Tier, ...] = (Tier.HIGH, Tier.MID, Tier.LOW)
"""Most urgent first."""

PRIORITY_MIN, PRIORITY_MAX = 0, 10

DEFAULT_PRIORITY: dict[Tier, int] = {Tier.HIGH: 8, Tier.MID: 5, Tier.LOW: 1}
"""What a tier's name, or no priority at all, means as an integer: about the middle of the tier's range."""

DEFAULT_TTL_MS: dict[Tier, int] = {Tier.HIGH: 5_000, Tier.MID: 30_000, Tier.LOW: 86_400_000}
"""How long a request that names no deadline may take, in milliseconds from its first enqueue, where a pool's settings
say nothing else."""

TTL_MS_MAX: Final = 7 * 86_400_000
"""The latest a deadline may lie after the first enqueue, in milliseconds. The topics keep a request a day longer, so
that it is still there to be reported when it expires."""


HIGH_WAIT_MS: Final = 3_000
WAIT_SHARE: Final = 0.6
"""The share of its deadline that a request may wait before it starts; the rest is for its execution."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TierTimes:
    """What a pool grants each tier, in milliseconds.

    ``ttl_ms``: how long a request that names no deadline may take, from its first enqueue. ``wait_ms``: how long one
    may wait before it starts; shorter than ``ttl_ms``. Both name every tier. Made by `tier_times`.
    """

    ttl_ms: Mapping[Tier, int]
    wait_ms: Mapping[Tier, int]

    def ttl_seconds(self, tier: Tier) -> float:
        """The tier's deadline, for a request that names none."""
        return self.ttl_ms[tier] / 1000

    def wait_seconds(self, tier: Tier) -> float:
        """The tier's tolerated wait."""
        return self.wait_ms[tier] / 1000


def tier_times(ttl_ms: Mapping[Tier, int], wait_ms: Mapping[Tier, int]) -> TierTimes:
    """Fills in the defaults of tiers that are left out: of ``ttl_ms`` `DEFAULT_TTL_MS`; of ``wait_ms`` 60 % of the
    tier's ``ttl_ms``, for high 3 s at most."""
    ttls = {tier: ttl_ms.get(tier, DEFAULT_TTL_MS[tier]) for tier in TIERS}
    waits = {tier: max(1, int(WAIT_SHARE * ttls[tier])) for tier in TIERS}
    waits[Tier.HIGH] = min(HIGH_WAIT_MS, waits[Tier.HIGH])
    return TierTimes(ttl_ms=ttls, wait_ms={tier: wait_ms.get(tier, waits[tier]) for tier in TIERS})


DEFAULT_TIER_TIMES: Final = tier_times({}, {})
"""Of a pool whose settings say nothing else: high 5 s and 3 s, mid 30 s and 18 s, low 24 h and 14.4 h."""


def tier_of(priority: int) -> Tier:
    """The tier an integer priority (0 to 10, more is more urgent) belongs to: 7-10 high, 4-6 mid, 0-3 low."""
    if priority >= 7:
        return Tier.HIGH
    return Tier.MID if priority >= 4 else Tier.LOW
