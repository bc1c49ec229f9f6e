"""What the log says of a handler that fails: the first of each kind with its traceback, a minute's others as a number.

The event loop. The words of an exception may hold a prompt, so a sum names only its type and place.
"""

from __future__ import annotations

import asyncio
import traceback
from collections import Counter
from typing import Final

import structlog

TOGETHER_SECONDS: Final = 60.0
KINDS_MAX: Final = 50
"""Exceptions made at random places: beyond so many kinds at a time the others are summed up together."""

OTHERS: Final = "other failures"

log = structlog.get_logger("forebay.backend")


class HandlerFailures:
    """The failures that were lately said, by their kind: the exception's type and the line that raised it."""

    def __init__(self) -> None:
        self._unsaid: Counter[str] = Counter()
        """How often each came again; one that is in here was said less than a minute ago."""

    def failed(self, request_id: str, error: BaseException) -> None:
        """Says it, or counts it. Must be called in an event loop."""
        kind = kind_of(error)
        if kind not in self._unsaid and len(self._unsaid) >= KINDS_MAX:
            kind = OTHERS
        if kind in self._unsaid:
            self._unsaid[kind] += 1
            return
        self._unsaid[kind] = 0
        log.warning("handler failed", request_id=request_id, exc_info=error)
        asyncio.get_running_loop().call_later(TOGETHER_SECONDS, self._sum_up, kind)

    def close(self) -> None:
        """Says what is not said yet."""
        for kind in list(self._unsaid):
            self._sum_up(kind)

    def _sum_up(self, kind: str) -> None:
        if times := self._unsaid.pop(kind, 0):
            log.warning("handler failed again", kind=kind, times=times, seconds=TOGETHER_SECONDS)


def kind_of(error: BaseException) -> str:
    """``ValueError at handlers.py:12``."""
    name = type(error).__qualname__
    frames = list(traceback.walk_tb(error.__traceback__))
    if not frames:
        return name
    frame, line = frames[-1]
    return f"{name} at {frame.f_code.co_filename}:{line}"
