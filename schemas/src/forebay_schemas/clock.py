"""Time as a parameter: durations by a monotonic clock, deadlines by the wall clock."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Where a loop gets the time from; the simulation brings its own."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary start; never goes back."""
        ...

    def wall_ms(self) -> int:
        """Epoch milliseconds; may jump."""
        ...


class SystemClock:
    """The machine's clocks."""

    __slots__ = ()

    def monotonic(self) -> float:
        return time.monotonic()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000
