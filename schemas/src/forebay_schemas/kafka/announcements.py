"""The recent announcements of a pool's workers, read once from the end of the coordination topic. Talks to the brokers;
joins no group and commits nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from forebay_schemas.contract.coordination import GONE_SECONDS, Capacity, decode_capacity
from forebay_schemas.kafka.clients import create_client
from forebay_schemas.kafka.configs import reader_config
from forebay_schemas.kafka.connection import KafkaConnection
from forebay_schemas.kafka.permissions import is_denied

LOOK_BACK_RECORDS: Final = 5_000
"""Two hundred workers write this many in twenty seconds."""

_POLL_SECONDS: Final = 0.1


def read_announcements(
    connection: KafkaConnection,
    *,
    topic: str,
    client_id: str,
    seconds: float,
    stopped: Callable[[], bool] = lambda: False,
) -> list[Capacity]:
    """The last record of each worker that has not left. Takes ``seconds`` at most, and blocks; ends when ``stopped``.

    Compares the records' own times, not this machine's clock: a worker counts if it wrote within 15 s of the last
    record of any worker, which may be some minutes old if none runs. Raises ``KafkaException``.
    """
    end = time.monotonic() + seconds
    consumer = create_client(Consumer, reader_config(connection, client_id=client_id) | {"enable.partition.eof": True})
    try:
        return present(_read(consumer, topic, end, stopped))
    finally:
        consumer.close()


def present(records: Iterable[tuple[int, Capacity]]) -> list[Capacity]:
    """The present workers, from all records in the order in which they were read, with their times (epoch ms). Pure."""
    last = {capacity.worker: (written_ms, capacity) for written_ms, capacity in records}
    newest_ms = max((written_ms for written_ms, _ in last.values()), default=0)
    return [
        capacity
        for written_ms, capacity in last.values()
        if newest_ms - written_ms < GONE_SECONDS * 1000 and not (capacity.draining and not capacity.in_flight)
    ]


def _read(consumer: Consumer, topic: str, end: float, stopped: Callable[[], bool]) -> list[tuple[int, Capacity]]:
    found = consumer.list_topics(topic, timeout=_left(end)).topics[topic]
    if found.error is not None:
        raise KafkaException(found.error)
    starts = []
    for number in found.partitions:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=_left(end))
        if high > low:
            starts.append(TopicPartition(topic, number, max(low, high - LOOK_BACK_RECORDS)))
    consumer.assign(starts)
    records: list[tuple[int, Capacity]] = []
    unread = {each.partition for each in starts}
    while unread and time.monotonic() < end and not stopped():
        message = consumer.poll(_POLL_SECONDS)
        if message is None:
            continue
        failure = message.error()
        if failure is not None:
            if failure.code() == KafkaError._PARTITION_EOF:
                unread.discard(message.partition())
            elif message.topic() == topic and is_denied(failure):
                raise KafkaException(failure)
            # Other errors pass, or the time runs out.
            continue
        capacity = decode_capacity(message.value())
        if capacity is not None:
            records.append((message.timestamp()[1], capacity))
    if unread and not records and not stopped():
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
    return records


def _left(end: float) -> float:
    return max(0.1, end - time.monotonic())
