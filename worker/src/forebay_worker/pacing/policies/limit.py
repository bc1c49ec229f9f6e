"""A limit within its bounds, and its cut after refusals: shared by the latency and utilisation policies. Pure."""

from __future__ import annotations

from forebay_worker.pacing.policy import Signals

REFUSED_CUT = 0.7
REFUSED_CUT_PAUSE_SECONDS = 2.0
"""A cut takes effect only when running requests have ended; until then refusals are no news."""

OTHERS_CUT = "the backend was too much for another worker"

USED_SHARE = 0.8
GROWTH_SHARE = 0.05


class Limit:
    """The most requests in flight. ``exact`` keeps the fraction, so that small steps add up."""

    __slots__ = ("_limit_max", "_limit_min", "_refused_cut_at", "exact", "hard_cuts")

    def __init__(self, *, limit_min: int, limit_start: int, limit_max: int) -> None:
        if not 1 <= limit_min <= limit_max:
            raise ValueError(f"limit_min must be from 1 to limit_max ({limit_max}), got {limit_min}")
        self._limit_min = limit_min
        self._limit_max = limit_max
        self._refused_cut_at = float("-inf")
        self.hard_cuts = 0
        self.exact = float(min(max(limit_start, limit_min), limit_max))

    @property
    def requests(self) -> int:
        return int(self.exact)

    def move(self, to: float, cause: str) -> str | None:
        """Sets the limit, within its bounds. Returns the cause if the number of requests changed."""
        before = self.requests
        self.exact = min(max(to, float(self._limit_min)), float(self._limit_max))
        return None if self.requests == before else cause

    def grow(self, cause: str) -> str | None:
        """Raises the limit by a step, at least one request."""
        return self.move(self.exact + max(1.0, GROWTH_SHARE * self.exact), cause)

    def is_used(self, signals: Signals, *, in_flight: int = 0) -> bool:
        """Whether the limit is used enough to learn about a higher one. ``in_flight``: may exceed the present number.

        While requests wait, slots that they must not take count as used.
        """
        reserved = signals.reserved if signals.waiting else 0
        return max(in_flight, signals.in_flight) + reserved >= USED_SHARE * self.exact

    def refused(self, now: float) -> str | None:
        """Cuts the limit, at most once in two seconds. ``now``: monotonic seconds. Returns as `move` does."""
        if now - self._refused_cut_at < REFUSED_CUT_PAUSE_SECONDS:
            return None
        self._refused_cut_at = now
        self.hard_cuts += 1
        return self.move(self.exact * REFUSED_CUT, "the backend refused a request as too much for it")

    def adopt(self, limit: float, now: float) -> None:
        """See `PacingPolicy.adopt`."""
        is_cut = now - self._refused_cut_at < REFUSED_CUT_PAUSE_SECONDS
        self.move(min(limit, self.exact) if is_cut else limit, "")

    def cut_to(self, limit: float, now: float) -> str | None:
        """See `PacingPolicy.cut_to`."""
        self._refused_cut_at = now
        return self.move(min(limit, self.exact), OTHERS_CUT)


class LimitHolder:
    """The part of a policy that a `Limit` answers; see `PacingPolicy`."""

    __slots__ = ("_limit",)

    def __init__(self, *, limit_min: int, limit_start: int, limit_max: int) -> None:
        self._limit = Limit(limit_min=limit_min, limit_start=limit_start, limit_max=limit_max)

    @property
    def limit_requests(self) -> int:
        return self._limit.requests

    @property
    def limit_exact(self) -> float:
        return self._limit.exact

    @property
    def hard_cuts(self) -> int:
        return self._limit.hard_cuts

    def refused(self, now: float) -> str | None:
        return self._limit.refused(now)

    def adopt(self, limit: float, now: float) -> None:
        self._limit.adopt(limit, now)

    def cut_to(self, limit: float, now: float) -> str | None:
        return self._limit.cut_to(limit, now)
