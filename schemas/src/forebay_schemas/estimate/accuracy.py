"""How far estimated waits were from the actual ones, and how much work arrives lately. Pure; one thread; times are
monotonic seconds that the caller passes in."""

from __future__ import annotations

from collections import deque
from typing import Final

from forebay_schemas.contract.tiers import TIERS, Tier
from forebay_schemas.estimate.waits import OFFSET_SECONDS, UNCORRECTED, Correction

STARTS_KEPT: Final = 200
STARTS_MIN: Final = 20
"""Before this many starts of a tier its correction is `UNCORRECTED`."""

FACTOR_MIN, FACTOR_MAX = 0.1, 10.0
MEAN_SECONDS: Final = 10.0


class WaitAccuracy:
    """Keeps estimated against actual waits of the last `STARTS_KEPT` starts of each tier. Noting one takes less than a
    microsecond."""

    def __init__(self) -> None:
        self._factors: dict[Tier, deque[float]] = {tier: deque(maxlen=STARTS_KEPT) for tier in TIERS}

    def started(self, tier: Tier, *, estimated_seconds: float, actual_seconds: float) -> None:
        """A request started. ``estimated_seconds``: the uncorrected wait when it came."""
        self._factors[tier].append((actual_seconds + OFFSET_SECONDS) / (estimated_seconds + OFFSET_SECONDS))

    def correction(self, tier: Tier) -> Correction:
        """The factors by the last starts."""
        factors = sorted(self._factors[tier])
        if len(factors) < STARTS_MIN:
            return UNCORRECTED
        return Correction(starts=len(factors), p50=_quantile(factors, 0.5), p90=_quantile(factors, 0.9))


class RecentRate:
    """The mean of what was added in the last ten seconds, a second; of a shorter time while it began later.

    Keeps at most one entry for a tenth of a second.
    """

    __slots__ = ("_began_at", "_entries", "_sum")

    def __init__(self, now: float) -> None:
        self._began_at = now
        self._entries: deque[tuple[float, float]] = deque()
        self._sum = 0.0

    def add(self, now: float, amount: float) -> None:
        """Notes an amount at a moment that is not before the last one."""
        self._sum += amount
        if self._entries and now - self._entries[-1][0] < MEAN_SECONDS / 100:
            at, before = self._entries[-1]
            self._entries[-1] = (at, before + amount)
        else:
            self._entries.append((now, amount))

    def per_second(self, now: float) -> float:
        """The mean; 0 before anything was added."""
        while self._entries and self._entries[0][0] <= now - MEAN_SECONDS:
            self._sum -= self._entries.popleft()[1]
        if not self._entries:
            self._sum = 0.0
            return 0.0
        # At least a second: the first few requests are not a rate.
        return max(0.0, self._sum) / min(MEAN_SECONDS, max(1.0, now - self._began_at))


class CounterRate:
    """The growth of a counter a second, the mean of the last ten seconds, from readings at any moments."""

    __slots__ = ("_readings",)

    def __init__(self) -> None:
        self._readings: deque[tuple[float, float]] = deque()

    def per_second(self, now: float, total: float) -> float | None:
        """Notes a reading. None for the first one, and after the counter began anew."""
        readings = self._readings
        if readings and total < readings[-1][1]:
            readings.clear()
        # One reading is kept from before the ten seconds, so that they are covered whole.
        while len(readings) > 1 and readings[1][0] <= now - MEAN_SECONDS:
            readings.popleft()
        if readings and now - readings[-1][0] < MEAN_SECONDS / 100:
            readings[-1] = (readings[-1][0], total)
        else:
            readings.append((now, total))
        at, before = readings[0]
        return (total - before) / (now - at) if now > at else None


def _quantile(ordered: list[float], share: float) -> float:
    found = ordered[min(len(ordered) - 1, int(share * len(ordered)))]
    return min(FACTOR_MAX, max(FACTOR_MIN, found))
