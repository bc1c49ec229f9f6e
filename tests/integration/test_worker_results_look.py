"""A look through a real results topic sees all that was there when it was asked for, and later ones read on."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, cast

from confluent_kafka import Consumer, KafkaError, Message, Producer

from forebay_schemas.clock import SystemClock
from forebay_schemas.contract.reasons import Reason
from forebay_schemas.contract.results import Result, encode_result
from forebay_schemas.kafka.configs import reader_config
from forebay_worker.intake.results_reader import LookingConsumer, ResultsLook, ResultsReader
from harness.live_pool import LivePool
from harness.waiting import wait_until

if TYPE_CHECKING:
    from forebay_sandbox.kafka.access import KafkaAccess

_STEPS_MAX = 20


def _write(pool: LivePool, *places: tuple[int, str]) -> list[int]:
    """Returns when the broker says that it wrote them: epoch milliseconds, in any order."""
    producer = Producer({"bootstrap.servers": pool.kafka.bootstrap_servers, "acks": "all"})
    written: list[int] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        assert error is None
        written.append(message.timestamp()[1])

    for partition, request_id in places:
        reason = Reason.COMPLETED
        result = Result(request_id=request_id, status=reason.status, reason=reason.code, finished_at=0)
        value = encode_result(result)
        producer.produce(pool.topics.results, value, request_id, partition=partition, on_delivery=delivered)
    assert producer.flush(30.0) == 0
    return written


def _look(reader: ResultsReader, since_ms: int) -> ResultsLook:
    look = reader.look(since_ms)
    for _ in range(_STEPS_MAX):
        reader.step()
        if look.is_over:
            break
    assert look.is_over
    assert look.is_complete
    return look


def test_a_look_sees_what_every_partition_holds_and_a_later_one_what_came_since(kafka: KafkaAccess) -> None:
    clock = SystemClock()
    with closing(LivePool(kafka, partitions=3)) as pool:
        [old_ms] = _write(pool, (0, "old"))
        wait_until("a later time", lambda: clock.wall_ms() > old_ms)
        since_ms = min(_write(pool, (0, "a"), (2, "b")))  # nothing in the one between
        config = reader_config(kafka.connection, client_id="looking")
        config |= {"enable.partition.eof": True, "fetch.wait.max.ms": 10, "auto.offset.reset": "earliest"}
        reader = ResultsReader(
            make_consumer=lambda: cast(LookingConsumer, Consumer(config)),
            topic=pool.topics.results,
            topic_id=lambda: None,
            clock=clock,
        )
        try:
            first = _look(reader, since_ms)
            assert [first.has(each, 0) for each in ("old", "a", "b", "c")] == [False, True, True, False]
            _write(pool, (1, "c"))
            assert _look(reader, since_ms).has("c", 0)
            assert _look(reader, old_ms).has("old", 0)
        finally:
            reader.close()
