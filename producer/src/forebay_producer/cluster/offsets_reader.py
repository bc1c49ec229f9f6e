"""What a group has committed, and when the records at given offsets were written. Talks to the brokers, joins no group.

One thread at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from forebay_schemas.clock import Clock
from forebay_schemas.kafka.connection import (
    METADATA_TIMEOUT_SECONDS,
    KafkaConnection,
    as_forebay_error,
    create_client,
    reader_config,
)
from forebay_schemas.kafka.permissions import Operation, is_denied, on_group, on_topic
from forebay_schemas.kafka.transient import until_passed

At = tuple[str, int]
"""A topic and the number of a partition."""

# A head that has not come by then is left out of the age: its broker is away.
_HEADS_SECONDS_MAX: Final = 5.0
_POLL_SECONDS: Final = 0.1
_REFUSED_SECONDS: Final = 1.5
"""Without an answer until then, it is looked for what is in its way."""

_ONE_RECORD: Final = {"queued.min.messages": 1, "auto.offset.reset": "earliest"}
"""One record of each partition is all that is wanted."""


class GroupOffsets:
    """Asks for one group. Must be closed.

    An admin client could be asked the same, but one whose answer comes from a broker that no longer coordinates the
    group ends the process (librdkafka 2.16.1: segmentation fault or failed assertion).
    """

    def __init__(self, connection: KafkaConnection, *, group: str, client_id: str) -> None:
        self._connection = connection
        self._group = group
        config = reader_config(connection, client_id=client_id) | _ONE_RECORD | {"group.id": group}
        self._consumer = create_client(Consumer, config)

    def close(self) -> None:
        """Lets go of the brokers."""
        self._consumer.close()

    def committed(self, partitions: Iterable[At]) -> dict[At, TopicPartition]:
        """Offset and metadata of each partition in which the group has committed something."""
        wanted = [TopicPartition(topic, number) for topic, number in partitions]
        consumer = self._consumer

        def ask() -> list[TopicPartition]:
            try:
                return consumer.committed(wanted, timeout=_REFUSED_SECONDS)
            except KafkaException as error:
                # One that may not see the group waits for its coordinator, and says why to whoever polls.
                said = consumer.poll(0)
                refusal = None if said is None else said.error()
                if refusal is not None and is_denied(refusal):
                    raise KafkaException(refusal) from None
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


class RecordTimes:
    """Reads the timestamps of single records. Must be closed."""

    def __init__(self, connection: KafkaConnection, *, clock: Clock, client_id: str) -> None:
        self._connection = connection
        self._clock = clock
        self._consumer = create_client(Consumer, reader_config(connection, client_id=client_id) | _ONE_RECORD)

    def close(self) -> None:
        """Lets go of the brokers."""
        self._consumer.close()

    def at(self, offsets: Mapping[At, int]) -> dict[At, int]:
        """When the record at each partition's offset, or the next one, was written: epoch milliseconds.

        Partitions whose record does not come within five seconds are left out. Raises ``DeniedError``.
        """
        if not offsets:
            return {}
        try:
            return self._read(offsets)
        finally:
            self._consumer.unassign()

    def _read(self, offsets: Mapping[At, int]) -> dict[At, int]:
        self._consumer.assign([TopicPartition(topic, number, offset) for (topic, number), offset in offsets.items()])
        times: dict[At, int] = {}
        give_up_at = self._clock.monotonic() + _HEADS_SECONDS_MAX
        while len(times) < len(offsets) and self._clock.monotonic() < give_up_at:
            message = self._consumer.poll(_POLL_SECONDS)
            if message is None:
                continue
            topic, number = message.topic(), message.partition()
            assert topic is not None
            assert number is not None
            failure = message.error()
            if failure is not None:
                if is_denied(failure):
                    needs = on_topic(Operation.READ, topic)
                    raise as_forebay_error(failure, connection=self._connection, doing="reading a record", needs=needs)
                continue
            if (topic, number) not in times:
                times[topic, number] = message.timestamp()[1]
                self._consumer.pause([TopicPartition(topic, number)])
        # A pause outlives the assignment it was made in.
        self._consumer.resume([TopicPartition(topic, number) for topic, number in times])
        return times
