"""Looks up which replays of an intent were written. Talks to the brokers; commits nothing.

A replay that is not found must not appear later. A record in transit when its sender died is written within moments. A
record that is not yet on all in-sync replicas cannot be read until the brokers agree on which replicas are in sync: a
dead broker is removed within 9 s (broker.session.timeout.ms). So missing replays are looked up again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient

from forebay_producer.cluster.topic_admin import OffsetBound, TopicAdmin
from forebay_producer.cluster.topic_scan import SCAN_CONFIG, TopicScan
from forebay_producer.dead_letters.audit import Intent
from forebay_producer.dead_letters.replay_plan import replay_of
from forebay_producer.dead_letters.runs.journal import Place
from forebay_schemas.clock import Clock
from forebay_schemas.contract.headers import REPLAY_OF, record_headers
from forebay_schemas.contract.topics import PartitionKey
from forebay_schemas.errors import BrokerUnreachableError, ForebayError
from forebay_schemas.kafka.clients import create_client, make_admin
from forebay_schemas.kafka.configs import reader_config
from forebay_schemas.kafka.connection import KafkaConnection
from forebay_schemas.kafka.errors import as_forebay_error
from forebay_schemas.kafka.metadata import METADATA_TIMEOUT_SECONDS, require_topics
from forebay_schemas.kafka.permissions import Operation, on_topic

SETTLE_SECONDS: Final = 2.0
SETTLE_REPLICATED_SECONDS: Final = 10.0
"""A record that has not appeared this long after its brokers answered will not appear."""

LANDING_MS_MAX: Final = 120_000
"""Latest write of a replay after the lookup of its topic's ends: 10 s until its intent, and the lease of its run."""

_REPLICAS_SECONDS_MAX: Final = 30.0
_POLL_SECONDS: Final = 0.2

Found = dict[Place, tuple[int, int]]
"""The partition and offset of each letter's replay."""


