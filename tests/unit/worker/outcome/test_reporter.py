"""Outcomes: what each ending writes."""

from __future__ import annotations

import msgspec
import pytest

from forebay_schemas.contract.coordination import Notice, NoticeKind, decode_notice
from forebay_schemas.contract.headers import headers_size_bytes, read_history
from forebay_schemas.contract.reasons import Reason, Status
from forebay_schemas.contract.results import ERROR_CHARS_MAX, Result
from forebay_schemas.contract.tiers import Tier
from forebay_worker.outcome.delivery import AGAIN_SECONDS
from forebay_worker.request.work import Answer, Failure
from simulated.outcomes import FAILED, Outcomes, failing, is_finished
from simulated.ports import NOW_MS
from simulated.works import POOL, make_assignment, make_work


def test_a_result_says_what_happened_under_the_requests_id() -> None:
    desk = Outcomes()
    work = make_work(make_assignment(Tier.HIGH), offset=4, request_id="a", headers=[("forebay-attempt", b"2")])
    desk.clock.advance(2.0)
    answer = Answer(body=msgspec.Raw(b'{"choices": []}'), prompt_tokens=3, output_tokens=9)
    desk.reporter.completed(work, answer, service_seconds=0.5)
    desk.poll()
    (record,) = desk.producer.delivered
    assert (record.topic(), record.key()) == (POOL.results, b"a")
    assert desk.results() == [
        Result(
            request_id="a",
            status=Status.COMPLETED,
            reason="completed",
            tier="high",
            attempt=2,
            worker="worker-1",
            queue_seconds=1.5,
            service_seconds=0.5,
            prompt_tokens=3,
            output_tokens=9,
            finished_at=NOW_MS + 2_000,
            body={"choices": []},
        )
    ]
    assert is_finished(work)
    assert desk.settled()


def test_an_expired_request_says_how_late_it_was_and_is_no_dead_letter() -> None:
    desk = Outcomes()
    work = make_work(ttl_ms=1_000)
    desk.clock.advance(1.25)
    desk.reporter.expired(work, Reason.DEADLINE_PASSED_WAITING)
    desk.poll()
    (result,) = desk.results()
    assert (result.status, result.reason, result.service_seconds) == (Status.EXPIRED, "deadline_passed_waiting", None)
    assert result.error == "the deadline passed 0.250 s ago"
    assert result.queue_seconds == 1.25
    assert desk.producer.delivered_to(POOL.dead_letter) == []


def test_a_clock_that_goes_back_makes_no_negative_times() -> None:
    desk = Outcomes()
    desk.complete(make_work(enqueued_at=NOW_MS + 60_000))
    desk.poll()
    assert desk.results()[0].queue_seconds == 0


def test_an_errors_text_is_cut_and_cleaned() -> None:
    desk = Outcomes()
    work = make_work()
    desk.reporter.failed(work, Failure(reason=Reason.BACKEND_ERROR, error="\ud800" + "x" * 10_000), service_seconds=1)
    desk.poll()
    error = desk.results()[0].error
    assert error is not None
    assert (len(error), error[:2]) == (ERROR_CHARS_MAX, "?x")
    assert is_finished(work)


@pytest.mark.parametrize("body", [object(), {"x": object()}, "\ud800"])
def test_a_handlers_answer_that_is_no_json_fails_the_request(body: object) -> None:
    desk = Outcomes()
    work = make_work()
    desk.complete(work, body)
    desk.poll()
    (result,) = desk.results()
    assert (result.status, result.reason) == (Status.FAILED, "handler_failed")
    assert "JSON" in (result.error or "")
    assert len(desk.producer.delivered_to(POOL.dead_letter)) == 1
    assert is_finished(work)
    assert list(desk.stats.outcomes.values()) == [1]


@pytest.mark.parametrize("request_id", ["a", None])
def test_what_cannot_be_decoded_is_kept_and_answered_when_it_says_for_whom(request_id: str | None) -> None:
    desk = Outcomes()
    value = b'{"request_id": "a", "payload": 3}' if request_id else b"\xff\x00"
    work = make_work(value=value)
    desk.reporter.rejected(work, Reason.UNDECODABLE, str(work.problem))
    assert not is_finished(work)
    desk.poll()
    assert [result.request_id for result in desk.results()] == ([request_id] if request_id else [])
    assert [record.value() for record in desk.producer.delivered_to(POOL.dead_letter)] == [value]
    assert is_finished(work)


# Tried again later


def test_a_retry_is_the_same_request_with_its_past_and_no_outcome_yet() -> None:
    desk = Outcomes()
    foreign: list[tuple[str, bytes | None]] = [("x", b"\xff"), ("forebay-tenant", b"t"), ("traceparent", b"p")]
    work = make_work(make_assignment(Tier.HIGH), offset=7, key=b"\xfe", headers=foreign, enqueued_at=NOW_MS - 900)
    desk.reporter.retry(work, FAILED, delay_seconds=5)
    assert not is_finished(work), "before it is delivered"
    desk.poll()
    [record] = desk.producer.delivered
    assert (record.topic(), record.key(), record.value()) == (POOL.retry(Tier.HIGH, 5), b"\xfe", work.record.value())
    assert list(record.headers() or [])[:3] == foreign
    history = read_history(record.headers())
    assert (history.attempt, history.not_before) == (2, NOW_MS + 5_000)
    assert history.first_enqueued_at == NOW_MS - 900
    assert list(work.assignment.done) == [7]
    assert (desk.stats.retries[Tier.HIGH], desk.stats.outcomes) == (1, {})
    assert desk.settled()


