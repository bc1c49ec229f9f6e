"""Reads a pool's dead letters and its audit topic. Talks to the brokers; commits nothing.

Each read stops at the ends that the topic had when it began. It reads one partition after the other and keeps no
record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NoReturn

from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException, Message, TopicCollection, TopicPartition

from forebay_producer.cluster.topic_admin import OffsetBound, TopicAdmin
from forebay_producer.cluster.topic_scan import SCAN_CONFIG, TopicScan, bounds_of
from forebay_producer.dead_letters.audit import AuditIndex, AuditRecord, decode_audit
from forebay_producer.dead_letters.letter import Letter, LetterDecoder
from forebay_schemas.clock import Clock
from forebay_schemas.contract.topics import Pool
from forebay_schemas.errors import ForebayError, TopicMissingError
from forebay_schemas.formats.envelope_reader import EnvelopeReader
from forebay_schemas.kafka.clients import create_client, make_admin
from forebay_schemas.kafka.configs import reader_config
from forebay_schemas.kafka.connection import KafkaConnection
from forebay_schemas.kafka.errors import as_forebay_error
from forebay_schemas.kafka.metadata import METADATA_TIMEOUT_SECONDS, require_topics
from forebay_schemas.kafka.permissions import Operation, on_topic
from forebay_schemas.kafka.transient import until_passed

CLIENT_ID: Final = "forebay-dead-letters"

_POLL_SECONDS: Final = 0.2

_NOWHERE: Final = 2**63 - 1
"""Start of a partition without a record at or after the requested time."""

Ends = tuple[int, ...]
"""The end offset of each partition of the dead-letter topic at some moment."""


class DeadLetterReader:
    """The constructor and all reads raise ``TopicMissingError`` and ``BrokerUnreachableError``."""

    def __init__(self, connection: KafkaConnection, *, pool: Pool, envelopes: EnvelopeReader, clock: Clock) -> None:
        self._envelopes = envelopes
        self._connection = connection
        self._pool = pool
        self._clock = clock
        self._admin = make_admin(connection, client_id=CLIENT_ID)
        topics = [pool.dead_letter, pool.audit]
        self._partitions = require_topics(
            self._admin, topics, connection=connection, pool=pool.name, operation=Operation.READ
        )
        self.topic_id = self._ask_topic_id()
        """Kafka's id of the dead-letter topic."""

    def audit(self) -> Iterator[AuditRecord]:
        """The audit records up to now, in order."""
        for record in self._read(self._pool.audit):
            found = decode_audit(record.value())
            if found is not None:
                yield found

    def handled(self) -> AuditIndex:
        """The index of the audit records up to now."""
        handled = AuditIndex(topic_id=self.topic_id)
        for record in self.audit():
            handled.add(record)
        return handled

    def ends(self) -> Ends:
        """The present ends of the dead-letter topic."""
        topic = self._pool.dead_letter
        partitions = [(topic, number) for number in range(self._partitions[topic])]
        ends = TopicAdmin(self._admin, connection=self._connection).offsets(partitions, at=OffsetBound.LATEST)
        return tuple(ends[at] for at in partitions)

    def letters(
        self,
        *,
        since_ms: int | None = None,
        ends: Ends | None = None,
        tell: Callable[[int, int], None] = lambda _read, _of: None,
    ) -> Iterator[Letter]:
        """The dead letters up to now, or up to ``ends``; in order within a partition.

        ``since_ms`` (epoch milliseconds): skips most of the letters that died before; includes all that died since.
        ``tell`` is called repeatedly with the number of letters read and the total.
        """
        decoder = LetterDecoder(self._pool, envelopes=self._envelopes)
        return map(decoder.decode, self._read(self._pool.dead_letter, since_ms=since_ms, ends=ends, tell=tell))

    def _ask_topic_id(self) -> str:
        topic = self._pool.dead_letter

        def ask() -> Any:
            answers = self._admin.describe_topics(TopicCollection([topic]), request_timeout=METADATA_TIMEOUT_SECONDS)
            return answers[topic].result()

        try:
            return str(until_passed()(ask).topic_id)
        except KafkaException as error:
            doing = f"asking for the id of {topic}"
            needs = on_topic(Operation.READ, topic)
            raise as_forebay_error(error.args[0], connection=self._connection, doing=doing, needs=needs) from None

    def _read(
        self,
        topic: str,
        *,
        since_ms: int | None = None,
        ends: Ends | None = None,
        tell: Callable[[int, int], None] = lambda _read, _of: None,
    ) -> Iterator[Message]:
        # A larger prefetch is not faster, and dead letters can have 8 MiB each.
        config = reader_config(self._connection, client_id=CLIENT_ID) | {"queued.max.messages.kbytes": 4 * 1024}
        consumer = create_client(Consumer, config | SCAN_CONFIG)
        try:
            bounds = [bounds_of(consumer, TopicPartition(topic, n)) for n in range(self._partitions[topic])]
            if ends is not None:
                bounds = [(first, min(end, limit)) for (first, end), limit in zip(bounds, ends, strict=True)]
            if since_ms is not None:
                starts = self._starts(consumer, topic, since_ms)
                bounds = [(max(first, start), end) for (first, end), start in zip(bounds, starts, strict=True)]
            due, read = sum(max(0, end - first) for first, end in bounds), 0
            for partition, (first, end) in enumerate(bounds):
                if first < end:
                    consumer.assign([TopicPartition(topic, partition, first)])
                    for batch in _up_to(end, partition, self._scan(consumer, topic)):
                        yield from batch
                        read += len(batch)
                        tell(read, due)
        except KafkaException as error:
            raise self._explained(error.args[0], topic) from None
        finally:
            consumer.close()

    def _starts(self, consumer: Consumer, topic: str, since_ms: int) -> list[int]:
        """The first offset to read in each partition: that of the first record with this timestamp or a later one.

        All records before it have earlier timestamps, whatever the workers' clocks: no letter is missed, as letters are
        selected by the same timestamp. The lookup uses the millisecond before, as the brokers' time index may skip
        records within the same millisecond.
        """
        asked = [TopicPartition(topic, number, max(0, since_ms - 1)) for number in range(self._partitions[topic])]
        found = until_passed()(consumer.offsets_for_times, asked, timeout=METADATA_TIMEOUT_SECONDS)
        starts = []
        for one in found:
            if one.error is not None:
                raise KafkaException(one.error)
            starts.append(_NOWHERE if one.offset == OFFSET_END else one.offset)
        return starts

    def _scan(self, consumer: Consumer, topic: str) -> TopicScan:
        return TopicScan(
            consumer,
            connection=self._connection,
            clock=self._clock,
            reading=topic,
            poll_seconds=_POLL_SECONDS,
            on_error=lambda error, _: self._fail(error, topic),
        )

    def _fail(self, error: KafkaError, topic: str) -> NoReturn:
        if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise TopicMissingError([topic], pool=self._pool.name)
        raise self._explained(error, topic)

    def _explained(self, error: KafkaError, topic: str) -> ForebayError:
        needs = on_topic(Operation.READ, topic)
        return as_forebay_error(error, connection=self._connection, doing=f"reading {topic}", needs=needs, known=True)


def _up_to(end: int, partition: int, scan: TopicScan) -> Iterator[list[Message]]:
    """Batches of the partition's records before offset ``end``."""
    is_at_end = False
    while not is_at_end:
        batch = []
        for message in scan.batch():
            # The consumer may still hold records of the partition before.
            if message.partition() != partition:
                continue
            offset = message.offset()
            assert offset is not None
            is_record = message.error() is None
            if is_record and offset < end:
                batch.append(message)
            if not is_record or offset >= end - 1:
                is_at_end = True
                break
        if batch:
            yield batch
