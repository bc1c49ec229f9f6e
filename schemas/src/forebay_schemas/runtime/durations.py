"""Durations as people type them: one grammar for all commands. Pure."""

from __future__ import annotations

import math
import re
from typing import Final

from forebay_schemas.errors import UsageError

UNIT_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "": 1.0}
DURATION: Final = re.compile(r"(-?[0-9]+(?:\.[0-9]+)?) *(ms|s|m|h|d|)")
DURATION_FIX: Final = "give seconds, or a number with ms, s, m, h or d: 5s, 2m"


def duration_seconds(text: str, *, field: str) -> float:
    """``5``, ``1.5s``, ``2m``, ``24h``, ``500ms``, ``7d`` in seconds, above 0.

    Raises ``UsageError`` naming ``field``.
    """
    match = DURATION.fullmatch(text.strip().lower())
    seconds = float(match[1]) * UNIT_SECONDS[match[2]] if match else math.inf
    if seconds <= 0:
        raise UsageError(field, f"is {text!r}", fix="it has to be above 0: 5s, 2m")
    if seconds == math.inf:
        raise UsageError(field, f"is {text!r}", fix=DURATION_FIX)
    return seconds
