"""The three priority tiers and the rules that tie the envelope's priority to them. Pure."""

from __future__ import annotations

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
"""How long a request that names no deadline may take, in milliseconds from its first enqueue."""

ALLOWED_WAIT_SECONDS: Final[dict[Tier, float]] = {
    Tier.HIGH: 3.0,
    Tier.MID: 0.6 * DEFAULT_TTL_MS[Tier.MID] / 1000,
    Tier.LOW: 0.6 * DEFAULT_TTL_MS[Tier.LOW] / 1000,
}
"""How long a request may wait before it starts: what is left of the default deadline is for its execution."""

TTL_MS_MAX: Final = 7 * 86_400_000
"""The latest a deadline may lie after the first enqueue, in milliseconds. The topics keep a request a day longer, so
that it is still there to be reported when it expires."""


def tier_of(priority: int) -> Tier:
    """The tier an integer priority (0 to 10, more is more urgent) belongs to: 7-10 high, 4-6 mid, 0-3 low."""
    if priority >= 7:
        return Tier.HIGH
    return Tier.MID if priority >= 4 else Tier.LOW