class ReadBack:
    """``pause(seconds)`` waits; it is also called with 0 during long reads."""

    def __init__(
        self, connection: KafkaConnection, *, pool: str, clock: Clock, client_id: str, pause: Callable[[float], None]
    ) -> None:
        self._connection = connection
        self._pool = pool
        self._clock = clock
        self._client_id = client_id
        self._pause = pause

    def find(self, intent: Intent, doubts: Collection[Place]) -> Found:
        """The positions of those replays that were written. Their sender must have stopped.

        Reads the records written between the intent and two minutes later, by the brokers' clock. Raises
        ``BrokerUnreachableError`` and ``TopicMissingError``.
        """
        topics = {letter.topic for letter in intent.letters if (letter.partition, letter.offset) in doubts}
        wanted = {replay_of(intent.dead_letter_topic_id, *place).encode(): place for place in doubts}
        admin = make_admin(self._connection, client_id=self._client_id)
        counts = require_topics(admin, topics, connection=self._connection, pool=self._pool, operation=Operation.READ)
        partitions = [(topic, number) for topic in sorted(topics) for number in range(counts[topic])]
        found = self._read(wanted, self._ranges(admin, partitions, intent))
        if len(found) < len(wanted):
            replicated = self._wait_for_replicas(admin, topics)
            self._pause(SETTLE_REPLICATED_SECONDS if replicated else SETTLE_SECONDS)
            self._wait_for_replicas(admin, topics)
            found = self._read(wanted, self._ranges(admin, partitions, intent))
        return found

    def _ranges(
        self, admin: AdminClient, partitions: list[PartitionKey], intent: Intent
    ) -> dict[PartitionKey, tuple[int, int]]:
        offsets = TopicAdmin(admin, connection=self._connection)
        first, end = (
            offsets.offsets(partitions, at=OffsetBound.EARLIEST),
            offsets.offsets(partitions, at=OffsetBound.LATEST),
        )
        ranges: dict[PartitionKey, tuple[int, int]] = {}
        for at in partitions:
            told = intent.ends.get(at[0], [])
            start = max(first[at], told[at[1]]) if at[1] < len(told) else first[at]
            # Ends that went back belong to a recreated topic.
            start = start if start <= end[at] else first[at]
            if start < end[at]:
                ranges[at] = (start, end[at])
        return ranges

    def _wait_for_replicas(self, admin: AdminClient, topics: Collection[str]) -> bool:
        """Waits until no partition lacks in-sync replicas; returns whether any has more than one.

        With fewer replicas than a write needs, earlier records stay invisible.
        """
        give_up_at = self._clock.monotonic() + _REPLICAS_SECONDS_MAX
        while True:
            try:
                known = admin.list_topics(timeout=METADATA_TIMEOUT_SECONDS).topics
            except KafkaException as error:
                raise self._explained(error.args[0], None) from None
            partitions = [one for topic in topics if topic in known for one in known[topic].partitions.values()]
            if all(len(one.isrs) >= (2 if len(one.replicas) >= 3 else 1) for one in partitions):
                return any(len(one.replicas) > 1 for one in partitions)
            if self._clock.monotonic() > give_up_at:
                names = ", ".join(sorted(topics))
                raise BrokerUnreachableError(f"{names}: too few replicas are in sync to see what was written before")
            self._pause(0.5)

    def _read(self, wanted: dict[bytes, Place], ranges: dict[PartitionKey, tuple[int, int]]) -> Found:
        found: Found = {}
        if not ranges:
            return found
        # Replays are not transactional; an open transaction of others must not hide them.
        config = reader_config(self._connection, client_id=self._client_id) | {"isolation.level": "read_uncommitted"}
        consumer = create_client(Consumer, config | SCAN_CONFIG)
        try:
            consumer.assign([TopicPartition(*at, start) for at, (start, _) in ranges.items()])
            search = _Search(wanted, {at: end for at, (_, end) in ranges.items()})
            scan = self._scan(consumer)
            while search.left and len(search.found) < len(wanted):
                batch = scan.batch()
                self._pause(0)
                for message in batch:
                    search.look_at(message)
            return search.found
        except KafkaException as error:
            raise self._explained(error.args[0], None) from None
        finally:
            consumer.close()

    def _scan(self, consumer: Consumer) -> TopicScan:
        def fail(error: KafkaError, topic: str | None) -> None:
            if error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise self._explained(error, topic)

        return TopicScan(
            consumer,
            connection=self._connection,
            clock=self._clock,
            reading="the retry and request topics",
            poll_seconds=_POLL_SECONDS,
            on_error=fail,
        )

    def _explained(self, error: KafkaError, topic: str | None) -> ForebayError:
        needs = None if topic is None else on_topic(Operation.READ, topic)
        doing = "seeking replays"
        return as_forebay_error(error, connection=self._connection, doing=doing, needs=needs, known=True)


class _Search:
    """``left``: the end of each partition not yet read to its end."""

    def __init__(self, wanted: dict[bytes, Place], left: dict[PartitionKey, int]) -> None:
        self.found: Found = {}
        self.left = left
        self._wanted = wanted
        self._until_ms: dict[PartitionKey, int] = {}

    def look_at(self, message: Message) -> None:
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        assert topic is not None
        assert partition is not None
        assert offset is not None
        at = (topic, partition)
        end = self.left.get(at)
        if end is None:
            return
        if message.error() is not None:
            # A new leader may know fewer records than were written.
            if offset >= end:
                del self.left[at]
            return
        kind, written_ms = message.timestamp()
        until_ms = self._until_ms.setdefault(at, written_ms + LANDING_MS_MAX)
        if kind == TIMESTAMP_LOG_APPEND_TIME and written_ms > until_ms:
            del self.left[at]
            return
        value = dict(record_headers(message)).get(REPLAY_OF)
        place = None if value is None else self._wanted.get(value)
        if place is not None:
            self.found.setdefault(place, (partition, offset))
        if offset >= end - 1:
            del self.left[at]
