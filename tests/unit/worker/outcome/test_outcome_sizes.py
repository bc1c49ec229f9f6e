"""Outcomes that are too large for their topics."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from forebay_schemas.contract.reasons import Status
from forebay_schemas.contract.tiers import Tier
from forebay_schemas.contract.topics import LATER_BYTES_MAX
from forebay_worker.outcome.delivery import AGAIN_SECONDS
from simulated.outcomes import FAILED, Outcomes, is_finished
from simulated.ports import MemoryRecord
from simulated.works import POOL, make_work


def test_a_result_too_large_for_its_topic_fails_the_request() -> None:
    desk = Outcomes()
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

    desk = Outcomes()
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
    desk = Outcomes()
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

    desk = Outcomes()
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
