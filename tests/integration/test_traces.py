"""Traces over real parts: a service with OpenTelemetry set up, a broker, a worker, an engine, an OTLP receiver."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from forebay_sandbox.engine.process import EngineProcess, running_engine
from forebay_schemas.contract.tiers import Tier
from harness.dead_letters import command_of, replay
from harness.live_pool import LivePool, chat, envelope
from harness.span_receiver import Span, SpanReceiver, receiving_spans
from harness.waiting import wait_until
from harness.workers import running_workers

if TYPE_CHECKING:
    from confluent_kafka import Message

    from forebay_sandbox.kafka.access import KafkaAccess
    from harness.worker_process import WorkerProcess
    from harness.workers import NewWorker

PRODUCER, CONSUMER, CLIENT, INTERNAL = 4, 5, 3, 1

# As a service does it: OpenTelemetry is set up, then the client is made and used within a span.
SUBMITTING = """
import json, sys
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
trace.set_tracer_provider(TracerProvider())
trace.get_tracer_provider().add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
from forebay_producer import Producer
servers, pool, requests = sys.argv[1:]
requests = json.loads(requests)
with Producer(bootstrap_servers=servers, pool=pool) as producer:
    with trace.get_tracer("service").start_as_current_span("caller") as span:
        if len(requests) == 1:
            producer.submit(requests[0], tier="high")
        else:
            assert [one.request_id for one in producer.submit_batch(requests, tier="high")]
