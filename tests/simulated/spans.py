"""A dispatcher and a reporter whose spans a test reads. No threads, no I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from forebay_schemas.contract.headers import TRACEPARENT
from forebay_schemas.contract.reasons import Reason
from forebay_schemas.contract.trace_context import TraceContext
from forebay_schemas.runtime.otel_context import RootDecisions
from forebay_schemas.runtime.tracing import Traces
from forebay_worker.request.work import Answer, Failure, Work
from forebay_worker.telemetry.spans import Spans
from simulated.dispatch import Stage
from simulated.ports import NOW_MS, ManualClock
from simulated.works import POOL

PARENT = TraceContext("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", 1)
WITHIN: list[tuple[str, bytes | None]] = [(TRACEPARENT, str(PARENT).encode())]
ANSWER = Answer(body={"ok": True}, prompt_tokens=7, output_tokens=9)
FAILED = Failure(reason=Reason.BACKEND_ERROR, error="HTTP 500: secret", http_status=500)
CHARGED = Failure(reason=Reason.BACKEND_ERROR, error="HTTP 500: secret")
"""A failure without a status, which is charged at once: others cannot have got the same."""


class TracedStage(Stage):
    """A dispatcher and a reporter that a tracer hears. One retry is allowed."""

    def __init__(
        self,
        *,
        provider: TracerProvider | None = None,
        decisions: RootDecisions | None = None,
        backend_url: str | None = "http://engine:8000",
    ) -> None:
        self.exporter = InMemorySpanExporter()
        provider = provider or TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        traces = Traces(provider, is_ours=True, decisions=decisions)
        clock = ManualClock()
        self.tracing = Spans(traces, clock=clock, pool=POOL, backend_url=backend_url)
        super().__init__(clock=clock, tracing=self.tracing, retries_max=1)

    def take(self, seconds: float = 0.0) -> Work:
        self.clock.advance(seconds)
        return super().take()

    def deliver(self, seconds: float = 0.0) -> None:
        self.clock.advance(seconds)
        self.reporter.delivery.poll()

    @property
    def spans(self) -> Sequence[ReadableSpan]:
        return self.exporter.get_finished_spans()

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name.startswith(name)]

    def one(self, name: str) -> ReadableSpan:
        [span] = self.named(name)
        return span


def seconds(span: ReadableSpan) -> tuple[float, float]:
    """Start and end, from when the clock stood at its start."""
    assert span.start_time is not None
    assert span.end_time is not None
    begin = NOW_MS * 1_000_000
    return round((span.start_time - begin) / 1e9, 6), round((span.end_time - begin) / 1e9, 6)


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def status(span: ReadableSpan) -> tuple[str, bool]:
    """A request's outcome, and whether it counts as an error."""
    return attributes(span)["forebay.status"], span.status.status_code is trace.StatusCode.ERROR


def span_id(span: ReadableSpan) -> str:
    assert span.context is not None
    return f"{span.context.span_id:016x}"


def headers(record: Any) -> dict[str, Any]:
    return dict(record.headers() or [])
