"""The spans of what is sent, and the headers that they add. In memory."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from forebay_producer.client.prepare import Prepared
from forebay_producer.client.spans import SendSpans
from forebay_producer.client.tracing import NO_TRACING
from forebay_schemas.contract.headers import TENANT, TRACEPARENT, TRACESTATE, Header
from forebay_schemas.contract.tiers import Tier
from forebay_schemas.runtime.tracing import Traces

PARENT = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class SpanSender:
    """Makes spans of an application's provider."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracing = SendSpans(Traces(self.provider, is_ours=False))

    def send(self, *headers: Header, error: str | None = None) -> dict[str, Any]:
        """The headers that a request is sent with."""
        prepared = Prepared(request_id="r", tier=Tier.HIGH, value=b"", headers=[*headers])
        span = self.tracing.sending(prepared, "forebay.p.requests.high")
        sent = dict(span.headers(prepared.headers) or [])
        if error is None:
            span.delivered(3, 42)
        else:
            span.failed(error)
        return sent

    @property
    def last(self) -> ReadableSpan:
        return self.exporter.get_finished_spans()[-1]


def ids(span: ReadableSpan) -> str:
    assert span.context is not None
    return f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-{span.context.trace_flags:02x}"


def test_a_request_is_sent_below_the_callers_span_and_names_its_own() -> None:
    post = SpanSender()
    with post.provider.get_tracer("service").start_as_current_span("caller") as caller:
        sent = post.send((TENANT, b"acme"))
    span = post.exporter.get_finished_spans()[0]
    assert sent == {TENANT: b"acme", TRACEPARENT: ids(span).encode()}
    assert span.parent == caller.get_span_context()
    assert (span.name, span.kind) == ("send forebay.p.requests.high", trace.SpanKind.PRODUCER)
    assert dict(span.attributes or {}) == {
        "messaging.system": "kafka",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "forebay.p.requests.high",
        "messaging.destination.partition.id": "3",
        "messaging.kafka.offset": 42,
        "messaging.message.id": "r",
        "messaging.kafka.message.key": "r",
        "forebay.tier": "high",
    }


def test_a_traceparent_that_is_given_is_the_parent_with_its_state() -> None:
    post = SpanSender()
    with post.provider.get_tracer("service").start_as_current_span("caller"):
        sent = post.send((TRACEPARENT, PARENT), (TRACESTATE, b"vendor=1"))
    span = post.exporter.get_finished_spans()[0]
    assert span.parent is not None
    assert f"{span.parent.span_id:016x}" == "b7ad6b7169203331"
    assert sent == {TRACEPARENT: ids(span).encode(), TRACESTATE: b"vendor=1"}


@pytest.mark.parametrize("given", [b"00-abc-def-01", b"\xff", b"x" * 10_000])
def test_one_that_breaks_the_format_is_replaced(given: bytes) -> None:
    post = SpanSender()
    assert post.send((TRACEPARENT, given), (TRACESTATE, b"\xff=\n")) == {TRACEPARENT: ids(post.last).encode()}
    assert post.last.parent is None


def test_a_request_that_no_broker_took_is_an_error() -> None:
    post = SpanSender()
    post.send(error="broker_unreachable")
    assert post.last.status.status_code is trace.StatusCode.ERROR
    assert dict(post.last.attributes or {})["error.type"] == "broker_unreachable"


def test_without_tracing_headers_go_as_they_are() -> None:
    prepared = Prepared(request_id="r", tier=Tier.HIGH, value=b"", headers=[])
    span = NO_TRACING.sending(prepared, "t")
    assert span.headers([]) is None
    assert span.headers([(TRACEPARENT, b"\xff")]) == [(TRACEPARENT, b"\xff")]
