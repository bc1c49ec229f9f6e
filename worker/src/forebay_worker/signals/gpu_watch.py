"""Detects a GPU that is idle although requests are in flight: it hangs, or another one serves them. Pure."""

from __future__ import annotations

from forebay_worker.signals.readings import GpuReading

SICK_SECONDS = 5.0
"""A busy engine pauses for less; its start-up with the first request takes longer, but nothing is in flight before."""


class GpuWatch:
    """Updated once a second. Times are monotonic seconds."""

    __slots__ = ("_idle_since",)

    def __init__(self) -> None:
        self._idle_since: float | None = None

    def step(self, now: float, *, in_flight: int, gpu: GpuReading | None) -> None:
        """``gpu``: the last reading; None if it is missing or stale, and then no error is assumed."""
        if in_flight and gpu is not None and gpu.utilisation == 0:
            self._idle_since = now if self._idle_since is None else self._idle_since
        else:
            self._idle_since = None

    def is_sick(self, now: float) -> bool:
        """Whether utilisation has been 0 with requests in flight for `SICK_SECONDS`."""
        return self._idle_since is not None and now - self._idle_since >= SICK_SECONDS
