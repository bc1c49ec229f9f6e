"""Spans of requests, made with OpenTelemetry: `process`, `queue`, `attempt` and the engine's call.

On the event loop's thread; times are passed in. Exporting is done by OpenTelemetry's thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from opentelemetry import context as ambient
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode, set_span_in_context

from forebay_schemas.clock import EPOCH_MS_MIN, Clock
from forebay_schemas.contract.envelope import payload_hints
from forebay_schemas.contract.headers import PREVIOUS_SPAN, TRACEPARENT, TRACESTATE, Header, record_headers
from forebay_schemas.contract.reasons import Reason
from forebay_schemas.contract.reasons import Status as Outcome
from forebay_schemas.contract.topics import Pool
from forebay_schemas.contract.trace_context import TraceContext, parse_traceparent
from forebay_schemas.runtime.otel_context import (
    MODEL_CHARS_MAX,
    below,
    headers_below,
    printable_key,
    remote_span,
    traceparent_of,
)
from forebay_schemas.runtime.tracing import Traces
from forebay_worker.request.backend import Backend, BackendFailed
from forebay_worker.request.work import Answer, Work
from forebay_worker.telemetry.tracing import NO_TRACING

MODELS_NAMED_MAX: Final = 64
"""Number of models with spans of their own name: clients that invent names must not fill the index of span names."""

_OPERATIONS: Final = {"chat_completion": "chat", "completion": "text_completion", "embedding": "embeddings"}
_NO_ERRORS: Final = frozenset((Outcome.COMPLETED, Outcome.CANCELLED))
_EMPTY: Final = Context()
_SPAN_ID_BITS: Final = 2**64 - 1
_NS_PER_MS: Final = 1_000_000
_NS_PER_SECOND: Final = 1_000_000_000


class Unsampled:
    """A request whose trace is not kept. The decision is passed on, so that no later service keeps a part of it."""

    __slots__ = ("span",)

    def __init__(self, span: SpanContext) -> None:
        """The span to pass on: the received one, or one with new ids that is never recorded."""
        self.span = span

    @property
    def headers(self) -> Mapping[str, str]:
        """As `Traced` has it; made on request only, which is rare."""
        return {TRACEPARENT: traceparent_of(self.span)}


class RequestTrace:
    """The spans of one request in this worker. ``present``: the innermost open span."""

    __slots__ = ("attempt", "base_ns", "present", "previous", "process", "under_attempt", "under_process")

    def __init__(self, process: Span, *, base_ns: int) -> None:
        self.process = self.present = process
        self.base_ns = base_ns
        """Epoch nanoseconds at monotonic 0, so that a request's times are in order even if its clock is stepped."""
        self.under_process = _EMPTY
        self.attempt: Span | None = None
        self.under_attempt = _EMPTY
        self.previous: SpanContext | None = None
        """The last attempt, here or in the worker before."""

    @property
    def headers(self) -> Mapping[str, str]:
        """As `Traced` has it."""
        return headers_below(self.present)

    def ns(self, now: float) -> int:
        """Monotonic seconds as a span's time."""
        return self.base_ns + int(now * _NS_PER_SECOND)


@dataclass(frozen=True, slots=True)
class _Place:
    """Names and attributes that all spans of a partition share, known when a span is begun, for samplers."""

    process: str
    queue: str
    of_process: dict[str, Any]
    of_queue: dict[str, Any]


