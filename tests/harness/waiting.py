"""Waiting for a condition instead of sleeping for a guess. Reads the monotonic clock; sleeps in small steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE_SECONDS = 60.0
"""Far more than anything here takes: a busy machine must not fail a test, a broken promise must not hang it."""

_LOOK_SECONDS = 0.03

_Found = TypeVar("_Found")


def wait_until(what: str, look: Callable[[], _Found], *, seconds: float = PATIENCE_SECONDS) -> _Found:
    """The first true thing that ``look`` returns. AssertionError, naming ``what``, when none comes in time."""
    deadline = time.monotonic() + seconds
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}; last seen: {found!r}"
        time.sleep(_LOOK_SECONDS)
