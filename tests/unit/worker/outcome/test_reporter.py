"""Outcomes: each is delivered and counted once, however often its delivery fails; only then is it finished."""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec
import pytest
from confluent_kafka import KafkaError

from forebay_schemas.contract.coordination import Notice, NoticeKind, decode_notice
from forebay_schemas.contract.headers import headers_size_bytes, read_history
from forebay_schemas.contract.reasons import Reason, Status
from forebay_schemas.contract.results import ERROR_CHARS_MAX, Result, decode_result
from forebay_schemas.contract.tiers import Tier
from forebay_schemas.contract.topics import LATER_BYTES_MAX
from forebay_worker.bounds import BOUNDS
from forebay_worker.outcome.delivery import AGAIN_SECONDS, DELIVERY_STALL_SECONDS, REFUSED_AGAIN_SECONDS
from forebay_worker.outcome.reporter import Reporter
from forebay_worker.request.work import Answer, Failure, Work
from forebay_worker.telemetry.stats import Stats
from simulated.ports import NOW_MS, ManualClock, MemoryProducer, MemoryRecord
from simulated.works import POOL, make_assignment, make_work

GONE = KafkaError(KafkaError._MSG_TIMED_OUT)
FAILED = Failure(reason=Reason.BACKEND_ERROR, error="HTTP 500: no")


