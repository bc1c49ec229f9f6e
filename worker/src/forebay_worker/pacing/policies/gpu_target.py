"""`gpu_target`: holds the GPUs at a utilisation, for backends without another signal. Pure.

Utilisation is the share of time with any kernel running. 100 % shows that the GPUs were never idle, and not how much
more they could do at once. So this policy is the last choice for a backend that batches. If the GPUs report the use of
their multiprocessors, the policy holds that instead.
"""

from __future__ import annotations

from forebay_worker.pacing.policies.limit import LimitHolder
from forebay_worker.pacing.policy import Ended, Signals

DEFAULT_TARGET_SHARE = 0.90


class GpuTarget(LimitHolder):
    """Grows by steps below the target and is cut in proportion above it. Keeps the limit without a reading."""

    token_seconds_target = None
    __slots__ = ("_target_share",)

    def __init__(
        self, *, limit_min: int, limit_start: int, limit_max: int, target_share: float = DEFAULT_TARGET_SHARE
    ) -> None:
        """``target_share``: of the time or of the multiprocessors, above 0 and at most 1."""
        if not 0 < target_share <= 1:
            raise ValueError(f"target_share must be above 0 and at most 1, got {target_share}")
        super().__init__(limit_min=limit_min, limit_start=limit_start, limit_max=limit_max)
        self._target_share = target_share

    @property
    def target_share(self) -> float:
        """The target utilisation."""
        return self._target_share

    def observe(self, _ended: Ended) -> None:
        """Answers carry no information about the GPUs."""

    def step(self, signals: Signals) -> str | None:
        gpu = signals.gpu
        if gpu is None:
            return None
        share, name = gpu.sm_utilisation, "SM utilisation"
        if share is None:
            share, name = gpu.utilisation, "GPU utilisation"
        if share is None:
            return None
        if share > self._target_share:
            return self._limit.move(
                self._limit.exact * self._target_share / share,
                f"{name} {share:.0%} is above the target of {self._target_share:.0%}",
            )
        if share < self._target_share and self._limit.is_used(signals):
            return self._limit.grow(
                f"{name} {share:.0%} is below the target of {self._target_share:.0%}, "
                f"and {signals.in_flight} in flight use the limit"
            )
        return None
