"""Spans of a request, whatever becomes of it: dispatch and outcomes over a producer in memory."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from forebay_schemas.contract.control import Control, ControlAction
from forebay_schemas.contract.headers import PREVIOUS_SPAN, TRACEPARENT
from forebay_schemas.contract.reasons import Reason
from forebay_schemas.contract.tiers import Tier
from forebay_schemas.contract.trace_context import parse_traceparent
from forebay_schemas.runtime.otel_context import PresetIds, RootDecisions
from forebay_worker.request.work import Failure
from simulated.dispatch import REFUSED
from simulated.ports import NOW_MS
from simulated.spans import ANSWER, CHARGED, PARENT, WITHIN, TracedStage, attributes, headers, seconds, span_id, status
from simulated.works import POOL, make_assignment, make_work


def test_a_request_waits_runs_and_is_delivered() -> None:
    stage = TracedStage()
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
    stage = TracedStage()
    stage.accept(make_work(headers=WITHIN))
    work = stage.take(seconds=1.0)
    stage.clock.step_wall(-3600)
    stage.clock.advance(1.0)
    stage.dispatcher.answered(work, ANSWER)
    stage.deliver()
    assert seconds(stage.one("attempt")) == (1.0, 2.0)
    assert seconds(stage.one("process")) == (1.0, 2.0)


def test_a_stamp_of_the_future_gives_an_empty_queue_span() -> None:
    stage = TracedStage()
    stage.accept(make_work(headers=WITHIN, enqueued_at=NOW_MS + 5000))
    stage.dispatcher.answered(stage.take(), ANSWER)
    assert seconds(stage.one("queue")) == (0.0, 0.0)


def test_a_failure_is_of_its_attempt_and_the_retry_names_it() -> None:
    stage = TracedStage()
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
    stage = TracedStage()
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
    stage = TracedStage()
    stage.accept(make_work(headers=[*WITHIN, ("forebay-attempt", b"2")]))
    stage.dispatcher.failed(stage.take(), CHARGED)
    stage.deliver()
    assert status(stage.one("process")) == ("failed", True)
    [letter] = stage.producer.delivered_to(POOL.dead_letter)
    assert headers(letter)[PREVIOUS_SPAN].decode()[36:52] == span_id(stage.one("attempt"))


def test_what_the_backends_state_undid_runs_again_below_the_same_span() -> None:
    stage = TracedStage()
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
    stage = TracedStage()
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
    stage = TracedStage()
    stage.accept(make_work(headers=WITHIN))
    work = stage.take()
    stage.dispatcher.controls.receive(
        Control(action=ControlAction.CANCEL, request_id=work.request_id or "", by="me", at=NOW_MS), NOW_MS
    )
    assert stage.dispatcher.overdue() == [work]
    stage.dispatcher.gave_up(work, deadline_passed=True)
    stage.deliver()
    assert status(stage.one("process")) == ("cancelled", False)
    assert attributes(stage.one("attempt"))["error.type"] == "given_up"


def test_what_is_given_back_or_lost_says_so() -> None:
    stage = TracedStage()
    stage.accept(make_work(headers=WITHIN))
    stage.dispatcher.gave_up(stage.take(), deadline_passed=False)
    assert status(stage.one("process")) == ("given_back", False)
    stage.exporter.clear()
    assignment = make_assignment(partition=1)
    stage.accept(make_work(assignment, offset=1, headers=WITHIN))
    work = stage.take()
    assignment.lost = True
    stage.dispatcher.failed(work, CHARGED)
    assert status(stage.one("process")) == ("given_back", False)


def test_expedited_and_sent_twice() -> None:
    stage = TracedStage()
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
    stage = TracedStage(provider=TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False))
    stage.accept(make_work(headers=WITHIN))
    work = stage.take()
    assert work.traceparent is not None
    found = parse_traceparent(work.traceparent)
    assert found is not None
    assert (found.trace_id, found.is_sampled) == (PARENT.trace_id, False)
    stage.dispatcher.answered(work, ANSWER)
    stage.deliver()
    assert stage.spans == ()


def test_a_trace_that_is_not_kept_stays_so_over_retries() -> None:
    provider = TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False)
    stage = TracedStage(provider=provider, decisions=RootDecisions(provider.sampler, PresetIds()))
    stage.accept(make_work())
    work = stage.take()
    passed_on = work.traceparent
    stage.dispatcher.failed(work, CHARGED)
    stage.deliver()
    [retry] = [record for record in stage.producer.delivered if record.topic() in POOL.retries]
    assert headers(retry)[TRACEPARENT].decode() == passed_on
    assert passed_on is not None
    assert passed_on.endswith("-00")
