"""Delivery of outcomes: each is delivered and counted once, however often its delivery fails."""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec
import pytest
from confluent_kafka import KafkaError

from forebay_schemas.contract.reasons import Reason
from forebay_schemas.contract.results import decode_result
from forebay_schemas.contract.tiers import Tier
from forebay_worker.bounds import BOUNDS
from forebay_worker.outcome.delivery import AGAIN_SECONDS, DELIVERY_STALL_SECONDS, REFUSED_AGAIN_SECONDS
from simulated.outcomes import FAILED, GONE, Outcomes, failing, is_finished
from simulated.ports import MemoryRecord
from simulated.works import POOL, make_assignment, make_work


def test_nothing_is_finished_before_it_is_delivered() -> None:
    desk = Outcomes()
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
    desk = Outcomes()
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
    desk = Outcomes()
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
    desk = Outcomes()
    desk.producer.fail = failing(1_000_000)
    desk.complete(make_work())
    for _ in range(20):
        desk.poll(AGAIN_SECONDS / 20)
    assert desk.stats.produce_failures <= 2


def test_a_full_queue_delays_and_loses_nothing() -> None:
    desk = Outcomes()
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
    desk = Outcomes()
    work = make_work()
    desk.producer.refuse = failing(2, KafkaError(KafkaError._STATE))
    desk.complete(work)
    for _ in range(4):
        desk.poll(AGAIN_SECONDS)
    assert is_finished(work)
    assert desk.settled()


def test_two_requests_of_one_id_in_flight_are_each_finished_by_their_own_result() -> None:
    desk = Outcomes()
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
    desk = Outcomes()
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
    desk = Outcomes()
    desk.producer.fail = failing(1)
    work = make_work()
    desk.complete(work)
    desk.poll()
    assert work.assignment.refused is None


def test_what_is_refused_for_good_does_not_hold_up_what_failed_for_a_moment() -> None:
    desk = Outcomes()
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
    desk = Outcomes()
    desk.producer.fail = failing(1)
    desk.complete(make_work())
    desk.poll()
    assert desk.reporter.delivery.fatal is None
    desk.producer.fail = failing(1, KafkaError(KafkaError._FENCED, "another one has its id", fatal=True))
    desk.complete(make_work(offset=1))
    desk.poll()
    assert desk.reporter.delivery.fatal == "another one has its id"


# When to stop


def test_nothing_is_started_when_no_result_is_delivered_any_more_and_again_when_one_is() -> None:
    desk = Outcomes()
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
    desk = Outcomes()
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
    desk = Outcomes()
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
    desk = Outcomes()
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
