"""A Kafka cluster for tests and demos, local or given: its address, and common operations. Talks to the brokers;
starts and stops nothing."""

from __future__ import annotations

import os
import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.cimpl import NewTopic

from forebay_sandbox.errors import SandboxError
from forebay_schemas.kafka.clients import create_client, make_admin
from forebay_schemas.kafka.configs import reader_config
from forebay_schemas.kafka.connection import KafkaConnection
from forebay_schemas.kafka.errors import as_forebay_error
from forebay_schemas.kafka.metadata import METADATA_TIMEOUT_SECONDS
from forebay_schemas.kafka.properties_file import read_properties

if TYPE_CHECKING:
    from collections.abc import Mapping

    from confluent_kafka.admin import AdminClient

_BEING_CHOSEN = (KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE, KafkaError.UNKNOWN_TOPIC_OR_PART)
_CLIENT_ID = "forebay-sandbox"
ANSWER_SECONDS_MAX = 30.0


class KafkaAccess:
    """How to reach a cluster, and helpers for tests."""

    def __init__(self, connection: KafkaConnection) -> None:
        self.connection = connection

    @property
    def bootstrap_servers(self) -> str:
        """What clients take as ``bootstrap.servers``."""
        return self.connection.bootstrap_servers

    def admin(self) -> AdminClient:
        """A new admin client."""
        return make_admin(self.connection, client_id=_CLIENT_ID)

    def require_reachable(self) -> None:
        """Raises ``BrokerUnreachableError`` when no broker answers within ten seconds."""
        try:
            self.admin().list_topics(timeout=METADATA_TIMEOUT_SECONDS)
        except KafkaException as error:
            raise as_forebay_error(
                error.args[0], connection=self.connection, doing="looking for the cluster", needs=None
            ) from None

    def create_topic(
        self, name: str | None = None, *, partitions: int = 1, config: Mapping[str, str] | None = None
    ) -> str:
        """Creates a topic and waits until it has leaders. Returns its name, a random one unless given."""
        topic = name or f"t-{secrets.token_hex(6)}"
        admin = self.admin()
        admin.create_topics([NewTopic(topic, partitions, -1, config=dict(config or {}))])[topic].result(
            ANSWER_SECONDS_MAX
        )
        deadline = time.monotonic() + ANSWER_SECONDS_MAX
        while time.monotonic() < deadline:
            seen = admin.list_topics(topic, timeout=ANSWER_SECONDS_MAX).topics[topic].partitions
            if len(seen) == partitions and all(one.error is None and one.leader >= 0 for one in seen.values()):
                return topic
            time.sleep(0.02)
        raise SandboxError(f"topic {topic} has no leader {ANSWER_SECONDS_MAX:.0f} s after its creation")

    def read_all(self, topic: str, *, timeout_seconds: float = ANSWER_SECONDS_MAX) -> list[Message]:
        """All records of ``topic`` at this moment, ordered by partition and offset. Joins no group."""
        consumer = create_client(Consumer, reader_config(self.connection, client_id=_CLIENT_ID))
        try:
            return _read_to_end(consumer, topic, timeout_seconds=timeout_seconds)
        finally:
            consumer.close()

    def committed(self, group: str, topic: str) -> dict[int, int]:
        """The group's committed offsets by partition; partitions without one are left out."""
        partitions = self.admin().list_topics(topic, timeout=ANSWER_SECONDS_MAX).topics[topic].partitions
        config = reader_config(self.connection, client_id=_CLIENT_ID) | {"group.id": group}
        consumer = create_client(Consumer, config)
        try:
            answers = consumer.committed([TopicPartition(topic, p) for p in partitions], timeout=ANSWER_SECONDS_MAX)
        finally:
            consumer.close()
        return {one.partition: one.offset for one in answers if one.offset >= 0}


def _watermarks(consumer: Consumer, partition: TopicPartition, deadline: float) -> tuple[int, int]:
    """The partition's first and end offsets. Asks again while a leader is being elected."""
    while True:
        left = deadline - time.monotonic()
        try:
            return consumer.get_watermark_offsets(partition, timeout=max(0.1, left))
        except KafkaException as error:
            if error.args[0].code() not in _BEING_CHOSEN or left <= 0:
                raise
            time.sleep(0.05)


def _read_to_end(consumer: Consumer, topic: str, *, timeout_seconds: float) -> list[Message]:
    deadline = time.monotonic() + timeout_seconds
    partitions = consumer.list_topics(topic, timeout=timeout_seconds).topics[topic].partitions
    starts, ends = {}, {}
    for partition in partitions:
        low, high = _watermarks(consumer, TopicPartition(topic, partition), deadline)
        if high > low:
            starts[partition], ends[partition] = low, high
    found: dict[int, list[Message]] = {partition: [] for partition in ends}
    # Positions rather than counts: compaction and transaction markers leave gaps between offsets.
    positions = dict(starts)
    consumer.assign([TopicPartition(topic, partition, offset) for partition, offset in starts.items()])
    while any(positions[partition] < end for partition, end in ends.items()):
        if time.monotonic() > deadline:
            raise SandboxError(f"{topic}: not read to its end within {timeout_seconds:.0f} s")
        for message in consumer.consume(1000, 0.05):
            if (error := message.error()) is not None:
                raise KafkaException(error)
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            assert offset is not None
            if offset < ends[partition]:
                found[partition].append(message)
        for one in consumer.position([TopicPartition(topic, partition) for partition in ends]):
            positions[one.partition] = max(positions[one.partition], one.offset)
    return [message for partition in sorted(found) for message in found[partition]]


def kafka_from_environment() -> KafkaAccess | None:
    """The cluster of FOREBAY_BOOTSTRAP_SERVERS and FOREBAY_KAFKA_PROPERTIES; None if the first is not set."""
    servers = os.environ.get("FOREBAY_BOOTSTRAP_SERVERS")
    if not servers:
        return None
    file = os.environ.get("FOREBAY_KAFKA_PROPERTIES")
    properties = read_properties(Path(file)) if file else {}
    return KafkaAccess(KafkaConnection(bootstrap_servers=servers, properties=properties))