class Spans:
    """`Tracing` that records. A request that is not sampled costs the decision and nothing else."""

    def __init__(self, traces: Traces, *, clock: Clock, pool: Pool, backend_url: str | None) -> None:
        """``backend_url``: None if a user's handler runs the requests."""
        self._traces = traces
        self._tracer = traces.tracer("forebay-worker")
        self._decisions = traces.decisions
        self._clock = clock
        self._pool = pool
        self._backend_url = backend_url
        self._places: dict[tuple[str, int], _Place] = {}

    def started(self, work: Work, now: float, now_ms: int) -> None:
        trace = work.trace
        if trace is None:
            trace = self._begin(work, now, now_ms)
        if not isinstance(trace, RequestTrace):
            return
        trace.attempt = self._tracer.start_span(
            "attempt",
            trace.under_process,
            attributes={"forebay.attempt": work.attempt, "forebay.tier": work.tier.value},
            links=() if trace.previous is None else (Link(trace.previous),),
            start_time=trace.ns(now),
        )
        trace.under_attempt = set_span_in_context(trace.attempt, _EMPTY)
        trace.present = trace.attempt
        trace.previous = trace.attempt.get_span_context()

    def execution_ended(self, work: Work, now: float, *, error: str | None) -> None:
        trace = work.trace
        if not isinstance(trace, RequestTrace) or trace.attempt is None:
            return
        if error is not None:
            trace.attempt.set_attribute("error.type", error)
            trace.attempt.set_status(Status(StatusCode.ERROR))
        trace.attempt.end(trace.ns(now))
        trace.attempt = None
        trace.present = trace.process

    def decided(self, work: Work, reason: Reason) -> None:
        trace = self._of(work)
        if trace is None:
            return
        trace.process.set_attributes({"forebay.status": reason.status.value, "forebay.reason": reason.code})
        if reason.status not in _NO_ERRORS:
            trace.process.set_attribute("error.type", reason.code)
            trace.process.set_status(Status(StatusCode.ERROR, reason.meaning))

    def passed_on(self, work: Work, status: str, reason: Reason | None = None) -> None:
        trace = self._of(work)
        if trace is None:
            return
        trace.process.set_attribute("forebay.status", status)
        if reason is not None:
            trace.process.set_attribute("forebay.reason", reason.code)

    def release(self, work: Work) -> None:
        if work.trace is not None:
            self.passed_on(work, "given_back")
            self.delivered(work, self._clock.monotonic())

    def delivered(self, work: Work, now: float) -> None:
        trace = work.trace
        if isinstance(trace, RequestTrace):
            trace.process.end(trace.ns(now))
        work.trace = None

    def onward(self, work: Work) -> Mapping[str, str]:
        trace, is_joined = self._of(work), parse_traceparent(work.history.traceparent) is not None
        if trace is None:
            # Decided once: later attempts keep the decision.
            return {} if is_joined or work.trace is None else work.trace.headers
        of_process = traceparent_of(trace.process.get_span_context())
        headers = {PREVIOUS_SPAN: of_process if trace.previous is None else traceparent_of(trace.previous)}
        if not is_joined:
            # Otherwise it stays: all attempts are siblings below the span that sent the request.
            headers[TRACEPARENT] = of_process
        return headers

    def result_headers(self, work: Work) -> list[Header] | None:
        trace = self._of(work)
        if trace is None:
            return NO_TRACING.result_headers(work)
        return [(name, value.encode()) for name, value in headers_below(trace.process).items()]

    def around(self, backend: Backend) -> Backend:
        if self._backend_url is None:
            return _TracedHandler(backend)
        return _TracedEngine(backend, tracer=self._tracer, clock=self._clock, url=self._backend_url)

    def close(self) -> None:
        self._traces.close()

    def _of(self, work: Work) -> RequestTrace | None:
        """None for a request that is not sampled."""
        trace = work.trace
        if trace is None:
            trace = self._begin(work, self._clock.monotonic(), self._clock.wall_ms())
        return trace if isinstance(trace, RequestTrace) else None

    def _begin(self, work: Work, now: float, now_ms: int) -> RequestTrace | Unsampled:
        """The request leaves its queue, to run or to end without a run."""
        record, history = work.record, work.history
        topic, partition = record.topic(), record.partition()
        place = self._places.get((topic, partition))
        if place is None:
            place = self._places[topic, partition] = self._describe(topic, partition, work)
        found = parse_traceparent(history.traceparent)
        dropped = self._dropped(found, place)
        if dropped is not None:
            unsampled = work.trace = Unsampled(dropped)
            return unsampled
        context, headers = _EMPTY, {}
        if found is not None:
            if found.is_sampled:
                headers = {name: value for name, value in record_headers(record) if value is not None}
            context = below(remote_span(found, _ascii(headers.get(TRACESTATE))))
        base_ns = now_ms * _NS_PER_MS - int(now * _NS_PER_SECOND)
        started_ns = base_ns + int(now * _NS_PER_SECOND)
        process = self._tracer.start_span(
            place.process, context, kind=SpanKind.CONSUMER, attributes=place.of_process, start_time=started_ns
        )
        if not process.is_recording():
            unsampled = work.trace = Unsampled(process.get_span_context())
            return unsampled
        trace = work.trace = RequestTrace(process, base_ns=base_ns)
        trace.under_process = set_span_in_context(process, _EMPTY)
        previous = parse_traceparent(_ascii(dict(record_headers(record)).get(PREVIOUS_SPAN)))
        if previous is not None:
            trace.previous = remote_span(previous)
            process.add_link(trace.previous)
        process.set_attributes(_of_request(work))
        enqueued_ms = work.first_enqueued_at if history.first_enqueued_at is None else record.timestamp()[1]
        if enqueued_ms < EPOCH_MS_MIN:
            enqueued_ms = now_ms
        queue = self._tracer.start_span(
            place.queue,
            trace.under_process if found is None else context,
            attributes=place.of_queue,
            start_time=min(started_ns, enqueued_ms * _NS_PER_MS),
        )
        queue.end(started_ns)
        return trace

    def _dropped(self, found: TraceContext | None, place: _Place) -> SpanContext | None:
        """The context to pass on for a trace that is not kept, if that is known before a span is made."""
        decisions = self._decisions
        if decisions is None:
            return None
        if found is None:
            trace_id = decisions.begin(place.process, SpanKind.CONSUMER, place.of_process)
            return None if trace_id is None else SpanContext(trace_id, trace_id & _SPAN_ID_BITS or 1, False)
        return remote_span(found) if decisions.keeps_to_parents and not found.is_sampled else None

    def _describe(self, topic: str, partition: int, work: Work) -> _Place:
        group = self._pool.retry_group if work.assignment.retry_delay_seconds else self._pool.group(work.tier)
        of_queue = {
            "messaging.system": "kafka",
            "messaging.destination.name": topic,
            "messaging.destination.partition.id": str(partition),
            "messaging.consumer.group.name": group,
            "forebay.tier": work.tier.value,
        }
        operation = {"messaging.operation.name": "process", "messaging.operation.type": "process"}
        return _Place(f"process {topic}", f"queue {topic}", of_queue | operation, of_queue)


