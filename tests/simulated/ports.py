"""The edges of the worker's core, in memory: a clock, a producer, the other workers, topic ids. No threads, no I/O.

Time stands still unless a test moves it, or a poll that finds nothing spends its timeout.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from confluent_kafka import OFFSET_STORED, KafkaError, KafkaException

from forebay_schemas.contract.coordination import Notice
from forebay_worker.outcome.producer import BY_KEY

Key = tuple[str, int]

NOW_MS = 1_760_000_000_000
"""Start of a `ManualClock`'s wall clock."""


def plain(error: KafkaError, topic: str) -> str:  # noqa: ARG001 - the form that the worker's parts expect
    """A client's error in librdkafka's own words."""
    return error.str()


class ManualClock:
    """Both clocks, moved by hand."""

    def __init__(self) -> None:
        self._monotonic = 1_000.0
        self._wall_ms = float(NOW_MS)

    def monotonic(self) -> float:
        return self._monotonic

    def wall_ms(self) -> int:
        return int(self._wall_ms)

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Moves both clocks on."""
        self._monotonic += seconds
        self._wall_ms += seconds * 1000

    def step_wall(self, seconds: float) -> None:
        """Sets the wall clock on, or back."""
        self._wall_ms += seconds * 1000


class MessageAccessors:
    """The accessors of confluent-kafka's Message, over the fields of a dataclass."""

    __slots__ = ()
    partition_number: int
    offset_number: int
    key_bytes: bytes | None
    value_bytes: bytes | None
    header_list: list[tuple[str, bytes | None]] | None
    timestamp_ms: int
    failure: Any

    def partition(self) -> int:
        return self.partition_number

    def offset(self) -> int:
        return self.offset_number

    def key(self) -> bytes | None:
        return self.key_bytes

    def value(self) -> bytes | None:
        return self.value_bytes

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return self.header_list

    def timestamp(self) -> tuple[int, int]:
        return (2, self.timestamp_ms)

    def error(self) -> Any:
        return self.failure


@dataclass(slots=True, kw_only=True)
class MemoryRecord(MessageAccessors):
    """A record, or an error event when ``failure`` is set."""

    topic_name: str | None = "forebay.test.requests.mid"
    partition_number: int = 0
    offset_number: int = 0
    key_bytes: bytes | None = None
    value_bytes: bytes | None = None
    header_list: list[tuple[str, bytes | None]] | None = None
    timestamp_ms: int = NOW_MS
    failure: KafkaError | None = None

    def topic(self) -> str | None:
        return self.topic_name

    def set_headers(self, value: list[tuple[str, bytes | None]], /) -> None:
        self.header_list = value

    def latency(self) -> float | None:
        """Of a delivery, in seconds."""
        return 0.0


@dataclass(frozen=True, slots=True)
class PartitionAnswer:
    """A TopicPartition as an answer holds it: only confluent-kafka itself can set the error of its own."""

    topic: str
    partition: int
    offset: int = OFFSET_STORED
    metadata: str | None = None
    error: KafkaError | None = None


@dataclass(slots=True)
class _Produced:
    record: MemoryRecord
    on_delivery: Callable[[KafkaError | None, Any], None]


class MemoryProducer:
    """Takes records and delivers them at the next `poll`, in order, unless told otherwise: those too that a delivery
    led to.

    - ``queue_free``: how many more records fit before ``produce`` raises BufferError.
    - ``refuse``: ``produce`` raises this error for a record it returns one for.
    - ``fail``: the delivery of a record it returns an error for fails with it.
    - ``holding``: nothing is delivered.
    """

    def __init__(self) -> None:
        self.delivered: list[MemoryRecord] = []
        self.queue_free = 1_000_000
        self.refuse: Callable[[MemoryRecord], KafkaError | None] = lambda _: None
        self.fail: Callable[[MemoryRecord], KafkaError | None] = lambda _: None
        self.holding = False
        self._queue: deque[_Produced] = deque()

    def produce(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int = BY_KEY,
        *,
        headers: Any,
        on_delivery: Callable[[KafkaError | None, Any], None],
    ) -> None:
        record = MemoryRecord(
            topic_name=topic,
            partition_number=0 if partition == BY_KEY else partition,
            key_bytes=key,
            value_bytes=value,
            header_list=headers,
        )
        if (error := self.refuse(record)) is not None:
            raise KafkaException(error)
        if self.queue_free <= 0:
            raise BufferError("Local: Queue full")
        self.queue_free -= 1
        self._queue.append(_Produced(record, on_delivery))

    def poll(self, timeout: float) -> int:
        assert timeout == 0, "the event loop's thread must not wait"
        if self.holding:
            return 0
        served = 0
        while self._queue and not self.holding:
            produced = self._queue.popleft()
            served += 1
            self.queue_free += 1
            error = self.fail(produced.record)
            if error is None:
                self.delivered.append(produced.record)
            produced.on_delivery(error, produced.record)
        return served

    def delivered_to(self, topic: str) -> list[MemoryRecord]:
        """The records in a topic."""
        return [record for record in self.delivered if record.topic() == topic]


class MemoryPeers:
    """The other workers. ``published``: notices published to them, durable if ``can_be_told``. What they publish is
    received at once, unless ``read_until`` is set back."""

    def __init__(self) -> None:
        self.worker_id = "worker-1"
        self.read_until = float("inf")
        self.read_at = float("-inf")
        self.wanted_until: float | None = None
        self.published: list[Notice] = []
        self.can_be_told = True

    def listen_until(self, now: float) -> None:
        self.wanted_until = now

    def publish(self, notices: list[Notice]) -> bool:
        self.published += notices
        return self.can_be_told


class MemoryTopics:
    """Ids of topics by name. A topic has none until a test gives it one."""

    def __init__(self) -> None:
        self.known_until = float("inf")
        self.changes = 0
        self.wanted_until = float("-inf")
        self.changed_ms = 0
        self._ids: dict[str, int] = {}

    def id_of(self, topic: str) -> int | None:
        return self._ids.get(topic)

    def changed_after_ms(self, topic: str) -> int:  # noqa: ARG002 - the same of all
        return self.changed_ms

    def look_until(self, now: float) -> None:
        self.wanted_until = max(self.wanted_until, now)

    def learn(self, topic: str, topic_id: int) -> None:
        """The topic of that name is this one from now on, and it is known."""
        self._ids[topic] = topic_id
        self.changes += 1
