"""Time as a parameter: durations by a monotonic clock, deadlines by the wall clock, and a thread's wait for another."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Protocol

EPOCH_MS_MIN: Final = 10**11
EPOCH_MS_MAX: Final = 10**14
"""What can be meant as epoch milliseconds: March 1973 to the year 5138. Less was meant as seconds, more as microseconds
or nanoseconds."""


class Clock(Protocol):
    """Where a loop gets the time from; the simulation brings its own."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary start; never goes back."""
        ...

    def wall_ms(self) -> int:
        """Epoch milliseconds; may jump."""
        ...

    def sleep(self, seconds: float) -> None:
        """Lets time pass on this thread."""
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
    """How a thread waits for another: what is used of `threading.Event`."""

    def set(self) -> None: ...
    def clear(self) -> None: ...
    def wait(self, timeout: float | None = None, /) -> bool: ...


MakeEvent = Callable[[], Event]
