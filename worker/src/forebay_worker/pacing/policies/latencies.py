"""The mean latency between two decisions. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from forebay_worker.pacing.policy import Ended


@dataclass(frozen=True, slots=True)
class Window:
    """Answers between two decisions: their number, their mean seconds, and the most in flight when one arrived."""

    answers: int
    mean_seconds: float
    in_flight_max: int


class LatencyWindow:
    """Collects answers until `take`. Failed executions carry no information about the backend's speed."""

    __slots__ = ("_answers", "_in_flight_max", "_seconds")

    def __init__(self) -> None:
        self._answers = 0
        self._seconds = 0.0
        self._in_flight_max = 0

    def add(self, ended: Ended) -> None:
        if ended.succeeded:
            self._answers += 1
            self._seconds += ended.service_seconds
            self._in_flight_max = max(self._in_flight_max, ended.in_flight)

    def take(self, *, answers_min: int) -> Window | None:
        """Returns the window and begins a new one; None while it has too few answers, and then it continues."""
        if self._answers < answers_min:
            return None
        window = Window(self._answers, self._seconds / self._answers, self._in_flight_max)
        self._answers, self._seconds, self._in_flight_max = 0, 0.0, 0
        return window
