"""`latency_ratio`: cuts the limit in proportion when the mean latency is a fifth above the best seen; else lets it grow
while it is used. Pure.

For backends whose latency shows a queue. A continuously batching engine's does not: each sequence in its batch
lengthens every step, long before the engine is full. This policy holds such an engine far below its best.
"""

from __future__ import annotations

from forebay_worker.pacing.policies.latencies import LatencyWindow
from forebay_worker.pacing.policies.limit import LimitHolder
from forebay_worker.pacing.policy import Ended, Signals

RATIO_MAX = 1.2
CUT_MIN = 0.5
"""One second of very slow answers does not take more than half."""
FORGOTTEN_PER_SECOND = 1 / 600
"""Share of its distance to the present by which the baseline rises: a backend that became slower for good is learned in
ten minutes or so."""


class LatencyRatio(LimitHolder):
    """Compares the mean latency of each second."""

    token_seconds_target = None
    __slots__ = ("_baseline_seconds", "_latencies")

    def __init__(self, *, limit_min: int, limit_start: int, limit_max: int) -> None:
        super().__init__(limit_min=limit_min, limit_start=limit_start, limit_max=limit_max)
        self._latencies = LatencyWindow()
        self._baseline_seconds: float | None = None

    def observe(self, ended: Ended) -> None:
        self._latencies.add(ended)

    def step(self, signals: Signals) -> str | None:
        window = self._latencies.take(answers_min=1)
        if window is None or window.mean_seconds <= 0:
            return None
        baseline = self._baseline(window.mean_seconds)
        ratio = window.mean_seconds / baseline
        compared = f"mean latency {window.mean_seconds:.2f} s is {ratio:.2f} times its baseline {baseline:.2f} s"
        if ratio > RATIO_MAX:
            return self._limit.move(self._limit.exact * max(CUT_MIN, RATIO_MAX / ratio), compared)
        if self._limit.is_used(signals, in_flight=window.in_flight_max):
            return self._limit.grow(f"{compared}, and {signals.in_flight} in flight use the limit")
        return None

    def _baseline(self, mean_seconds: float) -> float:
        before = self._baseline_seconds
        if before is None:
            before = mean_seconds
        self._baseline_seconds = min(mean_seconds, before + FORGOTTEN_PER_SECOND * (mean_seconds - before))
        return self._baseline_seconds
