"""Spans of the calls of a backend, and which traces are kept."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

from forebay_schemas.contract.headers import TRACEPARENT
from forebay_schemas.contract.trace_context import parse_traceparent
from forebay_schemas.runtime.otel_context import PresetIds, RootDecisions
from forebay_worker.request.backend import BackendFailed
from forebay_worker.request.work import Answer, Work
from forebay_worker.telemetry.spans import MODELS_NAMED_MAX
from simulated.dispatch import REFUSED
from simulated.spans import ANSWER, CHARGED, FAILED, PARENT, WITHIN, TracedStage, attributes, headers, span_id
from simulated.works import POOL, make_work


class TracedBackend:
    """Answers or fails, and keeps the trace headers that it got."""

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


def called(stage: TracedStage, engine: TracedBackend, **fields: Any) -> None:
    stage.accept(make_work(headers=WITHIN, **fields))
    work = stage.take()
    try:
        asyncio.run(stage.tracing.around(engine).run(work))
    except BaseException as error:  # noqa: BLE001 - it is the engine's own
        assert error is engine.ends  # noqa: PT017
    stage.dispatcher.answered(work, ANSWER)


def test_the_engines_call_is_named_as_generative_ai_is() -> None:
    stage = TracedStage()
    engine = TracedBackend(ANSWER)
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
    stage = TracedStage()
    called(stage, TracedBackend(ends))
    call = attributes(stage.one("chat"))
    assert (call["error.type"], call.get("http.response.status_code")) == (error, http_status)


def test_models_that_a_client_makes_up_do_not_become_names() -> None:
    stage = TracedStage()
    backend = stage.tracing.around(TracedBackend(ANSWER))
    for number in range(MODELS_NAMED_MAX + 20):
        stage.accept(make_work(offset=number, payload={"model": f"made-up-{number}" + "x" * 1000}))
        work = stage.take()
        asyncio.run(backend.run(work))
        stage.dispatcher.answered(work, ANSWER)
    names = {span.name for span in stage.named("chat")}
    assert len(names) == MODELS_NAMED_MAX + 1
    assert max(map(len, names)) < 150


def test_a_handlers_own_spans_lie_below_its_attempt() -> None:
    stage = TracedStage(backend_url=None)
    handler = TracedBackend(ANSWER)
    called(stage, handler)
    assert handler.current == span_id(stage.one("attempt"))
    assert stage.named("chat") == []


def test_the_decision_is_made_once_and_with_the_id_that_is_recorded() -> None:
    ids = PresetIds()
    provider = TracerProvider(sampler=ParentBased(TraceIdRatioBased(0.5)), id_generator=ids, shutdown_on_exit=False)
    stage = TracedStage(provider=provider, decisions=RootDecisions(provider.sampler, ids))
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
