"""A pacing policy of one's own, as ARCHITECTURE.md explains it: it keeps the engine's own queue short. Pure."""

from __future__ import annotations

from forebay_worker.pacing.policies.limit import LimitHolder
from forebay_worker.pacing.policy import Ended, Signals

QUEUED_SHARE_MAX = 0.1
CUT = 0.8


class ShortQueue(LimitHolder):
    """Cuts the limit while more than a tenth of it queues in the engine, and raises it while all of it is used."""

    token_seconds_target = None
    __slots__ = ()

    def observe(self, _ended: Ended) -> None:
        """The engine's queue says enough."""

    def step(self, signals: Signals) -> str | None:
        """Decides, once a second."""
        engine = signals.engine
        if engine is None or engine.waiting_requests is None:
            return None
        if engine.waiting_requests > QUEUED_SHARE_MAX * self.limit_exact:
            return self._limit.move(
                self.limit_exact * CUT, f"{engine.waiting_requests:.0f} requests queue in the engine"
            )
        if self._limit.is_used(signals):
            return self._limit.grow("the limit is used, and nothing queues in the engine")
        return None