class Desk:
    """A reporter over a producer in memory."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.producer = MemoryProducer()
        self.stats = Stats()
        self.reporter = Reporter(
            producer=self.producer, pool=POOL, worker_id="worker-1", clock=self.clock, stats=self.stats
        )

    def poll(self, seconds: float = 0.0) -> None:
        self.clock.advance(seconds)
        self.reporter.delivery.poll()

    def accepts(self) -> bool:
        return self.reporter.delivery.accepts(self.clock.monotonic())

    def complete(self, work: Work, body: object = None) -> None:
        self.reporter.completed(work, Answer(body={"ok": True} if body is None else body), service_seconds=0.5)

    def results(self) -> list[Result]:
        return [decode_result(record.value()) for record in self.producer.delivered_to(POOL.results)]

    def settled(self) -> bool:
        return (self.reporter.delivery.undelivered_records, self.reporter.delivery.undelivered_bytes) == (0, 0)


def is_finished(work: Work) -> bool:
    return work.offset in work.assignment.done


def failing(times: int, error: KafkaError = GONE) -> Callable[[MemoryRecord], KafkaError | None]:
    """Fails that many deliveries and then no more."""
    left = iter([error] * times)
    return lambda _: next(left, None)


# What a result says


def test_a_result_says_what_happened_under_the_requests_id() -> None:
    desk = Desk()
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
    desk = Desk()
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
    desk = Desk()
    desk.complete(make_work(enqueued_at=NOW_MS + 60_000))
    desk.poll()
    assert desk.results()[0].queue_seconds == 0


def test_an_errors_text_is_cut_and_cleaned() -> None:
    desk = Desk()
    work = make_work()
    desk.reporter.failed(work, Failure(reason=Reason.BACKEND_ERROR, error="\ud800" + "x" * 10_000), service_seconds=1)
    desk.poll()
    error = desk.results()[0].error
    assert error is not None
    assert (len(error), error[:2]) == (ERROR_CHARS_MAX, "?x")
    assert is_finished(work)


@pytest.mark.parametrize("body", [object(), {"x": object()}, "\ud800"])
def test_a_handlers_answer_that_is_no_json_fails_the_request(body: object) -> None:
    desk = Desk()
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
    desk = Desk()
    value = b'{"request_id": "a", "payload": 3}' if request_id else b"\xff\x00"
    work = make_work(value=value)
    desk.reporter.rejected(work, Reason.UNDECODABLE, str(work.problem))
    assert not is_finished(work)
    desk.poll()
    assert [result.request_id for result in desk.results()] == ([request_id] if request_id else [])
    assert [record.value() for record in desk.producer.delivered_to(POOL.dead_letter)] == [value]
    assert is_finished(work)


# Finished only after delivery


def test_nothing_is_finished_before_it_is_delivered() -> None:
    desk = Desk()
    work = make_work()
    desk.producer.holding = True
    desk.complete(work)
    desk.poll(1.0)
    assert not is_finished(work)
    desk.producer.holding = False
    desk.poll()
    assert is_finished(work)


@pytest.mark.parametrize("lost_topic", [POOL.results, POOL.dead_letter])
def test_a_failed_request_is_finished_after_both_its_records_and_the_letter_comes_first(lost_topic: str) -> None:
    desk = Desk()
    work = make_work()
    desk.producer.fail = lambda record: GONE if record.topic() == lost_topic else None
    desk.reporter.failed(work, FAILED, service_seconds=1.0)
    desk.poll()
    # Who finds the result after a crash of this worker may take it that the letter is there.
    first = [POOL.dead_letter] if lost_topic == POOL.results else []
    assert [record.topic() for record in desk.producer.delivered] == first
    assert not is_finished(work)
    desk.producer.fail = failing(0)
    desk.poll(AGAIN_SECONDS)
    desk.poll()
    assert list(work.assignment.done) == [0]
    assert [record.topic() for record in desk.producer.delivered] == [POOL.dead_letter, POOL.results]
    assert desk.settled()


def test_a_delivery_that_fails_is_made_again_and_counts_once() -> None:
    desk = Desk()
    work = make_work()
    desk.producer.fail = failing(3)
    desk.complete(work)
    for _ in range(8):
        desk.poll(AGAIN_SECONDS)
    assert [result.request_id for result in desk.results()] == ["r-0"]
    assert list(work.assignment.done) == [0]
    assert desk.stats.produce_failures == 3
    assert desk.settled()


def test_a_failed_delivery_is_not_made_again_at_once() -> None:
    desk = Desk()
    desk.producer.fail = failing(1_000_000)
    desk.complete(make_work())
    for _ in range(20):
        desk.poll(AGAIN_SECONDS / 20)
    assert desk.stats.produce_failures <= 2


def test_a_full_queue_delays_and_loses_nothing() -> None:
    desk = Desk()
    desk.producer.queue_free = 3
    works = [make_work(offset=offset) for offset in range(10)]
    for work in works[:5]:
        desk.complete(work)
    for work in works[5:]:
        desk.reporter.failed(work, FAILED, service_seconds=1.0)
    for _ in range(10):
        desk.poll(AGAIN_SECONDS)
    assert all(list(work.assignment.done) == [work.offset] for work in works)
    assert len(desk.results()) == 10
    assert len(desk.producer.delivered_to(POOL.dead_letter)) == 5
    assert desk.settled()


def test_a_refusal_by_the_client_itself_is_made_again_too() -> None:
    desk = Desk()
    work = make_work()
    desk.producer.refuse = failing(2, KafkaError(KafkaError._STATE))
    desk.complete(work)
    for _ in range(4):
        desk.poll(AGAIN_SECONDS)
    assert is_finished(work)
    assert desk.settled()


def test_two_requests_of_one_id_in_flight_are_each_finished_by_their_own_result() -> None:
    desk = Desk()
    first, second, third = (make_work(offset=offset, request_id="same") for offset in range(3))
    desk.producer.holding = True
    for work in (first, second, third):
        desk.complete(work, {"from": work.offset})
    desk.producer.holding = False
    outcomes = iter([None, GONE, None])
    desk.producer.fail = lambda _: next(outcomes, None)
    desk.poll()
    assert [is_finished(work) for work in (first, second, third)] == [True, False, True]
    desk.poll(AGAIN_SECONDS)
    desk.poll()
    assert is_finished(second)
    assert [result.body for result in desk.results()] == [{"from": 0}, {"from": 2}, {"from": 1}]
    assert desk.settled()


# Refused for good


@pytest.mark.parametrize(
    "code", [KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError._UNKNOWN_TOPIC, KafkaError.POLICY_VIOLATION]
)
@pytest.mark.parametrize("by", ["the client", "the broker"])
def test_what_kafka_refuses_for_good_stops_its_partition_loudly_until_it_is_taken(code: int, by: str) -> None:
    desk = Desk()
    refuse: Callable[[MemoryRecord], KafkaError | None] = lambda _: KafkaError(code)  # noqa: E731 - it is assigned
    desk.producer.refuse, desk.producer.fail = (refuse, failing(0)) if by == "the client" else (failing(0), refuse)
    work, other = make_work(offset=4), make_work(make_assignment(partition=1))
    desk.complete(work)
    desk.poll()
    assert (work.assignment.refused or "").startswith(f"{POOL.results}: ")
    assert other.assignment.refused is None
    failures = desk.stats.produce_failures
    for _ in range(10):
        desk.poll(REFUSED_AGAIN_SECONDS / 11)
    assert desk.stats.produce_failures == failures, "it does not loop hot"
    assert not is_finished(work)
    desk.producer.refuse = desk.producer.fail = failing(0)
    desk.poll(REFUSED_AGAIN_SECONDS)
    desk.poll()
    assert work.assignment.refused is None
    assert list(work.assignment.done) == [4]
    assert desk.settled()


def test_a_passing_failure_stops_no_partition() -> None:
    desk = Desk()
    desk.producer.fail = failing(1)
    work = make_work()
    desk.complete(work)
    desk.poll()
    assert work.assignment.refused is None


def test_what_is_refused_for_good_does_not_hold_up_what_failed_for_a_moment() -> None:
    desk = Desk()
    desk.producer.fail = failing(1, KafkaError(KafkaError.POLICY_VIOLATION))
    desk.complete(make_work(offset=0))
    desk.poll()
    desk.producer.fail = failing(1)
    work = make_work(offset=1)
    desk.complete(work)
    desk.poll()
    desk.poll(AGAIN_SECONDS)
    desk.poll()
    assert is_finished(work)


def test_a_producer_that_can_never_deliver_again_says_why() -> None:
    desk = Desk()
    desk.producer.fail = failing(1)
    desk.complete(make_work())
    desk.poll()
    assert desk.reporter.delivery.fatal is None
    desk.producer.fail = failing(1, KafkaError(KafkaError._FENCED, "another one has its id", fatal=True))
    desk.complete(make_work(offset=1))
    desk.poll()
    assert desk.reporter.delivery.fatal == "another one has its id"


# Tried again later


def test_a_retry_is_the_same_request_with_its_past_and_no_outcome_yet() -> None:
    desk = Desk()
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
    desk = Desk()
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
    desk = Desk()
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
    desk = Desk()
    work = make_work(make_assignment(retry_delay_seconds=delay_seconds))
    desk.reporter.failed(work, FAILED, service_seconds=1.0)
    desk.poll()
    [letter] = desk.producer.delivered_to(POOL.dead_letter)
    group = POOL.retry_group if delay_seconds else POOL.group(Tier.MID)
    assert dict(letter.headers() or [])["kafka_dlt-original-consumer-group"] == group.encode()


# Known outcomes


@pytest.mark.parametrize("end", ["completed", "failed", "expired", "tried again"])
def test_an_outcome_is_known_once_it_is_delivered(end: str) -> None:
    desk = Desk()
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
    desk = Desk()
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
    desk = Desk()
    desk.complete(make_work(headers=[("forebay-replay-count", b"2")]))
    desk.poll()
    assert desk.results()[0].replay_count == 2


# Notices to the other workers


NOTICE = Notice(kind=NoticeKind.FINISHED, worker="worker-1", topic="t", partition=3, offsets=[1, 5])


def test_a_notice_goes_to_the_coordination_topic_and_says_when_it_is_durable() -> None:
    desk = Desk()
    heard: list[bool] = []
    desk.reporter.announcer.send_notice(NOTICE, heard.append)
    assert heard == []
    desk.poll()
    [record] = desk.producer.delivered
    assert (record.topic(), record.key()) == (POOL.coordination, b"worker-1")
    assert decode_notice(record.value() or b"") == NOTICE
    assert heard == [True]
    assert desk.settled(), "a notice is no outcome"


@pytest.mark.parametrize("how", ["refused", "queue full", "not delivered"])
def test_a_notice_that_fails_says_so_and_is_not_made_again(how: str) -> None:
    desk = Desk()
    if how == "refused":
        desk.producer.refuse = failing(1)
    elif how == "queue full":
        desk.producer.queue_free = 0
    else:
        desk.producer.fail = failing(1)
    heard: list[bool] = []
    desk.reporter.announcer.send_notice(NOTICE, heard.append)
    desk.poll(AGAIN_SECONDS)
    desk.poll(AGAIN_SECONDS)
    assert (heard, desk.producer.delivered) == ([False], [])


# Too large


def test_a_result_too_large_for_its_topic_fails_the_request() -> None:
    desk = Desk()
    work = make_work()
    desk.complete(work, {"text": "x" * LATER_BYTES_MAX})
    desk.poll()
    (result,) = desk.results()
    assert (result.status, result.reason, result.body) == (Status.FAILED, "result_too_large", None)
    assert len(desk.producer.delivered_to(POOL.dead_letter)) == 1
    assert is_finished(work)


@pytest.mark.parametrize("by", ["the client", "the broker"])
def test_a_retry_too_large_for_its_topic_ends_the_request(by: str) -> None:
    def refuse(record: MemoryRecord) -> KafkaError | None:
        large = record.topic() in POOL.retries
        return KafkaError(KafkaError.MSG_SIZE_TOO_LARGE) if large else None

    desk = Desk()
    if by == "the client":
        desk.producer.refuse = refuse
    else:
        desk.producer.fail = refuse
    work = make_work(offset=7, payload={"x": "y" * 100_000})
    desk.reporter.retry(work, FAILED, delay_seconds=1)
    for _ in range(3):
        desk.poll(AGAIN_SECONDS)
    assert list(work.assignment.done) == [7]
    [result] = desk.results()
    assert (result.status, result.reason) == (Status.FAILED, "backend_error")
    assert "too large" in (result.error or "")
    assert [letter.value() for letter in desk.producer.delivered_to(POOL.dead_letter)] == [work.record.value()]
    assert desk.settled()


def test_the_largest_result_that_fits_is_delivered() -> None:
    desk = Desk()
    desk.complete(make_work(), {"text": "x" * (LATER_BYTES_MAX - 5_000)})
    desk.poll()
    assert desk.results()[0].status is Status.COMPLETED


@pytest.mark.parametrize("by", ["the client", "the broker"])
@pytest.mark.parametrize("kind", ["completed", "failed"])
def test_size_never_stops_a_partition(by: str, kind: str) -> None:
    """A topic whose limit was lowered, or a record that only its compression made small enough."""

    def refuse(record: MemoryRecord) -> KafkaError | None:
        large = len(record.value() or b"") > 100_000
        return KafkaError(KafkaError.MSG_SIZE_TOO_LARGE) if large else None

    desk = Desk()
    if by == "the client":
        desk.producer.refuse = refuse
    else:
        desk.producer.fail = refuse
    work = make_work(offset=7, payload={"x": "y" * 200_000})
    if kind == "completed":
        desk.complete(work, {"text": "x" * 200_000})
    else:
        desk.reporter.failed(work, FAILED, service_seconds=1.0)
    for _ in range(3):
        desk.poll(AGAIN_SECONDS)
    assert list(work.assignment.done) == [7]
    (result,) = desk.results()
    assert (result.status, result.reason) == (
        Status.FAILED,
        "result_too_large" if kind == "completed" else "backend_error",
    )
    (letter,) = desk.producer.delivered_to(POOL.dead_letter)
    assert letter.value() is None
    assert f"only at {POOL.requests(Tier.MID)}:0:7" in str(letter.headers())
    assert desk.settled()


# When to stop


def test_nothing_is_started_when_no_result_is_delivered_any_more_and_again_when_one_is() -> None:
    desk = Desk()
    desk.poll(100.0)
    assert desk.accepts(), "nothing waits"
    desk.producer.holding = True
    desk.complete(make_work())
    assert desk.accepts()
    desk.poll(DELIVERY_STALL_SECONDS - 0.1)
    assert desk.accepts()
    desk.poll(0.1)
    assert not desk.accepts()
    desk.producer.holding = False
    desk.poll()
    assert desk.accepts()


def test_slow_deliveries_are_no_stall() -> None:
    desk = Desk()
    desk.producer.fail = lambda record: None if int(decode_result(record.value()).body["n"]) % 2 else GONE
    for number in range(20):
        desk.complete(make_work(offset=number), {"n": number})
        desk.poll(0.5)
        assert desk.accepts()


@pytest.mark.parametrize(
    ("count", "size"),
    [(BOUNDS.undelivered_records_max, 1), (20, BOUNDS.undelivered_bytes_max // 20)],
    ids=["records", "bytes"],
)
def test_nothing_is_started_while_outcomes_pile_up(count: int, size: int) -> None:
    desk = Desk()
    desk.producer.holding = True
    work = make_work()
    body = msgspec.Raw(b'"' + b"x" * size + b'"')
    for _ in range(count):
        assert desk.accepts()
        desk.complete(work, body)
    assert not desk.accepts()
    desk.producer.holding = False
    desk.poll()
    assert desk.accepts()
    assert desk.settled()


def test_whatever_fails_each_outcome_is_delivered_and_counted_once() -> None:
    rng = random.Random(5)
    desk = Desk()
    desk.producer.fail = lambda _: GONE if rng.random() < 0.3 else None
    works = [make_work(offset=offset, request_id=f"r-{offset % 40}") for offset in range(120)]
    for work in works:
        desk.producer.queue_free = rng.choice([0, 1, 5])
        match rng.randrange(5):
            case 0:
                desk.complete(work)
            case 1:
                desk.reporter.failed(work, FAILED, service_seconds=1.0)
            case 2:
                desk.reporter.expired(work, Reason.DEADLINE_PASSED_WAITING)
            case 3:
                desk.reporter.retry(work, FAILED, delay_seconds=1)
            case _:
                desk.reporter.rejected(work, Reason.UNDECODABLE, "no")
        desk.poll(0.1)
    desk.producer.queue_free = 10_000
    for _ in range(30):
        desk.poll(AGAIN_SECONDS)
    assert all(list(work.assignment.done) == [work.offset] for work in works)
    retries = len(desk.producer.delivered_to(POOL.retry(Tier.MID, 1)))
    assert retries == desk.stats.retries[Tier.MID] > 0
    assert len(desk.results()) == sum(desk.stats.outcomes.values()) == 120 - retries
    assert len(desk.producer.delivered_to(POOL.dead_letter)) == sum(desk.stats.dead_letters.values())
    assert desk.settled()