def _of_request(work: Work) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "messaging.kafka.offset": work.offset,
        "forebay.attempt": work.attempt,
        "forebay.replay_count": work.history.replay_count,
    }
    if work.request_id is not None:
        attributes["messaging.message.id"] = work.request_id
    if (key := printable_key(work.record.key())) is not None:
        attributes["messaging.kafka.message.key"] = key
    return attributes


def _ascii(value: bytes | None) -> str | None:
    return value.decode("ascii", errors="replace") if value else None


class _TracedHandler:
    """Makes spans of the user's handler children of its attempt."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def run(self, work: Work) -> Answer:
        trace = work.trace
        assert isinstance(trace, RequestTrace | Unsampled)
        token = ambient.attach(below(trace.span) if isinstance(trace, Unsampled) else trace.under_attempt)
        try:
            return await self._backend.run(work)
        finally:
            ambient.detach(token)

    async def close(self) -> None:
        await self._backend.close()


class _TracedEngine:
    """A span for each call of the engine, with OpenTelemetry's names for generative AI."""

    def __init__(self, backend: Backend, *, tracer: Any, clock: Clock, url: str) -> None:
        self._backend = backend
        self._tracer = tracer
        self._clock = clock
        parts = urlsplit(url)
        self._server = {
            # An OpenAI-compatible server: the provider of its model is unknown.
            "gen_ai.provider.name": "openai",
            "server.address": parts.hostname or "",
            "server.port": parts.port or (443 if parts.scheme == "https" else 80),
        }
        self._models: set[str] = set()

    async def run(self, work: Work) -> Answer:
        trace = work.trace
        if not isinstance(trace, RequestTrace):
            return await self._backend.run(work)
        span = self._start(work, trace)
        before, trace.present = trace.present, span
        error: str | None = None
        try:
            answer = await self._backend.run(work)
        except BackendFailed as failed:
            error = failed.failure.reason.code
            if failed.failure.http_status is not None:
                span.set_attribute("http.response.status_code", failed.failure.http_status)
            raise
        except BaseException as ended:
            # A cancellation: at the deadline, on request, or because the worker stops.
            error = type(ended).__name__
            raise
        else:
            span.set_attribute("http.response.status_code", 200)
            if answer.prompt_tokens is not None:
                span.set_attribute("gen_ai.usage.input_tokens", answer.prompt_tokens)
            if answer.output_tokens is not None:
                span.set_attribute("gen_ai.usage.output_tokens", answer.output_tokens)
            return answer
        finally:
            if error is not None:
                span.set_attribute("error.type", error)
                span.set_status(Status(StatusCode.ERROR))
            span.end(trace.ns(self._clock.monotonic()))
            trace.present = before

    def _start(self, work: Work, trace: RequestTrace) -> Span:
        assert work.request is not None
        hints = payload_hints(work.request)
        operation = _OPERATIONS.get(work.request.biz_type, "call")
        attributes = {**self._server, "gen_ai.operation.name": operation}
        name = operation
        if hints.model:
            model = attributes["gen_ai.request.model"] = hints.model[:MODEL_CHARS_MAX]
            if len(self._models) < MODELS_NAMED_MAX:
                self._models.add(model)
            if model in self._models:
                name = f"{operation} {model}"
        if hints.max_tokens is not None:
            attributes["gen_ai.request.max_tokens"] = hints.max_tokens
        span: Span = self._tracer.start_span(
            name,
            trace.under_attempt,
            kind=SpanKind.CLIENT,
            attributes=attributes,
            start_time=trace.ns(self._clock.monotonic()),
        )
        return span

    async def close(self) -> None:
        await self._backend.close()