trace.get_tracer_provider().shutdown()
print(f"{span.get_span_context().trace_id:032x}")
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    receiver: SpanReceiver
    pool: LivePool
    engine: EngineProcess
    engine_log: Path
    worker: WorkerProcess

    def submit_in_a_span(self, *requests: dict[str, Any]) -> str:
        """The trace that they were submitted in."""
        done = subprocess.run(
            [sys.executable, "-c", SUBMITTING, self.pool.kafka.bootstrap_servers, self.pool.name, json.dumps(requests)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def send_within_a_trace(self, request: dict[str, Any], tier: Tier = Tier.HIGH) -> tuple[str, str]:
        """Trace and span that a foreign client names."""
        trace_id, span_id = secrets.token_hex(16), secrets.token_hex(8)
        traceparent = f"00-{trace_id}-{span_id}-01".encode()
        self.pool.send(tier, json.dumps(request).encode(), headers=[("traceparent", traceparent)])
        return trace_id, span_id

    def engine_saw(self, request_id: str) -> list[dict[str, Any]]:
        lines = map(json.loads, self.engine_log.read_text(encoding="utf-8").splitlines())
        return [line for line in lines if line["request_id"] == request_id]

    def result_headers(self, request_id: str) -> dict[str, Any]:
        records = self.pool.kafka.read_all(self.pool.topics.results)
        [record] = [each for each in records if each.key() == request_id.encode()]
        return headers_of(record)


@pytest.fixture(scope="module")
def traced(kafka: KafkaAccess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traced]:
    folder = tmp_path_factory.mktemp("traced")
    engine_log = folder / "engine.jsonl"
    with (
        receiving_spans() as receiver,
        pytest.MonkeyPatch.context() as patch,
        running_engine(log_path=engine_log, models=["m-1"]) as engine,
        closing(LivePool(kafka)) as pool,
        running_workers(folder) as new_worker,
    ):
        for name, value in receiver.environment().items():
            patch.setenv(name, value)
        worker = new_worker(pool, backend_url=engine.url, limit_max=8, max_retries=1)
        yield Traced(receiver=receiver, pool=pool, engine=engine, engine_log=engine_log, worker=worker)


def headers_of(record: Message) -> dict[str, Any]:
    return dict(record.headers() or [])


def only(spans: list[Span]) -> Span:
    [span] = spans
    return span


def test_a_submit_and_all_that_follows_are_one_trace(traced: Traced) -> None:
    request = envelope("one", payload=chat(output_tokens=3, model="m-1"), tenant="acme")
    trace_id = traced.submit_in_a_span(request)
    result = traced.pool.result("one")
    assert result.status == "completed"
    process = only(traced.receiver.wait_for(trace_id, "process"))
    topic = traced.pool.topics.requests(Tier.HIGH)
    caller = only(traced.receiver.wait_for(trace_id, "caller"))
    send = only(traced.receiver.wait_for(trace_id, f"send {topic}"))
    queue = only(traced.receiver.wait_for(trace_id, f"queue {topic}"))
    attempt = only(traced.receiver.wait_for(trace_id, "attempt"))
    call = only(traced.receiver.wait_for(trace_id, "chat m-1"))

    assert len(traced.receiver.of(trace_id)) == 6
    assert send.parent == caller.span_id
    assert process.parent == queue.parent == send.span_id
    assert (attempt.parent, call.parent) == (process.span_id, attempt.span_id)
    kinds = [send.kind, process.kind, queue.kind, attempt.kind, call.kind]
    assert kinds == [PRODUCER, CONSUMER, INTERNAL, INTERNAL, CLIENT]
    assert queue.end_ns == process.start_ns == attempt.start_ns
    assert attempt.start_ns <= call.start_ns <= call.end_ns <= attempt.end_ns <= process.end_ns
    assert not any(span.is_error for span in (send, process, queue, attempt, call))
    assert process.name == f"process {topic}"
    # The broker's stamp says since when it waited.
    [record] = [each for each in traced.pool.kafka.read_all(topic) if each.key() == b"one"]
    assert queue.start_ns == record.timestamp()[1] * 1_000_000
    assert send.attributes["messaging.kafka.offset"] == process.attributes["messaging.kafka.offset"] == record.offset()
    assert process.attributes["messaging.consumer.group.name"] == traced.pool.topics.group(Tier.HIGH)
    assert process.attributes["messaging.message.id"] == "one"
    assert (process.attributes["forebay.status"], process.attributes["forebay.attempt"]) == ("completed", 1)
    assert "acme" not in json.dumps([dict(span.attributes) for span in (send, process, queue, attempt, call)])
    assert call.attributes["gen_ai.usage.output_tokens"] == 3
    assert call.attributes["http.response.status_code"] == 200
    assert call.attributes["server.port"] == int(traced.engine.url.rpartition(":")[2])
    assert process.service == "forebay-worker"
    assert process.resource["service.instance.id"] == "worker-1"
    [seen] = traced.engine_saw("one")
    # The flags may say more than sampled.
    assert seen["traceparent"].startswith(f"00-{trace_id}-{call.span_id}-0")
    headers = traced.result_headers("one")
    assert list(headers) == ["traceparent"]
    assert headers["traceparent"].startswith(f"00-{trace_id}-{process.span_id}-0".encode())


@pytest.mark.long
def test_each_request_of_a_batch_has_a_span_of_its_own(traced: Traced) -> None:
    trace_id = traced.submit_in_a_span(envelope("batch-1"), envelope("batch-2"))
    traced.pool.results(["batch-1", "batch-2"])
    processes = traced.receiver.wait_for(trace_id, "process", count=2)
    sends = traced.receiver.wait_for(trace_id, "send", count=2)
    assert {span.parent for span in processes} == {span.span_id for span in sends}


@pytest.mark.long
def test_the_command_submits_in_a_trace_of_its_own(traced: Traced, tmp_path: Path) -> None:
    (tmp_path / "one.jsonl").write_text(json.dumps(envelope("commanded")), encoding="utf-8")
    command_of(traced.pool).run("submit", tmp_path / "one.jsonl")
    traced.pool.result("commanded")
    trace_id = traced.result_headers("commanded")["traceparent"][3:35].decode()
    send = only(traced.receiver.wait_for(trace_id, "send"))
    assert (send.parent, send.service) == ("", "forebay-producer")
    assert only(traced.receiver.wait_for(trace_id, "process")).parent == send.span_id


def test_a_retry_is_in_the_same_trace_and_linked_to_the_attempt_before(traced: Traced) -> None:
    traced.engine.faults({"kind": "status", "status": 408, "match": "again", "count": 1})
    trace_id, parent = traced.send_within_a_trace(envelope("again"))
    assert traced.pool.result("again").attempt == 2
    first, second = traced.receiver.wait_for(trace_id, "attempt", count=2)
    before, after = traced.receiver.wait_for(trace_id, "process", count=2)
    assert (before.parent, after.parent) == (parent, parent)
    assert (first.parent, second.parent) == (before.span_id, after.span_id)
    assert first.links == ()
    assert second.links == after.links == ((trace_id, first.span_id),)
    assert first.is_error
    assert first.attributes["error.type"] == "backend_timeout"
    # What was handled is no error of the whole.
    assert not before.is_error
    assert (before.attributes["forebay.status"], after.attributes["forebay.status"]) == ("retried", "completed")
    failed, answered = traced.receiver.wait_for(trace_id, "chat", count=2)
    assert failed.attributes["http.response.status_code"] == 408
    assert [line["traceparent"][36:52] for line in traced.engine_saw("again")] == [failed.span_id, answered.span_id]


def test_a_request_that_names_no_trace_gets_one_for_all_its_attempts(traced: Traced) -> None:
    traced.engine.faults({"kind": "status", "status": 408, "match": "rootless", "count": 1})
    traced.pool.submit(Tier.HIGH, envelope("rootless"))
    assert traced.pool.result("rootless").attempt == 2
    trace_id = traced.result_headers("rootless")["traceparent"][3:35].decode()
    before, after = traced.receiver.wait_for(trace_id, "process", count=2)
    assert (before.parent, after.parent) == ("", before.span_id)
    queues = traced.receiver.wait_for(trace_id, "queue", count=2)
    assert queues[0].parent == before.span_id


@pytest.mark.long
def test_a_replay_goes_on_in_the_trace_and_is_linked_to_the_attempt_that_died(traced: Traced) -> None:
    traced.engine.faults({"kind": "status", "status": 400, "match": "dies", "count": 1})
    trace_id, parent = traced.send_within_a_trace(envelope("dies"), Tier.MID)
    assert traced.pool.result("dies").status == "failed"
    [died] = traced.receiver.wait_for(trace_id, "attempt")
    assert only(traced.receiver.wait_for(trace_id, "process")).is_error
    assert replay(traced.pool, "--id", "dies", "--yes")["replayed"] == 1
    topic = traced.pool.topics.requests(Tier.MID)
    again = only(traced.receiver.wait_for(trace_id, f"replay {topic}"))
    assert (again.parent, again.kind, again.service) == (parent, PRODUCER, "forebay")
    assert again.links == ((trace_id, died.span_id),)
    _, process = traced.receiver.wait_for(trace_id, "process", count=2)
    assert process.parent == again.span_id
    assert process.attributes["forebay.replay_count"] == 1
    assert process.attributes["forebay.status"] == "completed"
    _, attempt = traced.receiver.wait_for(trace_id, "attempt", count=2)
    assert attempt.links == ((trace_id, died.span_id),)


def test_a_request_that_never_ran_ends_its_span_with_what_became_of_it(traced: Traced) -> None:
    trace_id, parent = traced.send_within_a_trace(envelope("too-late", ttl_ms=1))
    assert traced.pool.result("too-late").status == "expired"
    process = only(traced.receiver.wait_for(trace_id, "process"))
    assert process.parent == parent
    assert process.attributes["forebay.status"] == "expired"
    assert process.attributes["error.type"] == process.attributes["forebay.reason"] == "deadline_passed_waiting"
    assert process.is_error
    assert only(traced.receiver.wait_for(trace_id, "queue")).parent == parent
    assert traced.receiver.of(trace_id, "attempt") == []


def test_traceparents_that_break_the_format_are_harmless(traced: Traced) -> None:
    valid = "00-" + "a" * 32 + "-" + "b" * 16
    hostile: list[bytes | None] = [
        None,
        b"",
        b"\xff\xfe\x00",
        b"00-" + b"0" * 32 + b"-" + b"0" * 16 + b"-01",
        b"x" * 20_000,
        f"{valid}-zz".encode(),
        f"{valid}-01\r\nx-evil: 1".encode(),
        f"ff{valid[2:]}-01".encode(),
    ]
    before = len(traced.receiver.spans)
    for number, value in enumerate(hostile):
        headers = [("traceparent", value), ("tracestate", b"\xff=,=,\x00"), ("forebay-previous-span", value)]
        traced.pool.send(Tier.HIGH, json.dumps(envelope(f"hostile-{number}")).encode(), headers=headers)
    results = traced.pool.results([f"hostile-{number}" for number in range(len(hostile))])
    assert {result.status for result in results.values()} == {"completed"}
    wait_until("their spans", lambda: len(traced.receiver.spans) >= before + 4 * len(hostile))
    roots = [span for span in traced.receiver.spans[before:] if span.name.startswith("process")]
    assert {(span.parent, span.links) for span in roots} == {("", ())}
    # A client that writes nonsense does not fill the log either.
    assert [line for line in traced.worker.events() if line.get("logger", "").startswith("opentelemetry")] == []


def test_a_later_state_of_the_trace_reaches_the_engines_side(traced: Traced) -> None:
    trace_id = secrets.token_hex(16)
    headers: list[tuple[str, bytes | None]] = [
        ("traceparent", f"00-{trace_id}-{'c' * 16}-01".encode()),
        ("tracestate", b"vendor=abc,other@x=1"),
    ]
    traced.pool.send(Tier.HIGH, json.dumps(envelope("stateful")).encode(), headers=headers)
    traced.pool.result("stateful")
    traced.receiver.wait_for(trace_id, "process")
    assert traced.result_headers("stateful")["tracestate"] == b"vendor=abc,other@x=1"


def test_what_is_not_sampled_is_passed_on_and_not_recorded(traced: Traced) -> None:
    trace_id = secrets.token_hex(16)
    traceparent = f"00-{trace_id}-{'d' * 16}-00".encode()
    value = json.dumps(envelope("unsampled")).encode()
    traced.pool.send(Tier.HIGH, value, headers=[("traceparent", traceparent)])
    traced.pool.result("unsampled")
    [seen] = traced.engine_saw("unsampled")
    assert (seen["traceparent"][3:35], seen["traceparent"][-2:]) == (trace_id, "00")
    # A later one is exported, so this one would be, too.
    later, _ = traced.send_within_a_trace(envelope("sampled-later"))
    traced.receiver.wait_for(later, "process")
    assert traced.receiver.of(trace_id) == []


@pytest.mark.long
@pytest.mark.parametrize("endpoint", ["hangs", "away"])
def test_an_endpoint_that_hangs_or_is_away_costs_nothing_but_spans(
    endpoint: str, pool: LivePool, new_worker: NewWorker, engine: EngineProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    with receiving_spans() as receiver:
        receiver.hangs = True
        url = receiver.url if endpoint == "hangs" else "http://127.0.0.1:1"
        for name, value in receiver.environment(
            OTEL_EXPORTER_OTLP_ENDPOINT=url, OTEL_BSP_MAX_QUEUE_SIZE="64", OTEL_BSP_MAX_EXPORT_BATCH_SIZE="64"
        ).items():
            monkeypatch.setenv(name, value)
        worker = new_worker(pool, backend_url=engine.url, limit_max=16)
        names = pool.submit(Tier.MID, *(envelope(f"r-{number}") for number in range(300)))
        results = pool.results(names)
        assert {result.status for result in results.values()} == {"completed"}
        if endpoint == "hangs":
            wait_until("an export under way", lambda: receiver.posts)
        assert worker.terminate() < 20
        assert worker.logged("drained")
        assert worker.logged("the last spans are not exported: the endpoint does not answer")


@pytest.mark.long
def test_without_the_extra_a_worker_works_and_its_log_has_the_ids_all_the_same(
    pool: LivePool, new_worker: NewWorker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "opentelemetry.py").write_text("raise ImportError('not installed')\n", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    worker = new_worker(pool, handler="harness.handlers:obey", max_retries=0)
    [line] = worker.logged("no spans are recorded")
    assert "pip install 'forebay-worker[otel]'" in line["error"]
    traceparent = f"00-{'a' * 32}-{'b' * 16}-01".encode()
    value = json.dumps(envelope("plain", biz_type="any", payload={"do": "raise"})).encode()
    pool.send(Tier.MID, value, headers=[("traceparent", traceparent)])
    assert pool.result("plain").reason == "handler_failed"
    [failed] = worker.logged("handler failed")
    assert (failed["trace_id"], failed["span_id"]) == ("a" * 32, "b" * 16)
    [record] = pool.kafka.read_all(pool.topics.results)
    assert record.headers() == [("traceparent", traceparent)]
