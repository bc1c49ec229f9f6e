"""`fixed`: the same limit always. Pure."""

from __future__ import annotations

from forebay_worker.pacing.policy import Ended, Signals


class FixedLimit:
    """Learns nothing and changes nothing."""

    token_seconds_target = None
    __slots__ = ("limit_requests",)

    def __init__(self, *, limit_requests: int) -> None:
        if limit_requests < 1:
            raise ValueError("limit_requests must be at least 1")
        self.limit_requests = limit_requests

    def observe(self, _ended: Ended) -> None:
        """Nothing to learn."""

    def refused(self, _now: float) -> str | None:
        """The limit stays; the breaker sees to an overloaded backend."""
        return None

    def step(self, _signals: Signals) -> str | None:
        """The limit stays."""
        return None
