"""Reads batches of records from assigned partitions until their end. Talks to the brokers; joins no group."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from forebay_schemas.clock import Clock
from forebay_schemas.errors import BrokerUnreachableError, ForebayError, KafkaFailedError
from forebay_schemas.kafka.connection import KafkaConnection
from forebay_schemas.kafka.errors import is_unreachable
from forebay_schemas.kafka.metadata import METADATA_TIMEOUT_SECONDS
from forebay_schemas.kafka.transient import until_passed

SILENT_SECONDS_MAX: Final = 10.0
"""A scan that gets nothing for this long ends: the brokers are gone."""

_BATCH_RECORDS_MAX: Final = 500

SCAN_CONFIG: Final[dict[str, Any]] = {
    # With end-of-partition events a scan ends even when the last offsets hold no record.
    "enable.partition.eof": True,
    "auto.offset.reset": "earliest",
}
"""Properties that a consumer needs for a scan."""


class TopicScan:
    """Takes batches from a consumer that has its partitions assigned."""

    def __init__(
        self,
        consumer: Consumer,
        *,
        connection: KafkaConnection,
        clock: Clock,
        reading: str,
        poll_seconds: float,
        on_error: Callable[[KafkaError, str | None], None],
    ) -> None:
        """``reading``: the subject of the scan, for the error after a silence. ``on_error`` gets each permanent error
        with its topic, and raises."""
        self._consumer = consumer
        self._connection = connection
        self._clock = clock
        self._reading = reading
        self._poll_seconds = poll_seconds
        self._on_error = on_error
        self._read_at = clock.monotonic()

    def batch(self) -> list[Message]:
        """The next records and end-of-partition events; empty when none came within ``poll_seconds``.

        Raises ``BrokerUnreachableError`` after a silence of `SILENT_SECONDS_MAX`, and what ``on_error`` raises.
        """
        first = self._consumer.poll(self._poll_seconds)
        if first is None:
            if self._clock.monotonic() - self._read_at > SILENT_SECONDS_MAX:
                servers = self._connection.bootstrap_servers
                raise BrokerUnreachableError(f"the brokers at {servers} went silent while {self._reading} was read")
            return []
        # consume() with a timeout would wait for the whole timeout even with records at hand.
        return [each for each in (first, *self._consumer.consume(_BATCH_RECORDS_MAX - 1, 0)) if self._is_read(each)]

    def _is_read(self, message: Message) -> bool:
        error = message.error()
        if error is None or error.code() == KafkaError._PARTITION_EOF:
            self._read_at = self._clock.monotonic()
            return True
        if not is_unreachable(error, known=True) and not _passes(error):
            self._on_error(error, message.topic())
        return False


def bounds_of(consumer: Consumer, at: TopicPartition) -> tuple[int, int]:
    """The first and the end offset of a partition. Transient errors are retried. Raises ``KafkaException``."""
    bounds: tuple[int, int] = until_passed()(consumer.get_watermark_offsets, at, timeout=METADATA_TIMEOUT_SECONDS)
    return bounds


def ends_of(consumer: Consumer, topic: str, numbers: Iterable[int]) -> list[TopicPartition]:
    """The partitions at their present ends, to be assigned. Raises as `bounds_of`."""
    return [TopicPartition(topic, number, bounds_of(consumer, TopicPartition(topic, number))[1]) for number in numbers]


def why_unread(error: Exception, *, explain: Callable[[KafkaError], ForebayError], what: str) -> ForebayError:
    """The error for callers that wait for what a reader's thread can no longer read."""
    if isinstance(error, ForebayError):
        return error
    if isinstance(error, KafkaException):
        return explain(error.args[0])
    return KafkaFailedError(f"{what} cannot be read: {error}")


def _passes(error: KafkaError) -> bool:
    """Whether the client recovers by itself. A deleted topic does not return."""
    return error.retriable() and error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART
