"""What people type on the command line for durations and points in time. Pure."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from typing import Final

from forebay_schemas.errors import UsageError

_UNIT_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "": 1.0}
_DURATION: Final = re.compile(r"(-?[0-9]+(?:\.[0-9]+)?) *(ms|s|m|h|d|)")

_NUMBER: Final = re.compile(r"-?[0-9]+(?:\.[0-9]+)?")
_EPOCH_MS: Final = re.compile(r"[0-9]{13}")

DURATION_FIX: Final = "give seconds, or a number with ms, s, m, h or d: 5s, 2m"

_TIME_FIX: Final = (
    "give a time back from now (10m), an RFC 3339 time (2026-01-31T09:00:00Z), a day (2026-01-31, from 00:00 UTC on) "
    "or epoch milliseconds (13 digits)"
)


def duration_seconds(text: str, *, field: str) -> float:
    """``5``, ``1.5s``, ``2m``, ``24h``, ``500ms``, ``7d`` in seconds, above 0.

    Raises ``UsageError`` naming ``field``.
    """
    match = _DURATION.fullmatch(text.strip().lower())
    seconds = float(match[1]) * _UNIT_SECONDS[match[2]] if match else math.inf
    if seconds <= 0:
        raise UsageError(field, f"is {text!r}", fix="it has to be above 0: 5s, 2m")
    if seconds == math.inf:
        raise UsageError(field, f"is {text!r}", fix=DURATION_FIX)
    return seconds


def point_in_time_ms(text: str, *, field: str, now_ms: int) -> int:
    """Epoch milliseconds of: a duration back from ``now_ms``, epoch milliseconds, or ISO 8601 (no offset: UTC).

    A number alone could be seconds, a year or a time of another unit: it is refused unless it has the 13 digits of
    epoch milliseconds. Raises ``UsageError`` naming ``field``.
    """
    text = text.strip()
    if _EPOCH_MS.fullmatch(text):
        return int(text)
    if _NUMBER.fullmatch(text):
        raise UsageError(field, f"is {text!r}, a number without a unit", fix=_TIME_FIX)
    if _DURATION.fullmatch(text.lower()):
        time_ms = now_ms - duration_seconds(text, field=field) * 1000
    else:
        try:
            time = datetime.fromisoformat(text)
        except ValueError:
            raise UsageError(field, f"is {text!r}", fix=_TIME_FIX) from None
        # All times are shown in UTC.
        time_ms = (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000
    if time_ms < 0:
        raise UsageError(field, f"is {text!r}, which is before 1970", fix=_TIME_FIX)
    return round(time_ms)
