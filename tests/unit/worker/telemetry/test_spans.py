"""Which spans a request has, whatever becomes of it: dispatch and outcome with a recording tracer, all in memory."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased, TraceIdRatioBased

from forebay_schemas.contract.control import Control, ControlAction
from forebay_schemas.contract.headers import PREVIOUS_SPAN, TRACEPARENT
from forebay_schemas.contract.reasons import Reason
from forebay_schemas.contract.tiers import Tier
from forebay_schemas.contract.trace_context import TraceContext, parse_traceparent
from forebay_schemas.runtime.otel_context import PresetIds, RootDecisions
from forebay_schemas.runtime.tracing import Traces
from forebay_worker.dispatch.dispatcher import Dispatcher
from forebay_worker.dispatch.overload import OverloadLadder
from forebay_worker.lanes.lanes import Lanes
from forebay_worker.lanes.order import LaneOrder
from forebay_worker.outcome.reporter import Reporter
from forebay_worker.pacing.gate import Gate
from forebay_worker.pacing.policies.fixed import FixedLimit
from forebay_worker.request.backend import BackendFailed
from forebay_worker.request.work import Answer, Failure, Work
from forebay_worker.telemetry.spans import MODELS_NAMED_MAX, Spans
from forebay_worker.telemetry.stats import Stats
from simulated.ports import NOW_MS, ManualClock, MemoryProducer
from simulated.works import POOL, make_assignment, make_work

PARENT = TraceContext("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", 1)
WITHIN: list[tuple[str, bytes | None]] = [(TRACEPARENT, str(PARENT).encode())]
ANSWER = Answer(body={"ok": True}, prompt_tokens=7, output_tokens=9)
FAILED = Failure(reason=Reason.BACKEND_ERROR, error="HTTP 500: secret", http_status=500)
CHARGED = Failure(reason=Reason.BACKEND_ERROR, error="HTTP 500: secret")
"""Without a status that others might get, too: it counts at once."""

REFUSED = Failure(reason=Reason.BACKEND_UNAVAILABLE, error="connection refused", of_backend=True)


class Stage:
    """A dispatcher and a reporter that a tracer hears. One retry is allowed."""

    def __init__(
        self,
        *,
        provider: TracerProvider | None = None,
        decisions: RootDecisions | None = None,
        backend_url: str | None = "http://engine:8000",
    ) -> None:
        self.clock = ManualClock()
        self.producer = MemoryProducer()
        self.exporter = InMemorySpanExporter()
        provider = provider or TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        traces = Traces(provider, is_ours=True, decisions=decisions)
        self.tracing = Spans(traces, clock=self.clock, pool=POOL, backend_url=backend_url)
        stats = Stats()
        self.reporter = Reporter(
            producer=self.producer, pool=POOL, worker_id="w", clock=self.clock, stats=stats, tracing=self.tracing
        )
        self.dispatcher = Dispatcher(
            clock=self.clock,
            gate=Gate(policy=FixedLimit(limit_requests=4), prefill_seconds_max=math.inf),
            predictor=None,
            lanes=Lanes(order=LaneOrder.FIFO),
            overload=OverloadLadder(),
            read_signals=lambda _: (None, None),
            reporter=self.reporter,
            stats=stats,
            buffer_bytes_max=3_000_000,
            retries_max=1,
            tracing=self.tracing,
        )

    def accept(self, work: Work) -> Work:
        self.dispatcher.accept([work])
        return work

    def take(self, seconds: float = 0.0) -> Work:
        self.clock.advance(seconds)
        work = self.dispatcher.take()
        assert work is not None
        return work

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
    """What became of a request, and whether that counts as an error."""
    return attributes(span)["forebay.status"], span.status.status_code is trace.StatusCode.ERROR


def span_id(span: ReadableSpan) -> str:
    assert span.context is not None
    return f"{span.context.span_id:016x}"


def headers(record: Any) -> dict[str, Any]:
    return dict(record.headers() or [])


def test_a_request_waits_runs_and_is_delivered() -> None:
    stage = Stage()
    stage.accept(make_work(headers=WITHIN, offset=5, key=b"k"))
    work = stage.take(seconds=2.0)
    stage.clock.advance(1.5)
    stage.dispatcher.answered(work, ANSWER)
    stage.deliver(seconds=0.25)
    process, queue, attempt = stage.one("process"), stage.one("queue"), stage.one("attempt")
    assert seconds(queue) == (0.0, 2.0)
    assert seconds(attempt) == (2.0, 3.5)
    assert seconds(process) == (2.0, 3.75)
    assert status(process) == ("completed", False)
    assert attributes(process)["messaging.kafka.offset"] == 5
    assert attributes(process)["messaging.kafka.message.key"] == "k"
    assert process.parent is not None
    assert f"{process.parent.span_id:016x}" == PARENT.span_id
    [result] = stage.producer.delivered_to(POOL.results)
    assert headers(result) == {TRACEPARENT: f"00-{PARENT.trace_id}-{span_id(process)}-01".encode()}


def test_a_wall_clock_that_is_set_back_meanwhile_turns_no_span_over() -> None:
    stage = Stage()
    stage.accept(make_work(headers=WITHIN))
    work = stage.take(seconds=1.0)
    stage.clock.step_wall(-3600)
    stage.clock.advance(1.0)
    stage.dispatcher.answered(work, ANSWER)
    stage.deliver()
    assert seconds(stage.one("attempt")) == (1.0, 2.0)
    assert seconds(stage.one("process")) == (1.0, 2.0)


def test_a_stamp_of_the_future_gives_an_empty_queue_span() -> None:
    stage = Stage()
    stage.accept(make_work(headers=WITHIN, enqueued_at=NOW_MS + 5000))
    stage.dispatcher.answered(stage.take(), ANSWER)
    assert seconds(stage.one("queue")) == (0.0, 0.0)


def test_a_failure_is_of_its_attempt_and_the_retry_names_it() -> None:
    stage = Stage()
    stage.accept(make_work(headers=WITHIN))
    stage.dispatcher.failed(stage.take(), CHARGED)
    stage.deliver()
    attempt = stage.one("attempt")
    assert attributes(attempt)["error.type"] == "backend_error"
    assert status(stage.one("process")) == ("retried", False)
    [retry] = [record for record in stage.producer.delivered if record.topic() in POOL.retries]
    carried = headers(retry)
    assert carried[TRACEPARENT] == str(PARENT).encode()
    assert carried[PREVIOUS_SPAN] == f"00-{PARENT.trace_id}-{span_id(attempt)}-01".encode()
    assert not [span for span in stage.spans if "secret" in str(span.to_json())]


def test_a_retry_of_a_request_without_a_trace_is_joined_to_its_first_span() -> None:
    stage = Stage()
    stage.accept(make_work(headers=[(TRACEPARENT, b"nonsense")]))
    stage.dispatcher.failed(stage.take(), CHARGED)
    stage.deliver()
    process = stage.one("process")
    [retry] = [record for record in stage.producer.delivered if record.topic() in POOL.retries]
    found = parse_traceparent(headers(retry)[TRACEPARENT].decode())
    assert found is not None
    assert (found.span_id, process.parent) == (span_id(process), None)
    assert [name for name, _ in retry.headers() or []].count(TRACEPARENT) == 1


def test_a_dead_letter_names_the_attempt_that_died() -> None:
    stage = Stage()
    stage.accept(make_work(headers=[*WITHIN, ("forebay-attempt", b"2")]))
    stage.dispatcher.failed(stage.take(), CHARGED)
    stage.deliver()
    assert status(stage.one("process")) == ("failed", True)
    [letter] = stage.producer.delivered_to(POOL.dead_letter)
    assert headers(letter)[PREVIOUS_SPAN].decode()[36:52] == span_id(stage.one("attempt"))


def test_what_the_backends_state_undid_runs_again_below_the_same_span() -> None:
    stage = Stage()
    stage.accept(make_work(headers=WITHIN))
    stage.dispatcher.failed(stage.take(), REFUSED)
    assert stage.named("process") == []
    stage.clock.advance(10.0)
    stage.dispatcher.tick()
    stage.dispatcher.answered(stage.take(), ANSWER)
    stage.deliver()
    first, second = stage.named("attempt")
    process = stage.one("process")
    assert {span.parent and span.parent.span_id for span in (first, second)} == {
        process.context and process.context.span_id
    }
    assert [f"{link.context.span_id:016x}" for link in second.links] == [span_id(first)]
    assert len(stage.named("queue")) == 1


@pytest.mark.parametrize("way", ["expired", "doomed", "cancelled", "shed", "rejected", "crashed"])
def test_what_never_ran_ends_with_what_became_of_it(way: str) -> None:
    stage = Stage()
    work = make_work(headers=WITHIN, value=b"no json" if way == "rejected" else None)
    work.assignment.claims.claim(work.offset)
    stage.clock.advance(1.0)
    reporter = stage.reporter
    if way == "expired":
        reporter.expired(work, Reason.DEADLINE_PASSED_WAITING)
    elif way == "doomed":
        reporter.doomed(work, predicted_seconds=1.0)
    elif way == "cancelled":
        reporter.cancelled(work)
    elif way == "shed":
        reporter.shed(work, predicted_seconds=1.0, cause="too much")
    elif way == "rejected":
        reporter.rejected(work, Reason.UNDECODABLE, "no")
    else:
        reporter.failed(work, Failure(reason=Reason.WORKER_CRASHED, error="no"), service_seconds=None)
    stage.deliver(seconds=0.5)
    became = {"doomed": "expired", "crashed": "failed"}.get(way, way)
    assert status(stage.one("process")) == (became, way != "cancelled")
    assert seconds(stage.one("queue")) == (0.0, 1.0)
    assert seconds(stage.one("process")) == (1.0, 1.5)
    assert stage.named("attempt") == []


def test_a_cancel_while_it_runs_ends_attempt_and_request() -> None:
    stage = Stage()
    stage.accept(make_work(headers=WITHIN))
    work = stage.take()
    stage.dispatcher.controls.hear(
        Control(action=ControlAction.CANCEL, request_id=work.request_id or "", by="me", at=NOW_MS), NOW_MS
    )
    assert stage.dispatcher.overdue() == [work]
    stage.dispatcher.gave_up(work, deadline_passed=True)
    stage.deliver()
    assert status(stage.one("process")) == ("cancelled", False)
    assert attributes(stage.one("attempt"))["error.type"] == "given_up"


def test_what_is_given_back_or_lost_says_so() -> None:
    stage = Stage()
    stage.accept(make_work(headers=WITHIN))
    stage.dispatcher.gave_up(stage.take(), deadline_passed=False)
    assert status(stage.one("process")) == ("given_back", False)
    stage.exporter.clear()
    assignment = make_assignment(partition=1)
    stage.accept(make_work(assignment, headers=WITHIN))
    work = stage.take()
    assignment.lost = True
    stage.dispatcher.failed(work, CHARGED)
    assert status(stage.one("process")) == ("given_back", False)


def test_expedited_and_sent_twice() -> None:
    stage = Stage()
    work = make_work(headers=WITHIN)
    work.assignment.claims.claim(work.offset)
    stage.reporter.expedite(work)
    stage.deliver()
    assert status(stage.one("process")) == ("expedited", False)
    [copy] = stage.producer.delivered_to(POOL.requests(Tier.HIGH))
    assert headers(copy)[PREVIOUS_SPAN].decode()[36:52] == span_id(stage.one("process"))
    stage.exporter.clear()
    stage.reporter.skip_duplicate(make_work(headers=WITHIN, offset=1))
    assert status(stage.one("process")) == ("duplicate", False)


def test_what_is_not_sampled_is_passed_on_and_leaves_no_span() -> None:
    stage = Stage(provider=TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False))
    stage.accept(make_work(headers=WITHIN))
    work = stage.take()
    assert work.traceparent is not None
    found = parse_traceparent(work.traceparent)
    assert found is not None
    assert (found.trace_id, found.is_sampled) == (PARENT.trace_id, False)
    stage.dispatcher.answered(work, ANSWER)
    stage.deliver()
    assert stage.spans == ()


class Engine:
    """Answers or fails, and remembers what it was told of the trace."""

    def __init__(self, ends: Answer | BaseException) -> None:
        self.ends = ends
        self.told: dict[str, str] = {}
        self.current = ""

    async def run(self, work: Work) -> Answer:
        self.told = dict(work.trace_headers)
        self.current = f"{trace.get_current_span().get_span_context().span_id:016x}"
        if isinstance(self.ends, BaseException):
            raise self.ends
        return self.ends

    async def close(self) -> None:
        pass


def called(stage: Stage, engine: Engine, **fields: Any) -> None:
    stage.accept(make_work(headers=WITHIN, **fields))
    work = stage.take()
    try:
        asyncio.run(stage.tracing.around(engine).run(work))
    except BaseException as error:  # noqa: BLE001 - it is the engine's own
        assert error is engine.ends  # noqa: PT017
    stage.dispatcher.answered(work, ANSWER)


def test_the_engines_call_is_named_as_generative_ai_is() -> None:
    stage = Stage()
    engine = Engine(ANSWER)
    called(stage, engine, payload={"model": "m-1", "max_tokens": 50})
    call = stage.one("chat m-1")
    assert attributes(call) == {
        "gen_ai.provider.name": "openai",
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "m-1",
        "gen_ai.request.max_tokens": 50,
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 9,
        "server.address": "engine",
        "server.port": 8000,
        "http.response.status_code": 200,
    }
    assert engine.told == {TRACEPARENT: f"00-{PARENT.trace_id}-{span_id(call)}-01"}


@pytest.mark.parametrize(
    ("ends", "error", "http_status"),
    [
        (BackendFailed(FAILED), "backend_error", 500),
        (BackendFailed(REFUSED), "backend_unavailable", None),
        (asyncio.CancelledError(), "CancelledError", None),
    ],
)
def test_a_call_that_fails_says_how(ends: BaseException, error: str, http_status: int | None) -> None:
    stage = Stage()
    called(stage, Engine(ends))
    call = attributes(stage.one("chat"))
    assert (call["error.type"], call.get("http.response.status_code")) == (error, http_status)


def test_models_that_a_client_makes_up_do_not_become_names() -> None:
    stage = Stage()
    backend = stage.tracing.around(Engine(ANSWER))
    for number in range(MODELS_NAMED_MAX + 20):
        stage.accept(make_work(offset=number, payload={"model": f"made-up-{number}" + "x" * 1000}))
        work = stage.take()
        asyncio.run(backend.run(work))
        stage.dispatcher.answered(work, ANSWER)
    names = {span.name for span in stage.named("chat")}
    assert len(names) == MODELS_NAMED_MAX + 1
    assert max(map(len, names)) < 150


def test_a_handlers_own_spans_lie_below_its_attempt() -> None:
    stage = Stage(backend_url=None)
    handler = Engine(ANSWER)
    called(stage, handler)
    assert handler.current == span_id(stage.one("attempt"))
    assert stage.named("chat") == []


def test_the_decision_is_made_once_and_with_the_id_that_is_recorded() -> None:
    ids = PresetIds()
    provider = TracerProvider(sampler=ParentBased(TraceIdRatioBased(0.5)), id_generator=ids, shutdown_on_exit=False)
    stage = Stage(provider=provider, decisions=RootDecisions(provider.sampler, ids))
    passed_on = []
    for offset in range(100):
        stage.accept(make_work(offset=offset))
        work = stage.take()
        found = parse_traceparent(work.traceparent)
        assert found is not None
        passed_on.append(found)
        stage.dispatcher.answered(work, ANSWER)
        stage.deliver()
    kept = {found.trace_id for found in passed_on if found.is_sampled}
    assert 20 < len(kept) < 80
    assert {f"{span.context.trace_id:032x}" for span in stage.named("process") if span.context} == kept
    # What comes unsampled stays so, and goes on as it came.
    stage.exporter.clear()
    header = f"00-{PARENT.trace_id}-{PARENT.span_id}-00"
    stage.accept(make_work(offset=100, headers=[(TRACEPARENT, header.encode())]))
    work = stage.take()
    assert work.trace_headers == {TRACEPARENT: header}
    stage.dispatcher.failed(work, CHARGED)
    stage.deliver()
    assert stage.spans == ()
    [retry] = [record for record in stage.producer.delivered if record.topic() in POOL.retries]
    assert headers(retry)[TRACEPARENT].decode() == header


def test_a_trace_that_is_not_kept_stays_so_over_retries() -> None:
    provider = TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False)
    stage = Stage(provider=provider, decisions=RootDecisions(provider.sampler, PresetIds()))
    stage.accept(make_work())
    work = stage.take()
    passed_on = work.traceparent
    stage.dispatcher.failed(work, CHARGED)
    stage.deliver()
    [retry] = [record for record in stage.producer.delivered if record.topic() in POOL.retries]
    assert headers(retry)[TRACEPARENT].decode() == passed_on
    assert passed_on is not None
    assert passed_on.endswith("-00")