def test_the_tenth_retry_is_no_bigger_than_the_second() -> None:
    desk = Outcomes()
    headers: list[tuple[str, bytes | None]] | None = [("x", b"1"), ("x", b"2")]
    sizes = []
    for attempt in range(10):
        work = make_work(make_assignment(retry_delay_seconds=30), offset=attempt, headers=headers)
        desk.reporter.retry(work, FAILED, delay_seconds=30)
        desk.poll()
        headers = desk.producer.delivered[-1].headers()
        sizes.append(headers_size_bytes(headers))
    assert sizes == [sizes[0]] * 8 + [sizes[0] + 1] * 2, "ten has two digits"
    assert read_history(headers).attempt == 11


def test_a_retry_that_cannot_be_delivered_is_made_again_and_the_request_stays_unfinished() -> None:
    desk = Outcomes()
    work = make_work()
    desk.producer.fail = failing(2)
    desk.reporter.retry(work, FAILED, delay_seconds=1)
    desk.poll()
    assert not is_finished(work)
    for _ in range(4):
        desk.poll(AGAIN_SECONDS)
    assert list(work.assignment.done) == [0]
    assert len(desk.producer.delivered_to(POOL.retry(Tier.MID, 1))) == 1


@pytest.mark.parametrize("delay_seconds", [0, 5])
def test_a_dead_letter_names_the_group_that_read_the_request(delay_seconds: int) -> None:
    desk = Outcomes()
    work = make_work(make_assignment(retry_delay_seconds=delay_seconds))
    desk.reporter.failed(work, FAILED, service_seconds=1.0)
    desk.poll()
    [letter] = desk.producer.delivered_to(POOL.dead_letter)
    group = POOL.retry_group if delay_seconds else POOL.group(Tier.MID)
    assert dict(letter.headers() or [])["kafka_dlt-original-consumer-group"] == group.encode()


# Known outcomes


@pytest.mark.parametrize("end", ["completed", "failed", "expired", "tried again"])
def test_an_outcome_is_known_once_it_is_delivered(end: str) -> None:
    desk = Outcomes()
    work, again = make_work(request_id="a"), make_work(request_id="a", offset=1)
    if end == "completed":
        desk.complete(work)
    elif end == "failed":
        desk.reporter.failed(work, FAILED, service_seconds=1.0)
    elif end == "expired":
        desk.reporter.expired(work, Reason.DEADLINE_PASSED_WAITING)
    else:
        desk.reporter.retry(work, FAILED, delay_seconds=1)
    assert not desk.reporter.is_known(again, desk.clock.monotonic())
    desk.poll()
    assert desk.reporter.is_known(again, desk.clock.monotonic()) is (end != "tried again")


def test_a_shed_request_says_why_and_when_it_would_have_ended_and_is_no_dead_letter() -> None:
    desk = Outcomes()
    work = make_work(make_assignment(Tier.LOW), ttl_ms=10_000)
    desk.clock.advance(1.0)
    desk.reporter.shed(work, predicted_seconds=14.25, cause="a new high request waits 2.40 s")
    desk.poll()
    [result] = desk.results()
    assert (result.status, result.reason, result.predicted_seconds) == ("shed", "shed_overload", 14.25)
    assert result.error == "it would end in 14.250 s and has 9.000 s left; a new high request waits 2.40 s"
    assert desk.producer.delivered_to(POOL.dead_letter) == []
    assert desk.stats.outcomes == {(Tier.LOW, Reason.SHED_OVERLOAD): 1}
    assert is_finished(work)


def test_a_result_says_which_replay_it_is_the_outcome_of() -> None:
    desk = Outcomes()
    desk.complete(make_work(headers=[("forebay-replay-count", b"2")]))
    desk.poll()
    assert desk.results()[0].replay_count == 2


# Notices to the other workers


NOTICE = Notice(kind=NoticeKind.FINISHED, worker="worker-1", topic="t", partition=3, offsets=[1, 5])


def test_a_notice_goes_to_the_coordination_topic_and_says_when_it_is_durable() -> None:
    desk = Outcomes()
    received: list[bool] = []
    desk.reporter.announcer.send_notice(NOTICE, received.append)
    assert received == []
    desk.poll()
    [record] = desk.producer.delivered
    assert (record.topic(), record.key()) == (POOL.coordination, b"worker-1")
    assert decode_notice(record.value() or b"") == NOTICE
    assert received == [True]
    assert desk.settled(), "a notice is no outcome"


@pytest.mark.parametrize("how", ["refused", "queue full", "not delivered"])
def test_a_notice_that_fails_says_so_and_is_not_made_again(how: str) -> None:
    desk = Outcomes()
    if how == "refused":
        desk.producer.refuse = failing(1)
    elif how == "queue full":
        desk.producer.queue_free = 0
    else:
        desk.producer.fail = failing(1)
    received: list[bool] = []
    desk.reporter.announcer.send_notice(NOTICE, received.append)
    desk.poll(AGAIN_SECONDS)
    desk.poll(AGAIN_SECONDS)
    assert (received, desk.producer.delivered) == ([False], [])
