"""Parses points in time and rates as typed on the command line. Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

from forebay_schemas.errors import UsageError
from forebay_schemas.runtime.durations import DURATION, UNIT_SECONDS, duration_seconds

_NUMBER: Final = re.compile(r"-?[0-9]+(?:\.[0-9]+)?")
_RATE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?) *(?:/ *(s|m|h|d))?")
_EPOCH_MS: Final = re.compile(r"[0-9]{13}")

_TIME_FIX: Final = (
    "give a time back from now (10m), an RFC 3339 time (2026-01-31T09:00:00Z), a day (2026-01-31, from 00:00 UTC on) "
    "or epoch milliseconds (13 digits)"
)


def point_in_time_ms(text: str, *, field: str, now_ms: int) -> int:
    """Parses a duration back from ``now_ms``, epoch milliseconds, or ISO 8601 (UTC without offset) into epoch
    milliseconds.

    A bare number is ambiguous and refused, unless it has the 13 digits of epoch milliseconds. Raises ``UsageError``
    naming ``field``.
    """
    text = text.strip()
    if _EPOCH_MS.fullmatch(text):
        return int(text)
    if _NUMBER.fullmatch(text):
        raise UsageError(field, f"is {text!r}, a number without a unit", fix=_TIME_FIX)
    if DURATION.fullmatch(text.lower()):
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


def rate_per_second(text: str) -> float | None:
    """``20``, ``20/s``, ``600/m``, ``5/h``, ``200000/d`` in events a second; None for what is no rate."""
    match = _RATE.fullmatch(text.strip().lower())
    return float(match[1]) / UNIT_SECONDS[match[2] or "s"] if match else None
