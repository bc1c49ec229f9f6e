"""Reads the audit topic for a run: from its first record, then repeatedly up to its end. One thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NoReturn

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from forebay_producer.cluster.topic_scan import SCAN_CONFIG, TopicScan, bounds_of
from forebay_producer.dead_letters.audit import AuditRecord, decode_audit
from forebay_producer.dead_letters.runs.interruptions import LostTurnError, is_transient_failure
from forebay_schemas.clock import Clock
from forebay_schemas.contract.topics import Pool
from forebay_schemas.errors import ForebayError, TopicMissingError
from forebay_schemas.kafka.clients import create_client
from forebay_schemas.kafka.configs import reader_config
from forebay_schemas.kafka.connection import KafkaConnection
from forebay_schemas.kafka.errors import as_forebay_error
from forebay_schemas.kafka.metadata import require_topics
from forebay_schemas.kafka.permissions import Operation, on_topic

AUDIT_PARTITION: Final = 0
"""The audit topic has one partition."""

_POLL_SECONDS: Final = 0.05


class AuditReader:
    """Keeps its position between reads. Must be closed."""

    def __init__(self, connection: KafkaConnection, *, pool: Pool, client_id: str, clock: Clock) -> None:
        self._connection = connection
        self._pool = pool
        self._clock = clock
        self._position = 0
        self._consumer = create_client(
            Consumer,
            reader_config(connection, client_id=client_id) | SCAN_CONFIG,
        )

    def open(self) -> None:
        """Checks that the topic exists and begins at its first record. Raises what `require_topics` raises."""
        require_topics(
            self._consumer,
            [self._pool.audit],
            connection=self._connection,
            pool=self._pool.name,
            operation=Operation.READ,
        )
        self._assign()

    def start_over(self) -> None:
        """Begins at the first record of a recreated topic. Raises as `read_to_end`."""
        try:
            self._assign()
        except KafkaException as error:
            raise self._failure(error.args[0]) from None
        self._position = 0

    def read_to_end(self, take: Callable[[AuditRecord, int, float], None], *, meanwhile: Callable[[], None]) -> None:
        """Calls ``take`` for each record up to the present end, with its offset and the time of the read.

        Calls ``meanwhile`` often. Raises ``LostTurnError`` for transient errors, ``ForebayError`` for others.
        """
        try:
            _, end = bounds_of(self._consumer, TopicPartition(self._pool.audit, AUDIT_PARTITION))
            self._read_to(end, take, meanwhile)
        except KafkaException as error:
            raise self._failure(error.args[0]) from None

    def close(self) -> None:
        """Closes the consumer."""
        self._consumer.close()

    def _assign(self) -> None:
        self._consumer.assign([TopicPartition(self._pool.audit, AUDIT_PARTITION, 0)])

    def _read_to(
        self, end: int, take: Callable[[AuditRecord, int, float], None], meanwhile: Callable[[], None]
    ) -> None:
        scan = TopicScan(
            self._consumer,
            connection=self._connection,
            clock=self._clock,
            reading=self._pool.audit,
            poll_seconds=_POLL_SECONDS,
            on_error=self._fail,
        )
        while self._position < end:
            meanwhile()
            for message in scan.batch():
                offset = message.offset()
                assert offset is not None
                if message.error() is not None:
                    self._position = max(self._position, offset)
                    continue
                self._position = offset + 1
                record = decode_audit(message.value())
                if record is not None:
                    take(record, offset, self._clock.monotonic())

    def _fail(self, error: KafkaError, _topic: str | None) -> NoReturn:
        if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise TopicMissingError([self._pool.audit], pool=self._pool.name)
        raise self._explained(error)

    def _failure(self, error: KafkaError) -> ForebayError:
        failure = self._explained(error)
        return LostTurnError(failure) if is_transient_failure(error) else failure

    def _explained(self, error: KafkaError) -> ForebayError:
        topic = self._pool.audit
        needs = on_topic(Operation.READ, topic)
        return as_forebay_error(error, connection=self._connection, doing=f"reading {topic}", needs=needs, known=True)
