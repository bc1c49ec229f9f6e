"""A group's commits, and the records at given offsets. Talks to the brokers, joins no group. One thread at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from forebay_producer.cluster.lifetimes import Lifetime, lifetime_of
from forebay_schemas.clock import Clock
from forebay_schemas.contract.topics import PartitionKey
from forebay_schemas.kafka.clients import create_client
from forebay_schemas.kafka.configs import reader_config
from forebay_schemas.kafka.connection import KafkaConnection
from forebay_schemas.kafka.errors import as_forebay_error
from forebay_schemas.kafka.group_access import told_denial
from forebay_schemas.kafka.metadata import METADATA_TIMEOUT_SECONDS
from forebay_schemas.kafka.permissions import Operation, is_denied, on_group, on_topic
from forebay_schemas.kafka.transient import until_passed

# A head that has not come by then is left out of the age: its broker is away.
_HEADS_SECONDS_MAX: Final = 5.0
_POLL_SECONDS: Final = 0.1
_REFUSED_SECONDS: Final = 1.5
"""After this time without an answer the cause is probed."""

_ONE_RECORD: Final = {"queued.min.messages": 1, "auto.offset.reset": "earliest"}
"""Only one record of each partition is needed."""


class GroupOffsets:
    """Reads the commits of one group. Must be closed.

    An admin client could do the same, but one whose answer comes from a former coordinator of the group ends the
    process (librdkafka 2.16.1: segmentation fault or failed assertion).
    """

    def __init__(self, connection: KafkaConnection, *, group: str, client_id: str) -> None:
        self._connection = connection
        self._group = group
        config = reader_config(connection, client_id=client_id) | _ONE_RECORD | {"group.id": group}
        self._consumer = create_client(Consumer, config)

    def close(self) -> None:
        """Closes the consumer."""
        self._consumer.close()

    def committed(self, partitions: Iterable[PartitionKey]) -> dict[PartitionKey, TopicPartition]:
        """Offset and metadata of each partition with a commit."""
        wanted = [TopicPartition(topic, number) for topic, number in partitions]
        consumer = self._consumer

        def ask() -> list[TopicPartition]:
            try:
                return consumer.committed(wanted, timeout=_REFUSED_SECONDS)
            except KafkaException as error:
                denial = told_denial(consumer)
                if denial is not None:
                    raise KafkaException(denial) from None
                if error.args[0].code() != KafkaError._TIMED_OUT:
                    raise
            return consumer.committed(wanted, timeout=METADATA_TIMEOUT_SECONDS - _REFUSED_SECONDS)

        try:
            found = until_passed()(ask)
        except KafkaException as error:
            doing = f"reading what group {self._group} has committed"
            needs = on_group(Operation.DESCRIBE, self._group)
            raise as_forebay_error(error.args[0], connection=self._connection, doing=doing, needs=needs) from None
        return {(one.topic, one.partition): one for one in found if one.error is None and one.offset >= 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The first record at an offset or behind it. ``written_ms``: epoch milliseconds; None when there is no record
    before the partition's end at ``offset``: markers of transactions and records of aborted ones are none.
    ``lifetime``: of the request in it; None without a record."""

    offset: int
    written_ms: int | None
    lifetime: Lifetime | None = None


class HeadReader:
    """Reads single records. Must be closed."""

    def __init__(self, connection: KafkaConnection, *, clock: Clock, client_id: str) -> None:
        self._connection = connection
        self._clock = clock
        config = reader_config(connection, client_id=client_id) | _ONE_RECORD | {"enable.partition.eof": True}
        self._consumer = create_client(Consumer, config)

    def close(self) -> None:
        """Closes the consumer."""
        self._consumer.close()

    def at(self, offsets: Mapping[PartitionKey, int]) -> dict[PartitionKey, Head]:
        """The head of each partition from this offset on.

        Partitions without an answer within five seconds are left out. Raises ``DeniedError``.
        """
        if not offsets:
            return {}
        try:
            return self._read(offsets)
        finally:
            self._consumer.unassign()

    def _read(self, offsets: Mapping[PartitionKey, int]) -> dict[PartitionKey, Head]:
        self._consumer.assign([TopicPartition(topic, number, offset) for (topic, number), offset in offsets.items()])
        heads: dict[PartitionKey, Head] = {}
        give_up_at = self._clock.monotonic() + _HEADS_SECONDS_MAX
        while len(heads) < len(offsets) and self._clock.monotonic() < give_up_at:
            message = self._consumer.poll(_POLL_SECONDS)
            if message is None:
                continue
            topic, number, offset = message.topic(), message.partition(), message.offset()
            assert topic is not None
            assert number is not None
            failure = message.error()
            if failure is not None and failure.code() != KafkaError._PARTITION_EOF:
                if is_denied(failure):
                    needs = on_topic(Operation.READ, topic)
                    raise as_forebay_error(failure, connection=self._connection, doing="reading a record", needs=needs)
                continue
            if (topic, number) not in heads:
                assert offset is not None
                heads[topic, number] = (
                    Head(offset=offset, written_ms=None)
                    if failure is not None
                    else Head(offset=offset, written_ms=message.timestamp()[1], lifetime=lifetime_of(message))
                )
                self._consumer.pause([TopicPartition(topic, number)])
        # A pause outlives its assignment.
        self._consumer.resume([TopicPartition(topic, number) for topic, number in heads])
        return heads
