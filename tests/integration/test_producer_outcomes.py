"""Outcomes on a real broker: the first one of a request counts, whoever asks and whenever."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import NewPartitions  # type: ignore[attr-defined]  # its stubs leave this name out

from forebay_producer import OutcomeTimeoutError, Producer, ProducerClosedError, Submitted
from forebay_producer.client import outcome_watch, results_reader
from forebay_producer.client.results_reader import ResultsReader
from forebay_schemas.clock import SystemClock
from forebay_schemas.contract.reasons import Status
from forebay_schemas.errors import ForebayError, TopicMissingError
from harness.producer_pool import ProducerPool
from harness.waiting import wait_until
from harness.written_results import result_of, write_records, write_results

REQUEST = {"biz_type": "x", "payload": {}}


@pytest.fixture
def producer(producer_pool: ProducerPool) -> Iterator[Producer]:
    with producer_pool.producer() as made:
        yield made


def test_an_outcome_written_before_anyone_asks_is_found(producer_pool: ProducerPool, producer: Producer) -> None:
    accepted = producer.submit(REQUEST)
    write_results(producer_pool, result_of(accepted.request_id, body={"answer": 42}))
    result = producer.outcome(accepted.request_id, timeout_seconds=30)
    assert (result.status, result.body) == (Status.COMPLETED, {"answer": 42})
    assert producer.outcome(accepted.request_id, timeout_seconds=30) == result


def test_an_outcome_written_later_is_waited_for(producer_pool: ProducerPool, producer: Producer) -> None:
    accepted = producer.submit(REQUEST)
    with pytest.raises(OutcomeTimeoutError, match=rf"no outcome of {accepted.request_id} within 0\.3 s") as caught:
        producer.outcome(accepted.request_id, timeout_seconds=0.3)
    assert caught.value.missing == [accepted.request_id]
    assert str(caught.value).endswith(f"forebay results --id {accepted.request_id}")
    timer = threading.Timer(0.3, write_results, [producer_pool, result_of(accepted.request_id, status=Status.EXPIRED)])
    timer.start()
    assert producer.outcome(accepted.request_id, timeout_seconds=30).status is Status.EXPIRED
    timer.join()


def test_the_first_outcome_wins(producer_pool: ProducerPool, producer: Producer) -> None:
    batch = [one for one in producer.submit_batch([REQUEST] * 50) if isinstance(one, Submitted)]
    ids = [one.request_id for one in batch]
    write_results(producer_pool, *(result_of(one, attempt=1) for one in ids))
    write_results(producer_pool, *(result_of(one, status=Status.FAILED, attempt=2) for one in ids))
    write_results(producer_pool, result_of("last of all"))
    assert {producer.outcome(one, timeout_seconds=30).attempt for one in ids} == {1}
    told = list(producer.outcomes(ids, timeout_seconds=30))
    assert sorted(result.request_id for result in told) == sorted(ids)
    assert {result.attempt for result in told} == {1}
    everything = []
    for result in producer.outcomes(None, timeout_seconds=60):
        everything.append(result)
        if len(everything) == len(ids) + 1:
            break
    assert {result.attempt for result in everything} == {1}


def test_outcomes_come_as_they_are_written_and_the_missing_are_named(
    producer_pool: ProducerPool, producer: Producer
) -> None:
    ids = [producer.submit(REQUEST).request_id for _ in range(3)]
    told = producer.outcomes(ids, timeout_seconds=5)
    for one in ids[:2]:
        write_results(producer_pool, result_of(one))
        assert next(told).request_id == one
    with pytest.raises(OutcomeTimeoutError) as caught:
        next(told)
    assert caught.value.missing == ids[2:]
    assert list(producer.outcomes([], timeout_seconds=5)) == []


def test_requests_of_others_are_followed_from_a_given_time(producer_pool: ProducerPool, producer: Producer) -> None:
    before_ms = SystemClock().wall_ms() - 5_000
    write_results(producer_pool, result_of("theirs"), result_of("theirs too"))
    assert producer.outcome("theirs", timeout_seconds=30, since_ms=0).request_id == "theirs"
    told = producer.outcomes(["theirs", "theirs too"], timeout_seconds=30, since_ms=before_ms)
    assert {result.request_id for result in told} == {"theirs", "theirs too"}


def test_an_earlier_start_than_the_one_followed_is_looked_up(producer_pool: ProducerPool, producer: Producer) -> None:
    write_results(producer_pool, result_of("old"))
    late_ms = SystemClock().wall_ms() + 60_000
    with pytest.raises(OutcomeTimeoutError):
        producer.outcome("old", timeout_seconds=0.2, since_ms=late_ms)
    assert producer.outcome("old", timeout_seconds=30, since_ms=0).request_id == "old"


def test_an_outcome_that_memory_had_no_room_for_is_read_again(
    producer_pool: ProducerPool, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outcome_watch, "KEPT_COUNT_MAX", 10)
    ids = [one.request_id for one in producer.submit_batch([REQUEST] * 200) if isinstance(one, Submitted)]
    write_results(producer_pool, *(result_of(one, output_tokens=number) for number, one in enumerate(ids)))
    assert [producer.outcome(one, timeout_seconds=30).output_tokens for one in (ids[-1], ids[0], ids[100])] == [
        199,
        0,
        100,
    ]


def test_what_is_no_result_is_left_out(producer_pool: ProducerPool, producer: Producer) -> None:
    accepted = producer.submit(REQUEST)
    key = accepted.request_id.encode()
    write_records(producer_pool, (key, b"{"), (key, None), (key, b'{"request_id": 7}'))
    write_results(producer_pool, result_of(accepted.request_id))
    assert producer.outcome(accepted.request_id, timeout_seconds=30).status is Status.COMPLETED


def test_many_threads_wait_for_outcomes_at_once(producer_pool: ProducerPool, producer: Producer) -> None:
    found: dict[str, bool] = {}

    def run() -> None:
        request_id = producer.submit(REQUEST).request_id
        waiting.append(request_id)
        found[request_id] = producer.outcome(request_id, timeout_seconds=60).request_id == request_id

    waiting: list[str] = []
    threads = [threading.Thread(target=run) for _ in range(20)]
    for thread in threads:
        thread.start()
    wait_until("20 requests submitted", lambda: len(waiting) == 20)
    write_results(producer_pool, *(result_of(one) for one in waiting))
    for thread in threads:
        thread.join(60)
    assert len(found) == 20
    assert all(found.values())


def test_closing_ends_everybodys_waiting(producer_pool: ProducerPool) -> None:
    producer = producer_pool.producer()
    accepted = producer.submit(REQUEST)
    errors: list[ForebayError] = []

    def wait() -> None:
        try:
            producer.outcome(accepted.request_id, timeout_seconds=60)
        except ForebayError as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    wait_until("somebody waiting", lambda: producer._core.watch._waiting)
    started = time.monotonic()
    producer.close()
    thread.join(20)
    assert time.monotonic() - started < 15
    assert [type(error) for error in errors] == [ProducerClosedError]


def test_partitions_added_later_are_read_from_their_first_record(
    producer_pool: ProducerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results_reader, "NEW_PARTITIONS_SECONDS", 0.2)
    topic = producer_pool.topics.results
    with ResultsReader(
        producer_pool.kafka.connection, pool=producer_pool.topics, since_ms=None, clock=SystemClock()
    ) as reader:
        admin = producer_pool.kafka.admin()
        admin.create_partitions([NewPartitions(topic, 8)])[topic].result(30)

        def all_led() -> bool:
            partitions = admin.list_topics(topic, timeout=30).topics[topic].partitions
            return len(partitions) == 8 and all(one.leader >= 0 for one in partitions.values())

        wait_until("leaders of the new partitions", all_led)
        ids = {f"r{number}" for number in range(100)}
        write_results(producer_pool, *map(result_of, ids))
        seen: set[str] = set()

        def all_seen() -> bool:
            seen.update(result.request_id for result, _ in reader.read(timeout_seconds=0.1))
            return seen == ids

        wait_until("all results", all_seen)
    assert {record.partition() for record in producer_pool.kafka.read_all(topic)} > {0, 1, 2}


def test_a_missing_results_topic_is_named(unmade_producer_pool: ProducerPool) -> None:
    pool = unmade_producer_pool
    with pool.producer() as producer, pytest.raises(TopicMissingError, match=pool.topics.results):
        producer.outcome("x", timeout_seconds=1, since_ms=0)


def test_a_reader_starts_where_it_was_told_and_knows_its_end(producer_pool: ProducerPool) -> None:
    def reader(since_ms: int | None) -> ResultsReader:
        return ResultsReader(
            producer_pool.kafka.connection, pool=producer_pool.topics, since_ms=since_ms, clock=SystemClock()
        )

    def read_all(source: ResultsReader) -> set[str]:
        found: set[str] = set()
        while not source.caught_up():
            found |= {result.request_id for result, _ in source.read(timeout_seconds=0.2)}
        return found

    with reader(0) as nothing:
        assert nothing.caught_up()
    old = {f"old {number}" for number in range(100)}
    write_results(producer_pool, *map(result_of, old))
    # Brokers stamp milliseconds: the next result is to have a later one.
    middle_ms = max(record.timestamp()[1] for record in producer_pool.kafka.read_all(producer_pool.topics.results)) + 1
    wait_until("a later millisecond", lambda: SystemClock().wall_ms() > middle_ms)
    with reader(None) as only_new:
        assert only_new.caught_up()
        write_results(producer_pool, *(result_of(f"new {number}") for number in range(10)))
        seen: set[str] = set()
        while len(seen) < 10:
            seen |= {result.request_id for result, _ in only_new.read(timeout_seconds=0.2)}
    new = {f"new {number}" for number in range(10)}
    assert seen == new
    with reader(middle_ms) as from_middle:
        assert read_all(from_middle) == new
    with reader(0) as everything:
        assert read_all(everything) == old | new
    with reader(middle_ms + 3_600_000) as from_later:
        assert from_later.caught_up()
