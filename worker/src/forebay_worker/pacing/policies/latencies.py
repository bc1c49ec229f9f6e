"""The mean latency between two decisions. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from forebay_worker.pacing.policy import Ended


@dataclass(frozen=True, slots=True)
class Window:
    """Answers between two decisions: how many, their mean seconds, and the most in flight when one came."""

    answers: int
    mean_seconds: float
    in_flight_max: int


class LatencyWindow:
    """Collects answers until it is taken. Executions that failed say nothing about how fast the backend works."""

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
        """The window, and a new one begins; None while it holds fewer answers, and then it goes on."""
        if self._answers < answers_min:
            return None
        window = Window(self._answers, self._seconds / self._answers, self._in_flight_max)
        self._answers, self._seconds, self._in_flight_max = 0, 0.0, 0
        return window
