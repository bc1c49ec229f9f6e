"""Trace contexts between record headers and OpenTelemetry. Pure. Imports OpenTelemetry; only span makers may import
it."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from typing import Any, Final

from opentelemetry.context import Context
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import Decision, Sampler
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    TraceFlags,
    TraceState,
    set_span_in_context,
)

from forebay_schemas.contract.headers import TRACEPARENT, TRACESTATE
from forebay_schemas.contract.trace_context import TraceContext

_EMPTY: Final = Context()

TRACESTATE_CHARS_MAX: Final = 512
MODEL_CHARS_MAX: Final = 128
"""A model's name in an attribute is cut to this length: clients write it."""

# W3C Trace Context, section 3.3.1. Checked here, as OpenTelemetry logs a line for each invalid member.
_MEMBER: Final = r"[ \t]*[a-z0-9][a-z0-9_\-*/]{0,240}(@[a-z][a-z0-9_\-*/]{0,13})?=[ -+\--<>-~]{0,255}[!-+\--<>-~][ \t]*"
_TRACESTATE: Final = re.compile(f"{_MEMBER}(,{_MEMBER}){{0,31}}", re.ASCII)


def remote_span(found: TraceContext, tracestate: str | None = None) -> SpanContext:
    """The span named in a header; a malformed tracestate is left out."""
    state = None
    if tracestate and len(tracestate) <= TRACESTATE_CHARS_MAX and _TRACESTATE.fullmatch(tracestate):
        state = TraceState.from_header([tracestate])
    return SpanContext(int(found.trace_id, 16), int(found.span_id, 16), True, TraceFlags(found.flags), state)


def below(span: SpanContext) -> Context:
    """The context for children of that span."""
    return set_span_in_context(NonRecordingSpan(span), Context())


def traceparent_of(span: SpanContext) -> str:
    """The span as the header names it."""
    return f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags & 0xFF:02x}"


def headers_below(span: Span) -> dict[str, str]:
    """The headers that make their reader a child of the span."""
    context = span.get_span_context()
    headers = {TRACEPARENT: traceparent_of(context)}
    if context.trace_state:
        headers[TRACESTATE] = context.trace_state.to_header()
    return headers


class PresetIds(RandomIdGenerator):
    """Makes a trace's id known before its first span."""

    def __init__(self) -> None:
        self._of_thread = threading.local()

    def preset(self, trace_id: int) -> None:
        """Sets the id of the next trace that this thread begins."""
        self._of_thread.trace_id = trace_id

    def fresh(self) -> int:
        """The reserved id, or a new one."""
        return super().generate_trace_id()

    def generate_trace_id(self) -> int:
        trace_id: int | None = self._of_thread.__dict__.pop("trace_id", None)
        return self.fresh() if trace_id is None else trace_id


class RootDecisions:
    """Asks the sampler before a span is made: with one in a hundred kept, making the others costs most."""

    def __init__(self, sampler: Sampler, ids: PresetIds) -> None:
        self._sampler = sampler
        self._ids = ids
        self.keeps_to_parents = "remoteParentNotSampled:AlwaysOffSampler" in sampler.get_description()
        """Whether unsampled traces stay unsampled."""

    def begin(self, name: str, kind: SpanKind, attributes: Mapping[str, Any]) -> int | None:
        """For a new trace: None when it is sampled, and the tracer makes its span now; else the id it would have."""
        trace_id = self._ids.fresh()
        result = self._sampler.should_sample(_EMPTY, trace_id, name, kind, attributes, ())
        if result.decision is Decision.DROP:
            return trace_id
        self._ids.preset(trace_id)
        return None


def printable_key(key: bytes | None) -> str | None:
    """A record's key as an attribute; None unless it is a short text."""
    if not key or len(key) > 200:
        return None
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return None
    return text if text.isprintable() else None
