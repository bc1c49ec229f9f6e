"""Reads and writes the header `traceparent` (W3C Trace Context). Pure, and without OpenTelemetry."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

TRACEPARENT_CHARS_MAX: Final = 512
"""Later versions may be longer than the 55 characters of this one; more is never needed."""

_FORM: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)
_SAMPLED: Final = 0x01


@dataclass(frozen=True, slots=True)
class TraceContext:
    """A reference to a span: ``trace_id`` has 32 hexadecimal digits, ``span_id`` 16, neither all zeros."""

    trace_id: str
    span_id: str
    flags: int

    @property
    def is_sampled(self) -> bool:
        """Whether the caller records this trace."""
        return bool(self.flags & _SAMPLED)

    def __str__(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{self.flags:02x}"


def parse_traceparent(text: str | None) -> TraceContext | None:
    """Parses the header; None if missing or malformed, as the standard asks. Never raises."""
    if text is None or len(text) > TRACEPARENT_CHARS_MAX:
        return None
    match = _FORM.fullmatch(text)
    if match is None:
        return None
    version, trace_id, span_id, flags, more = match.groups()
    if version == "ff" or (version == "00" and more) or not trace_id.strip("0") or not span_id.strip("0"):
        return None
    return TraceContext(trace_id, span_id, int(flags, 16))
