"""`gradient2`: the limit follows the ratio of the long-term mean latency to the latest. Pure.

After Gradient2Limit and WindowedLimit of Netflix's concurrency-limits (Apache-2.0), with their default figures:
    long     = exponential mean of the windows' means over 600 windows; of the first 10, their plain mean
    long     *= .95 when it is more than twice the latest: an overload is over, and the mean should not lag behind
    gradient = max(.5, min(1, 1.5 long / latest))
    limit    = .8 limit + .2 (gradient limit + 4), unless less than half of it is used
A window is a second with at least ten answers, else as many seconds as these take.
Known: a latency that is high and steady becomes the baseline, and the limit then grows to its maximum (#137 there);
between 1 and 1.5 times the baseline the 4 let it grow too (#134).
"""

from __future__ import annotations

from forebay_worker.pacing.policies.latencies import LatencyWindow
from forebay_worker.pacing.policies.limit import LimitHolder
from forebay_worker.pacing.policy import Ended, Signals

LONG_WINDOWS = 600
WARM_UP_WINDOWS = 10
WINDOW_ANSWERS_MIN = 10
TOLERANCE = 1.5
SMOOTHING = 0.2
QUEUE_REQUESTS = 4
GRADIENT_MIN = 0.5
LAG_MAX = 2.0
LAG_CUT = 0.95
USED_SHARE_MIN = 0.5


class Gradient2(LimitHolder):
    """Learns from latencies alone; needs no figures of the backend."""

    token_seconds_target = None
    __slots__ = ("_latencies", "_long_seconds", "_windows")

    def __init__(self, *, limit_min: int, limit_start: int, limit_max: int) -> None:
        super().__init__(limit_min=limit_min, limit_start=limit_start, limit_max=limit_max)
        self._latencies = LatencyWindow()
        self._long_seconds = 0.0
        self._windows = 0

    def observe(self, ended: Ended) -> None:
        self._latencies.add(ended)

    def step(self, signals: Signals) -> str | None:
        window = self._latencies.take(answers_min=WINDOW_ANSWERS_MIN)
        if window is None:
            return None
        long_seconds = self._learn(window.mean_seconds)
        limit = self._limit.exact
        if max(window.in_flight_max, signals.in_flight) < USED_SHARE_MIN * limit:
            return None
        gradient = max(GRADIENT_MIN, min(1.0, TOLERANCE * long_seconds / window.mean_seconds))
        aim = gradient * limit + QUEUE_REQUESTS
        ratio = window.mean_seconds / long_seconds
        return self._limit.move(
            (1 - SMOOTHING) * limit + SMOOTHING * aim,
            f"mean latency {window.mean_seconds:.2f} s is {ratio:.2f} times its long-term mean {long_seconds:.2f} s",
        )

    def _learn(self, mean_seconds: float) -> float:
        """Adds this window to the long-term mean and returns it. A mean that lags is shortened for later windows."""
        self._windows += 1
        weight = 1 / self._windows if self._windows <= WARM_UP_WINDOWS else 2 / (LONG_WINDOWS + 1)
        long_seconds = self._long_seconds + weight * (mean_seconds - self._long_seconds)
        self._long_seconds = long_seconds * LAG_CUT if long_seconds > LAG_MAX * mean_seconds else long_seconds
        return long_seconds
