"""Slots: what is in flight, and what keeps the next request from joining it. Pure; the event loop's thread."""

from __future__ import annotations

from collections.abc import Iterable

from forebay_schemas.contract.tiers import TIERS, Tier
from forebay_worker.bounds import Bounds
from forebay_worker.dispatch.breaker import Breaker, BreakerState
from forebay_worker.lanes.lanes import Lanes
from forebay_worker.outcome.delivery import Delivery
from forebay_worker.pacing.gate import Gate
from forebay_worker.pacing.limitation import Limitation
from forebay_worker.request.memory import in_flight_bytes
from forebay_worker.request.work import Failure, Work


class Slots:
    """``running``: requests by identity. ``by_tier`` and ``memory_bytes`` also count claimed ones that wait for a
    commit before they start: a bound on memory holds as one on their number does."""

    def __init__(
        self, *, gate: Gate, breaker: Breaker[tuple[Work, Failure]], lanes: Lanes, delivery: Delivery, bounds: Bounds
    ) -> None:
        self.running: dict[int, Work] = {}
        self.by_tier = dict.fromkeys(TIERS, 0)
        self.memory_bytes = 0
        self._gate = gate
        self._breaker = breaker
        self._lanes = lanes
        self._delivery = delivery
        self._bounds = bounds

    def occupy(self, work: Work) -> None:
        """Counts a claimed request."""
        self.by_tier[work.assignment.tier] += 1
        self.memory_bytes += in_flight_bytes(work, self._bounds)

    def vacate(self, work: Work) -> None:
        """Counts it no more."""
        self.by_tier[work.assignment.tier] -= 1
        self.memory_bytes -= in_flight_bytes(work, self._bounds)

    def memory_without(self, waiting: Iterable[Work]) -> int:
        """``memory_bytes`` without what of it waits for a commit."""
        return self.memory_bytes - sum(in_flight_bytes(work, self._bounds) for work in waiting)

    def blocked_by(self, now: float, in_flight: int, memory_bytes: int) -> Limitation | None:
        """What keeps the next request from starting beside so many; None when nothing does."""
        limitation = self._gate.blocked_by(now, in_flight, memory_bytes)
        if limitation is not None:
            return limitation
        if not self._breaker.admits(now):
            return Limitation("breaker", round(now - (self._breaker.probe_at or now), 3), 0)
        if not self._delivery.accepts(now):
            return Limitation("results", self._delivery.undelivered_records, self._bounds.undelivered_records_max)
        return None

    def open_to(self, tier: Tier, now: float) -> int:
        """How many requests of a tier could start at once: by the limit, where nothing else forbids a start."""
        taken = sum(self.by_tier.values())
        if self._breaker.state is not BreakerState.CLOSED or self.blocked_by(now, taken, self.memory_bytes) is not None:
            return 0
        share = self._gate.share_requests
        kept = 0 if tier is Tier.HIGH else self._lanes.shares.reserved(now, share)
        return max(0, share - kept - taken)

    @property
    def only_high(self) -> bool:
        """Whether the lower tiers get no more than they are guaranteed: their prompts would make the tokens of the
        urgent ones, which come too late already because of all that runs, come later still."""
        return self.by_tier[Tier.HIGH] > 0 and self._gate.is_slow_by_load

    def memory_kept_for_high(self, now: float) -> Limitation | None:
        """Whether what memory is left is kept for high, as the last slots are: the lower tiers get no more than they
        are guaranteed."""
        gate = self._gate
        open_bytes = gate.memory_open_to_all(self._lanes.shares.reserved(now, gate.share_requests))
        if open_bytes is None or self.memory_bytes < open_bytes:
            return None
        return Limitation("memory", self.memory_bytes, open_bytes)
