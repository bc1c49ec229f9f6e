"""A coordination over a topic in memory, step by step. No threads, no I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from forebay_schemas.contract.control import Control
from forebay_schemas.contract.coordination import Capacity, Notice, NoticeKind, encode_notice
from forebay_worker.coordination.follower import Coordination
from forebay_worker.request.work import Record
from simulated.ports import ManualClock, MemoryRecord, MemoryTopics, PartitionAnswer
from simulated.works import POOL

TOPIC, CONTROL = POOL.coordination, POOL.control
Key = tuple[str, int]
RUNNING, FINISHED, RELEASED = NoticeKind.RUNNING, NoticeKind.FINISHED, NoticeKind.RELEASED
TIMED_OUT = KafkaException(KafkaError(KafkaError._TIMED_OUT))


class MemoryTopic:
    """A topic in memory, the control topic beside it, and one follower of both, with the interface of confluent-kafka's
    Consumer."""

    def __init__(self, *, clock: ManualClock, partitions: int) -> None:
        self.asked_since_ms: list[int] = []
        self.logs: dict[Key, list[MemoryRecord | None]] = {(TOPIC, number): [] for number in range(partitions)}
        self.logs[CONTROL, 0] = []
        self.failing: deque[Exception] = deque()
        self.poll_failing: deque[Exception | KafkaError] = deque()
        self.partition_error: KafkaError | None = None
        self.metadata_asked = 0
        self.closed = False
        self.batch_max = 1_000
        self._clock = clock
        self._positions: dict[Key, int] | None = None

    def append(self, notice: Notice | bytes | None, *, partition: int = 0, topic: str = TOPIC) -> None:
        log = self.logs[topic, partition]
        log.append(
            MemoryRecord(
                topic_name=topic,
                partition_number=partition,
                offset_number=len(log),
                value_bytes=encode_notice(notice) if isinstance(notice, Notice) else notice,
                timestamp_ms=self._clock.wall_ms(),
            )
        )

    def assign(self, partitions: list[TopicPartition]) -> None:
        assert [(each.topic, each.partition) for each in partitions] == list(self.logs)
        assert all(each.offset >= 0 for each in partitions)
        self._positions = {(each.topic, each.partition): each.offset for each in partitions}

    def offsets_for_times(self, partitions: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        self.asked_since_ms += [each.offset for each in partitions]
        self._ask(timeout)
        found = []
        for each in partitions:
            log = self.logs[each.topic, each.partition]
            offset = next((one.offset() for one in log if one is not None and one.timestamp()[1] >= each.offset), -1)
            found.append(PartitionAnswer(each.topic, each.partition, offset, error=self.partition_error))
        return found  # type: ignore[return-value] # only confluent-kafka can set the error of its own

    def get_watermark_offsets(self, partition: TopicPartition, timeout: float) -> tuple[int, int]:
        self._ask(timeout)
        return 0, len(self.logs[partition.topic, partition.partition])

    def list_topics(self, topic: str, timeout: float) -> None:
        assert timeout > 0
        self.metadata_asked += topic == TOPIC

    def poll(self, timeout: float) -> MemoryRecord | None:
        record = self._next()
        if record is None:
            self._clock.advance(timeout)
        return record

    def _next(self) -> MemoryRecord | None:
        assert self._positions is not None, "polled before it was assigned"
        for (topic, partition), log in self.logs.items():
            position = self._positions[topic, partition]
            if position < len(log):
                self._positions[topic, partition] += 1
                failing = self.poll_failing.popleft() if self.poll_failing else None
                if isinstance(failing, Exception):
                    raise failing
                if failing is not None:
                    return MemoryRecord(topic_name=topic, partition_number=partition, failure=failing)
                if log[position] is not None:
                    return log[position]
                end = KafkaError(KafkaError._PARTITION_EOF)
                return MemoryRecord(
                    topic_name=topic, partition_number=partition, offset_number=position + 1, failure=end
                )
        return None

    def consume(self, num_messages: int, timeout: float) -> list[Record]:
        assert timeout == 0, "consume with a timeout waits for all of it"
        records: list[Record] = []
        while len(records) < min(num_messages, self.batch_max) and (record := self._next()) is not None:
            records.append(record)
        return records

    def close(self) -> None:
        self.closed = True

    def _ask(self, timeout: float) -> None:
        assert timeout > 0
        if self.failing:
            raise self.failing.popleft()


class Post:
    """A coordination over a topic in memory; ``received``: the notices that it passed on."""

    def __init__(self, *, partitions: int = 1) -> None:
        self.clock = ManualClock()
        self.topic = MemoryTopic(clock=self.clock, partitions=partitions)
        self.topics = MemoryTopics()
        self.received: list[Notice] = []
        self.batches: list[list[tuple[Control, int]]] = []
        self.has_room = True
        self.capacities: list[tuple[Capacity, float]] = []
        self.sent: list[tuple[Notice, Callable[[bool], None]]] = []
        self.coordination = Coordination(
            consumer=self.topic,
            topic=TOPIC,
            control_topic=CONTROL,
            partitions={TOPIC: partitions, CONTROL: 1},
            worker_id="w-1",
            clock=self.clock,
            topic_ids=self.topics,
            receive=lambda notice, _: self.received.append(notice),
            receive_controls=self.batches.append,
            has_room=lambda: self.has_room,
            receive_capacity=lambda capacity, age_seconds: self.capacities.append((capacity, age_seconds)),
            send=lambda notice, on_delivery: self.sent.append((notice, on_delivery)),
            explain=lambda error, topic: f"{topic}: {error.name()}",
        )

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            self.coordination.step()

    @property
    def controls(self) -> list[tuple[Control, int]]:
        return [each for batch in self.batches for each in batch]

    def offsets(self) -> list[int]:
        """Offsets named by the notices in ``received``."""
        return [offset for notice in self.received for offset in notice.offsets]

    def has_heard_until(self, moment: float) -> bool:
        return self.coordination.read_until >= moment


def says(kind: NoticeKind, *offsets: int) -> Notice:
    return Notice(kind=kind, worker="other", topic="t", partition=0, offsets=list(offsets))
