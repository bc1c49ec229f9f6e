"""What people type on the command line for durations and points in time. Pure."""

from __future__ import annotations

import math
import re
from datetime import datetime
from typing import Final

from forebay_schemas.clock import EPOCH_MS_MAX, EPOCH_MS_MIN
from forebay_schemas.errors import UsageError

_UNIT_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "": 1.0}
_DURATION: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?) *(ms|s|m|h|d|)")

_EPOCH: Final = re.compile(r"[0-9]{10,}")
_EPOCH_MS: Final = re.compile(r"[0-9]{12,15}")

DURATION_FIX: Final = "give seconds, or a number with ms, s, m, h or d: 5s, 2m"


def duration_seconds(text: str, *, field: str) -> float:
    """``5``, ``1.5s``, ``2m``, ``24h``, ``500ms``, ``7d`` in seconds, above 0.

    Raises ``UsageError`` naming ``field``.
    """
    match = _DURATION.fullmatch(text.strip().lower())
    seconds = float(match[1]) * _UNIT_SECONDS[match[2]] if match else math.nan
    if not 0 < seconds < math.inf:
        raise UsageError(field, f"is {text!r}", fix=DURATION_FIX)
    return seconds


def point_in_time_ms(text: str, *, field: str, now_ms: int) -> int:
    """Epoch milliseconds of: a duration back from ``now_ms``, epoch milliseconds, or ISO 8601 (no offset: local time).

    Raises ``UsageError`` naming ``field``.
    """
    text = text.strip()
    if _EPOCH_MS.fullmatch(text) and EPOCH_MS_MIN <= int(text) <= EPOCH_MS_MAX:
        return int(text)
    # So many digits alone are a time in other units, not seconds back from now.
    if _DURATION.fullmatch(text.lower()) and not _EPOCH.fullmatch(text):
        return max(0, now_ms - round(duration_seconds(text, field=field) * 1000))
    try:
        return max(0, round(datetime.fromisoformat(text).timestamp() * 1000))
    except (ValueError, OverflowError, OSError):
        raise UsageError(
            field,
            f"is {text!r}",
            fix="give a time back from now (10m), an ISO 8601 time (2026-01-31T09:00:00Z) or epoch milliseconds",
        ) from None
