"""Reads a pool's results topic from a given time on. Talks to the brokers; belongs to no group and commits nothing.

Owned by one thread at a time. What counts as a request's outcome is the first result with its id and replay count.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple, Self

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from forebay_schemas.bounded import BoundedMap
from forebay_schemas.clock import Clock
from forebay_schemas.contract.results import Result, ResultError, decode_result
from forebay_schemas.contract.topics import Pool
from forebay_schemas.errors import ForebayError, TopicMissingError
from forebay_schemas.kafka.clients import create_client, make_admin
from forebay_schemas.kafka.configs import reader_config
from forebay_schemas.kafka.connection import KafkaConnection
from forebay_schemas.kafka.errors import as_forebay_error, is_unreachable
from forebay_schemas.kafka.metadata import METADATA_TIMEOUT_SECONDS, require_topics
from forebay_schemas.kafka.permissions import Operation, on_topic
from forebay_schemas.kafka.topic_ids import TopicIdentity
from forebay_schemas.kafka.transient import TRANSIENT, until_passed

REMEMBERED_IDS_MAX: Final = 200_000
"""Remembered first outcomes: 30 MB. A second outcome after more than these would pass for a first."""

NEW_PARTITIONS_SECONDS: Final = 30.0
"""Interval of the check for new partitions. They are read from their first record."""

_LOOK_SECONDS_MAX: Final = 1.0
_BATCH_RECORDS_MAX: Final = 1000
_UNKNOWN_END: Final = 2**63 - 1
_CLIENT_ID: Final = "forebay-results"
_DOING: Final = "reading results"

_log = logging.getLogger("forebay.producer.results")


class ReadResult(NamedTuple):
    """A result and the record value it was decoded from."""

    result: Result
    value: bytes


class ResultsReader:
    """Reads results. The constructor fixes the positions: everything written after it returns will be read. A topic
    that is recreated is read from its first record; some results may then come twice.

    ``since_ms``: epoch milliseconds on the brokers' clock, 0 = from the beginning, None = only new results.
    ``partition``: the only one to read; None, or one that the topic does not have: all.
    ``tell``: receives a line about skipped records, and about a recreated topic.
    Raises ``TopicMissingError``, and ``BrokerUnreachableError`` when a broker call takes longer than ``open_seconds``.
    """

    def __init__(
        self,
        connection: KafkaConnection,
        *,
        pool: Pool,
        since_ms: int | None,
        clock: Clock,
        open_seconds: float = METADATA_TIMEOUT_SECONDS,
        partition: int | None = None,
        tell: Callable[[str], None] = _log.warning,
    ) -> None:
        self._only = partition
        self._connection = connection
        self._pool = pool
        self._clock = clock
        self._open_seconds = min(open_seconds, METADATA_TIMEOUT_SECONDS)
        self._partitions = 0
        self._tell = tell
        self._has_told = False
        config = reader_config(connection, client_id=_CLIENT_ID) | {
            # With end-of-partition events a reader finishes even when the last offsets hold no record.
            "enable.partition.eof": True,
            # Where retention has passed the position, reading begins at the first record left.
            "auto.offset.reset": "earliest",
            # The client's own prefetch bound is 64 MiB.
            "queued.min.messages": 2_000,
            "queued.max.messages.kbytes": 4096,
        }
        self._consumer = create_client(Consumer, config)
        self._is_another = False
        try:
            # Before the positions are taken, as they belong to this topic.
            self._identity = TopicIdentity(
                partial(make_admin, connection, client_id=_CLIENT_ID), topic=pool.results, clock=clock
            )
            self._behind = self._open(since_ms)
            self._look_again_at = clock.monotonic() + NEW_PARTITIONS_SECONDS
        except BaseException:
            self._consumer.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the consumer. May be called again."""
        self._consumer.close()

    def caught_up(self) -> bool:
        """Whether all records that existed when the reader was made have been read."""
        return not self._behind

    def read(self, *, timeout_seconds: float, wanted: Callable[[bytes | None], bool] | None = None) -> list[ReadResult]:
        """The next results, in order within each partition; empty when none arrives within the timeout.

        ``wanted(key)``: whether to decode the record with this key. Records that are no results are skipped; the first
        is reported. Unreachable brokers are retried. Raises ``TopicMissingError`` when the topic is gone, and
        ``KafkaFailedError`` for errors that retries do not mend.
        """
        self._is_another = self._identity.was_made_anew() or self._is_another
        if self._is_another:
            self._begin_anew()
        elif self._clock.monotonic() >= self._look_again_at:
            self._notice_new_partitions()
        first = self._consumer.poll(timeout_seconds)
        if first is None:
            return []
        found: list[ReadResult] = []
        # consume() with a timeout would wait for the whole timeout even with records at hand.
        for message in (first, *self._consumer.consume(_BATCH_RECORDS_MAX - 1, 0)):
            error = message.error()
            if error is not None:
                self._met(error, message)
                continue
            self._passed(message)
            if wanted is not None and not wanted(message.key()):
                continue
            value = message.value()
            try:
                found.append(ReadResult(decode_result(value), value or b""))
            except ResultError as problem:
                if not self._has_told:
                    self._has_told = True
                    at = f"{message.topic()}:{message.partition()}:{message.offset()}"
                    self._tell(f"left out {at}, and all that is like it: {problem}")
        return found

    def _open(self, since_ms: int | None) -> dict[int, int]:
        """Assigns all partitions; returns the ends of those with something to read up to now."""
        topic = self._pool.results
        count = require_topics(
            self._consumer,
            [topic],
            connection=self._connection,
            pool=self._pool.name,
            operation=Operation.READ,
            timeout_seconds=self._open_seconds,
        )[topic]
        try:
            starts, behind = until_passed(self._open_seconds)(self._positions, topic, count, since_ms)
            self._consumer.assign([TopicPartition(topic, partition, start) for partition, start in starts.items()])
        except KafkaException as error:
            raise self._explained(error.args[0]) from None
        self._partitions = count
        return behind

    def _begin_anew(self) -> None:
        """Reads the recreated topic from its first record. A failure is retried by the next `read`."""
        topic = self._pool.results
        try:
            count = len(self._consumer.list_topics(topic, timeout=_LOOK_SECONDS_MAX).topics[topic].partitions)
            numbers = self._numbers(count)
            self._consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in numbers])
        except KafkaException:
            return
        if not count:
            return
        self._tell(f"{topic} was deleted and made anew; reading it from its first record")
        self._partitions, self._behind = count, dict.fromkeys(numbers, _UNKNOWN_END)
        self._is_another = False

    def _notice_new_partitions(self) -> None:
        self._look_again_at = self._clock.monotonic() + NEW_PARTITIONS_SECONDS
        topic = self._pool.results
        try:
            found = self._consumer.list_topics(topic, timeout=_LOOK_SECONDS_MAX).topics[topic].partitions
        except KafkaException:
            return
        numbers = range(self._partitions, len(found)) if self._only is None else ()
        new = [TopicPartition(topic, number, OFFSET_BEGINNING) for number in numbers]
        if new:
            self._consumer.incremental_assign(new)
            self._partitions = len(found)

    def _numbers(self, count: int) -> Sequence[int]:
        """The partitions to read, of ``count``."""
        return range(count) if self._only is None or self._only >= count else [self._only]

    def _positions(self, topic: str, count: int, since_ms: int | None) -> tuple[dict[int, int], dict[int, int]]:
        """The first offset to read in each partition, and the present ends of partitions that have records to read."""
        timeout, numbers = self._open_seconds, self._numbers(count)
        # Ends first: a partition without a record at or after the wanted time gets such records behind its end.
        bounds = {
            partition: self._consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=timeout)
            for partition in numbers
        }
        starts = {partition: end for partition, (_, end) in bounds.items()}
        if since_ms is not None:
            wanted = [TopicPartition(topic, partition, since_ms) for partition in numbers]
            for at in self._consumer.offsets_for_times(wanted, timeout=timeout):
                if at.error is not None:
                    raise KafkaException(at.error)
                if at.offset >= 0:
                    starts[at.partition] = at.offset
        behind = {partition: end for partition, (first, end) in bounds.items() if max(starts[partition], first) < end}
        return starts, behind

    def _passed(self, message: Message) -> None:
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        if self._behind and offset + 1 >= self._behind.get(partition, offset + 2):
            del self._behind[partition]

    def _met(self, error: KafkaError, message: Message) -> None:
        if error.code() == KafkaError._PARTITION_EOF:
            partition = message.partition()
            assert partition is not None
            self._behind.pop(partition, None)
        elif error.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC):
            raise TopicMissingError([self._pool.results], pool=self._pool.name)
        elif is_unreachable(error) or error.code() in TRANSIENT:
            _log.info("%s: %s", _DOING, error.str())
        else:
            raise self._explained(error)

    def _explained(self, error: KafkaError) -> ForebayError:
        needs = on_topic(Operation.READ, self._pool.results)
        return as_forebay_error(error, connection=self._connection, doing=_DOING, needs=needs)


class FirstOutcomes:
    """Which results are the first of their request; later ones come from executions repeated after a crash.

    A replay is meant to have an outcome of its own: the first with its replay count. Remembers the last ``ids_max``
    outcomes: a repetition that comes after so many others is taken for a first one.
    """

    def __init__(self, *, ids_max: int) -> None:
        self._seen: BoundedMap[tuple[str, int], None] = BoundedMap(entries_max=ids_max)

    def is_first(self, request_id: str, replay_count: int) -> bool:
        """True once per id and replay count."""
        return self._seen.add((request_id, replay_count), None)
