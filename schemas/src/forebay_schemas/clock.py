"""Time as a parameter: monotonic durations, wall-clock deadlines, and waiting for another thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Protocol

EPOCH_MS_MIN: Final = 10**11
EPOCH_MS_MAX: Final = 10**14
"""Plausible epoch milliseconds: March 1973 to the year 5138. Smaller numbers are seconds, larger ones microseconds or
nanoseconds."""


class Clock(Protocol):
    """The source of time; the simulation has its own."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary start; never goes back."""
        ...

    def wall_ms(self) -> int:
        """Epoch milliseconds; may jump."""
        ...

    def sleep(self, seconds: float) -> None:
        """Blocks this thread."""
        ...


class SystemClock:
    """The machine's clocks."""

    __slots__ = ()

    def monotonic(self) -> float:
        return time.monotonic()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class Event(Protocol):
    """The part of `threading.Event` that waits use."""

    def set(self) -> None: ...
    def clear(self) -> None: ...
    def wait(self, timeout: float | None = None, /) -> bool: ...


MakeEvent = Callable[[], Event]
