"""Spans of what is sent, made with OpenTelemetry; their times are its own, as those of the caller's spans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode

from forebay_schemas.contract.headers import PREVIOUS_SPAN, TRACEPARENT, TRACESTATE, Header, replace_headers
from forebay_schemas.contract.trace_context import parse_traceparent
from forebay_schemas.runtime.otel_context import below, headers_below, printable_key, remote_span
from forebay_schemas.runtime.tracing import Traces

if TYPE_CHECKING:
    from forebay_producer.client.prepare import Prepared
    from forebay_producer.client.tracing import ReplayRecord, SentHeaders

_EMPTY: Final = Context()


class _Sent:
    """`SendSpan` that records."""

    __slots__ = ("_span",)

    def __init__(self, span: Span) -> None:
        self._span = span

    def headers(self, given: Sequence[Header]) -> SentHeaders | None:
        # The state of a trace belongs to the span that names it.
        kept = (header for header in given if header[0] != TRACESTATE)
        return [*replace_headers(kept, headers_below(self._span))]

    def delivered(self, partition: int, offset: int) -> None:
        self._span.set_attribute("messaging.destination.partition.id", str(partition))
        self._span.set_attribute("messaging.kafka.offset", offset)
        self._span.end()

    def failed(self, error: str) -> None:
        self._span.set_attribute("error.type", error)
        self._span.set_status(Status(StatusCode.ERROR))
        self._span.end()


class SendSpans:
    """`SendTracing` that records."""

    def __init__(self, traces: Traces) -> None:
        self._traces = traces
        self._tracer = traces.tracer("forebay-producer")

    def sending(self, prepared: Prepared, topic: str) -> _Sent:
        context = _context_of(dict(prepared.headers))
        attributes = {
            **_messaging("send", topic),
            "messaging.message.id": prepared.request_id,
            "messaging.kafka.message.key": prepared.request_id,
            "forebay.tier": prepared.tier.value,
        }
        # Without a context it is the caller's own.
        span = self._tracer.start_span(f"send {topic}", context, kind=SpanKind.PRODUCER, attributes=attributes)
        return _Sent(span)

    def replaying(self, replay: ReplayRecord, *, run_id: str) -> _Sent:
        headers = dict(replay.headers)
        context = _context_of(headers)
        attributes = {
            **_messaging("replay", replay.topic),
            "messaging.message.id": replay.request_id,
            "forebay.tier": replay.tier.value,
            "forebay.replay_count": replay.replay_count,
            "forebay.reason": replay.reason or "",
            "forebay.run_id": run_id,
        }
        if (key := printable_key(replay.key)) is not None:
            attributes["messaging.kafka.message.key"] = key
        died = parse_traceparent(_text(headers.get(PREVIOUS_SPAN))) or parse_traceparent(
            _text(headers.get(TRACEPARENT))
        )
        span = self._tracer.start_span(
            f"replay {replay.topic}",
            context or _EMPTY,
            kind=SpanKind.PRODUCER,
            attributes=attributes,
            links=() if died is None else (Link(remote_span(died)),),
        )
        return _Sent(span)

    def close(self) -> None:
        self._traces.close()


def _messaging(operation: str, topic: str) -> dict[str, Any]:
    return {
        "messaging.system": "kafka",
        "messaging.operation.name": operation,
        "messaging.operation.type": "send",
        "messaging.destination.name": topic,
    }


def _context_of(headers: dict[str, bytes | None]) -> Context | None:
    found = parse_traceparent(_text(headers.get(TRACEPARENT)))
    return None if found is None else below(remote_span(found, _text(headers.get(TRACESTATE))))


def _text(value: bytes | None) -> str | None:
    return value.decode("ascii", errors="replace") if value else None
