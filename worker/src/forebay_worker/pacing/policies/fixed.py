"""`fixed`: the same limit always. Pure."""

from __future__ import annotations

from forebay_worker.pacing.policy import Ended, Signals


class FixedLimit:
    """Learns nothing and changes nothing."""

    token_seconds_target = None
    hard_cuts = 0
    __slots__ = ("limit_requests",)

    def __init__(self, *, limit_requests: int) -> None:
        if limit_requests < 1:
            raise ValueError("limit_requests must be at least 1")
        self.limit_requests = limit_requests

    @property
    def limit_exact(self) -> float:
        return float(self.limit_requests)

    def observe(self, _ended: Ended) -> None:
        """Nothing to learn."""

    def refused(self, _now: float) -> str | None:
        """The limit stays; the breaker handles an overloaded backend."""
        return None

    def adopt(self, _limit: float, _now: float) -> None:
        """The limit stays: an operator has chosen it."""

    def cut_to(self, _limit: float, _now: float) -> str | None:
        """The limit stays."""
        return None

    def step(self, _signals: Signals) -> str | None:
        """The limit stays."""
        return None
