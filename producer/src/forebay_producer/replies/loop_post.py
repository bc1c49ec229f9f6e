"""Hands items from other threads to an event loop, with one wake-up of the loop for all that came meanwhile."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress


class Posted:
    """A posted call in the form of an event: `set` posts it."""

    __slots__ = ("set",)

    def __init__(self, post: Callable[[], None]) -> None:
        self.set = post


class LoopPost:
    """A queue of calls that the loop makes. Any thread may post; order is kept for each thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._calls: deque[Callable[[], None]] = deque()
        self._is_woken = False

    def post(self, call: Callable[[], None]) -> None:
        """Has the loop make the call. Never blocks; drops the call when the loop is closed."""
        self._calls.append(call)
        if not self._is_woken:
            self._is_woken = True
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                self._loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        # Cleared first: what is posted from here on wakes the loop again.
        self._is_woken = False
        calls = self._calls
        for _ in range(len(calls)):
            calls.popleft()()
