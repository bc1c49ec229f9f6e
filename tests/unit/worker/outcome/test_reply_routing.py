"""The way back: a result lies in the partition that it is awaited in, with what a front needs to answer its client."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from forebay_schemas.contract.reasons import Reason
from forebay_worker.outcome.delivery import ABSENT_SECONDS, AGAIN_SECONDS, NEW_PARTITION_SECONDS
from forebay_worker.request.work import Failure, Retry, Work
from simulated.outcomes import GONE, NO_PARTITION, Outcomes, failing, is_finished
from simulated.ports import MemoryRecord
from simulated.works import POOL, make_work

BODY = b'{"error": {"message": "no", "param": "n", "code": "too_many"}}'


def rejection(status: int, error: str = "HTTP 400: no") -> Failure:
    return Failure(
        reason=Reason.BACKEND_REJECTED,
        error=error,
        retry=Retry.FORBIDDEN,
        http_status=status,
        given_status=status,
        error_body=msgspec.Raw(BODY),
    )


def awaited(partition: Any = 7, **fields: Any) -> Work:
    return make_work(reply={"partition": partition, "job": "j", "mine": [1]}, **fields)


def partitions(outcomes: Outcomes) -> list[int]:
    outcomes.poll()
    return [record.partition() for record in outcomes.producer.delivered_to(POOL.results)]


def test_a_result_lies_in_the_partition_that_it_is_awaited_in_and_says_what_for() -> None:
    outcomes = Outcomes()
    work = awaited(tenant="t")
    outcomes.complete(work)
    assert partitions(outcomes) == [7]
    [result] = outcomes.results()
    assert (result.tenant, result.reply) == ("t", {"partition": 7, "job": "j", "mine": [1]})
    assert outcomes.producer.delivered[0].key() == b"r-0"
    assert is_finished(work)
    assert outcomes.reporter.is_known_id("r-0", outcomes.clock.monotonic())
    assert outcomes.settled()


@pytest.mark.parametrize("reply", [None, 3, "7", [7], {"partition": "7"}, {"partition": -1}, {"partition": 1.5}])
def test_what_is_no_reply_passes_unread(reply: Any) -> None:
    outcomes = Outcomes()
    outcomes.complete(make_work(reply=reply))
    assert partitions(outcomes) == [0]
    assert outcomes.results()[0].reply is None


def test_a_dead_letter_is_followed_by_the_result_in_the_awaited_partition() -> None:
    outcomes = Outcomes()
    work = awaited()
    failure = Failure(reason=Reason.BACKEND_ERROR, error="HTTP 500", http_status=500, given_status=500)
    outcomes.reporter.failed(work, failure, service_seconds=0.1)
    outcomes.poll()
    assert [(each.topic(), each.partition()) for each in outcomes.producer.delivered] == [
        (POOL.dead_letter, 0),
        (POOL.results, 7),
    ]
    assert list(work.assignment.done) == [0]


# A partition that does not exist.


@pytest.mark.parametrize("way", ["refuse", "fail"])
def test_a_partition_that_does_not_exist_falls_back_to_the_key(way: str) -> None:
    outcomes = Outcomes()
    setattr(outcomes.producer, way, lambda record: NO_PARTITION if record.partition() == 7 else None)
    first = awaited()
    outcomes.complete(first)
    outcomes.poll()
    assert not is_finished(first)
    outcomes.poll(NEW_PARTITION_SECONDS)
    assert partitions(outcomes) == [0]
    assert is_finished(first)
    # It is known by now that there is none: the next one does not wait.
    second = awaited(offset=1)
    outcomes.complete(second)
    assert partitions(outcomes) == [0, 0]
    assert is_finished(second)
    assert outcomes.settled()
    assert outcomes.accepts()


def test_a_new_partition_is_waited_for() -> None:
    outcomes = Outcomes()
    outcomes.producer.refuse = failing(1, NO_PARTITION)
    outcomes.complete(awaited())
    outcomes.poll(NEW_PARTITION_SECONDS)
    assert partitions(outcomes) == [7]


def test_a_partition_that_was_absent_is_waited_for_again_later() -> None:
    outcomes = Outcomes()
    outcomes.producer.refuse = lambda record: NO_PARTITION if record.partition() == 7 else None
    outcomes.complete(awaited())
    outcomes.poll(NEW_PARTITION_SECONDS)
    assert partitions(outcomes) == [0]
    outcomes.poll(ABSENT_SECONDS)
    outcomes.producer.refuse = failing(1, NO_PARTITION)
    outcomes.complete(awaited(offset=1))
    outcomes.poll(NEW_PARTITION_SECONDS)
    assert partitions(outcomes) == [0, 7]


def test_a_failed_delivery_is_made_again_to_the_same_partition() -> None:
    outcomes = Outcomes()
    outcomes.producer.fail = failing(2, GONE)
    work = awaited()
    outcomes.complete(work)
    for _ in range(4):
        outcomes.poll(AGAIN_SECONDS)
    assert partitions(outcomes) == [7]
    assert list(work.assignment.done) == [0]


def test_results_of_one_id_in_two_partitions_each_finish_their_own() -> None:
    outcomes = Outcomes()
    first, second = make_work(request_id="same"), make_work(offset=1, request_id="same", reply={"partition": 3})
    for work in (first, second):
        outcomes.complete(work)
    outcomes.producer.fail = lambda record: GONE if record.partition() == 0 else None
    outcomes.poll()
    assert [is_finished(first), is_finished(second)] == [False, True]


# What the backend calls wrong.


def letters(outcomes: Outcomes) -> list[MemoryRecord]:
    outcomes.poll()
    return outcomes.producer.delivered_to(POOL.dead_letter)


@pytest.mark.parametrize(
    ("failure", "is_answer"),
    [
        (rejection(400), True),
        (rejection(413), True),
        (rejection(415), True),
        (rejection(422), True),
        (rejection(404, "HTTP 404: The model `x` does not exist"), True),
        (rejection(404, "HTTP 404: Not Found"), False),
        (rejection(409), False),
        (rejection(401), False),
        (Failure(reason=Reason.BACKEND_ERROR, error="HTTP 500", http_status=500), False),
        (Failure(reason=Reason.HANDLER_FAILED, error="no"), False),
    ],
)
def test_what_the_backend_calls_wrong_is_the_answer_for_whoever_waits(failure: Failure, is_answer: bool) -> None:
    outcomes = Outcomes()
    work = awaited()
    outcomes.reporter.failed(work, failure, service_seconds=0.1)
    assert len(letters(outcomes)) == (0 if is_answer else 1)
    [result] = outcomes.results()
    assert (result.status, result.reason) == ("failed", failure.reason.code)
    assert (result.http_status, result.error_body) == (
        failure.given_status,
        None if failure.error_body is None else msgspec.json.decode(BODY),
    )
    assert list(work.assignment.done) == [0]


@pytest.mark.parametrize("reply", [None, {"job": "j"}, {"partition": "7"}])
@pytest.mark.parametrize("answers_rejected", [False, True])
def test_for_others_it_is_a_dead_letter_unless_the_setting_says_otherwise(reply: Any, answers_rejected: bool) -> None:
    outcomes = Outcomes(answers_rejected=answers_rejected)
    outcomes.reporter.failed(make_work(reply=reply), rejection(400), service_seconds=0.1)
    assert len(letters(outcomes)) == (0 if answers_rejected else 1)
    assert outcomes.results()[0].http_status == 400
