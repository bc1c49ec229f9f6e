"""The raw Kafka programs beside the worker, each a process of its own.

``loop`` is at-least-once in its plainest form; ``echo`` copies each record at once. Both run until terminated.
``count`` reads a given number of a topic's records from its beginning and does nothing with them.
FOREBAY_BOOTSTRAP_SERVERS names the cluster.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from forebay_sandbox.kafka.access import kafka_from_environment
from forebay_schemas.kafka.connection import KafkaConnection
from forebay_schemas.kafka.transient import TRANSIENT

BATCH_RECORDS = 1000
ANSWER_SECONDS_MAX = 30.0

# About the size of the worker's result for a handler that answers {"ok": true}.
RESULT = (
    b'{"request_id":"00000000000000000000000000000000","status":"completed","reason":"completed","tier":"mid","attempt":1,'
    b'"worker":"raw-loop-0000","queue_seconds":0.123456,"service_seconds":0.000012,"prompt_tokens":null,'
    b'"output_tokens":null,"finished_at":1735689600000,"error":null,"body":{"ok":true}}'
)


def consumer_settings(connection: KafkaConnection, *, group: str) -> dict[str, Any]:
    """librdkafka's own defaults, except that nothing is committed by itself."""
    return {
        "bootstrap.servers": connection.bootstrap_servers,
        **connection.properties,
        "group.id": group,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
    }


def producer_settings(connection: KafkaConnection) -> dict[str, Any]:
    """The settings of the worker's own producer: every replica, no duplicates, compressed, sent without waiting for
    more."""
    return {
        "bootstrap.servers": connection.bootstrap_servers,
        **connection.properties,
        "acks": "all",
        "enable.idempotence": True,
        "compression.type": "lz4",
        "partitioner": "murmur2_random",
        "linger.ms": 0,
    }


def run_loop(connection: KafkaConnection, *, source: str, sink: str, group: str) -> None:
    """Takes up to 1,000 records, produces a result for each, waits for their delivery, commits, and again."""
    consumer = Consumer(consumer_settings(connection, group=group))
    producer = Producer(producer_settings(connection))
    delivered = 0

    def on_delivery(error: KafkaError | None, _message: Message) -> None:
        nonlocal delivered
        if error is not None:
            raise KafkaException(error)
        delivered += 1

    consumer.subscribe([source])
    produced = 0
    while True:
        messages = _consume(consumer)
        if not messages:
            continue
        following: dict[int, int] = {}
        for message in messages:
            producer.produce(sink, RESULT, message.key(), on_delivery=on_delivery)
            following[_partition(message)] = _offset(message) + 1
        produced += len(messages)
        producer.flush()
        assert delivered == produced, f"{produced - delivered} results were not delivered"
        positions = [TopicPartition(source, partition, offset) for partition, offset in following.items()]
        consumer.commit(offsets=positions, asynchronous=False)


def run_echo(connection: KafkaConnection, *, source: str, sink: str, group: str) -> None:
    """Copies each record from one topic to the other as soon as it comes; commits nothing."""
    consumer = Consumer(consumer_settings(connection, group=group))
    producer = Producer(producer_settings(connection))
    consumer.subscribe([source])
    while True:
        message = consumer.poll(0.2)
        producer.poll(0)
        if message is None:
            continue
        if (error := message.error()) is None:
            producer.produce(sink, RESULT, message.key())
        elif error.code() not in TRANSIENT:
            raise KafkaException(error)


def run_count(connection: KafkaConnection, *, source: str, records: int) -> None:
    """Takes up to 1,000 records, and again, until it has had ``records``."""
    consumer = Consumer(consumer_settings(connection, group="none"))
    partitions = consumer.list_topics(source, timeout=ANSWER_SECONDS_MAX).topics[source].partitions
    consumer.assign([TopicPartition(source, number, 0) for number in partitions])
    counted = 0
    while counted < records:
        counted += len(_consume(consumer))
    consumer.close()


def _consume(consumer: Consumer) -> list[Message]:
    """Reads the records that are there, without waiting for a full batch: consume() alone would sit out its time-out
    for that."""
    first = consumer.poll(0.2)
    if first is None:
        return []
    messages = []
    for message in (first, *consumer.consume(BATCH_RECORDS - 1, 0)):
        if (error := message.error()) is None:
            messages.append(message)
        elif error.code() not in TRANSIENT:
            raise KafkaException(error)
    return messages


def _partition(message: Message) -> int:
    partition = message.partition()
    assert partition is not None
    return partition


def _offset(message: Message) -> int:
    offset = message.offset()
    assert offset is not None
    return offset


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.raw", description=__doc__)
    roles = parser.add_subparsers(dest="role", required=True)
    for role in ("loop", "echo"):
        one = roles.add_parser(role)
        for name in ("--source", "--sink", "--group"):
            one.add_argument(name, required=True)
    count = roles.add_parser("count")
    count.add_argument("--source", required=True)
    count.add_argument("--records", type=int, required=True)
    given = parser.parse_args(arguments)
    kafka = kafka_from_environment()
    if kafka is None:
        parser.error("FOREBAY_BOOTSTRAP_SERVERS is not set; give the brokers as host:port")
    if given.role == "count":
        run_count(kafka.connection, source=given.source, records=given.records)
        return
    run = run_loop if given.role == "loop" else run_echo
    run(kafka.connection, source=given.source, sink=given.sink, group=given.group)


if __name__ == "__main__":
    main()
