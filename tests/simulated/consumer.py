"""A group's only member, over logs in memory. No threads, no I/O."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

from confluent_kafka import OFFSET_BEGINNING, OFFSET_STORED, KafkaError, KafkaException, TopicPartition

from simulated.ports import Key, ManualClock, MemoryRecord, PartitionAnswer


@dataclass(slots=True)
class _Fault:
    """At the next read: ``freed`` records pass unseen, then an exception or an error event takes their place."""

    freed: int
    exception: Exception | None = None
    event: KafkaError | None = None
    in_consume: bool = False


@dataclass(slots=True)
class MemoryPartition:
    """One partition's log and, while it is assigned, where the client stands in it."""

    records: list[MemoryRecord] = field(default_factory=list)
    position: int | None = None
    paused: bool = False
    faults: deque[_Fault] = field(default_factory=deque)


class ScriptedConsumer:
    """A group's only member, over logs in memory. Reading moves its position as a client's does, failures included."""

    def __init__(self, *, clock: ManualClock) -> None:
        self.logs: dict[Key, MemoryPartition] = {}
        self.committed_by_group: dict[Key, tuple[int, str]] = {}
        self.commits: list[tuple[dict[Key, tuple[int, str | None]], bool]] = []
        self.committed_error: Exception | None = None
        self.committed_partition_error: KafkaError | None = None
        self.commit_error: KafkaError | None = None
        self.commit_partition_errors: dict[Key, KafkaError] = {}
        self.seek_errors: dict[Key, KafkaError] = {}
        self.answers_commits = True
        self.closed = False
        self.polls = 0
        self._clock = clock
        self._on_commit: Callable[[KafkaError | None, list[TopicPartition]], None] = lambda _error, _partitions: None
        self._callbacks: dict[str, Callable[[Any, list[TopicPartition]], None]] = {}
        self._during_poll: deque[Callable[[], None]] = deque()
        self._unanswered: deque[Callable[[], None]] = deque()

    # What a test does.

    def connect(self, on_commit: Callable[[KafkaError | None, list[TopicPartition]], None]) -> ScriptedConsumer:
        """The factory that an intake is given."""
        self._on_commit = on_commit
        return self

    def append(self, record: MemoryRecord) -> None:
        """Puts a record at the end of its partition's log, whatever its offset."""
        self.log_of((str(record.topic()), record.partition())).records.append(record)

    def log_of(self, key: Key) -> MemoryPartition:
        return self.logs.setdefault(key, MemoryPartition())

    def assign(self, *keys: Key) -> None:
        """At the next poll the group gives these partitions."""
        self._at_poll("on_assign", keys)

    def revoke(self, *keys: Key) -> None:
        """At the next poll the group takes these partitions back."""
        self._at_poll("on_revoke", keys)

    def lose(self, *keys: Key) -> None:
        """At the next poll these partitions turn out to be lost."""
        self._at_poll("on_lost", keys)

    def free_unseen(self, key: Key, count: int, *, exception: Exception, in_consume: bool = False) -> None:
        """The next read of the partition frees records without handing them over, and raises."""
        self.log_of(key).faults.append(_Fault(count, exception=exception, in_consume=in_consume))

    def error_event(self, key: Key, count: int, *, error: KafkaError) -> None:
        """The next read of the partition gives an error event, which stands where ``count`` records were."""
        self.log_of(key).faults.append(_Fault(count, event=error))

    def answer_commit(self) -> None:
        """Answers the oldest asynchronous commit that waits for it."""
        self._unanswered.popleft()()

    # What the intake calls.

    def subscribe(self, topics: list[str], *, on_assign: Any, on_revoke: Any, on_lost: Any) -> None:
        assert topics
        self._callbacks = {"on_assign": on_assign, "on_revoke": on_revoke, "on_lost": on_lost}

    def poll(self, timeout: float) -> MemoryRecord | None:
        self.polls += 1
        while self._during_poll:
            self._during_poll.popleft()()
        while self.answers_commits and self._unanswered:
            self.answer_commit()
        read = self._read(1, in_consume=False)
        if not read:
            self._clock.advance(timeout)
        return read[0] if read else None

    def consume(self, num_messages: int, timeout: float) -> list[Any]:
        assert timeout == 0, "consume with a timeout waits for all of it"
        return self._read(num_messages, in_consume=True)

    def commit(self, *, offsets: list[TopicPartition], asynchronous: bool) -> Any:
        asked = {(each.topic, each.partition): (each.offset, each.metadata) for each in offsets}
        self.commits.append((asked, asynchronous))
        if self.commit_error is not None and not asynchronous:
            raise KafkaException(self.commit_error)
        failed, refused = self.commit_error, dict(self.commit_partition_errors)
        answer = [PartitionAnswer(*key, *said, refused.get(key)) for key, said in asked.items()]
        if failed is None:
            for each in answer:
                if each.error is None:
                    self.committed_by_group[each.topic, each.partition] = (each.offset, each.metadata or "")
        if not asynchronous:
            return answer
        self._unanswered.append(lambda: self._on_commit(failed, cast(list[TopicPartition], answer)))
        return None

    def get_watermark_offsets(
        self, partition: TopicPartition, timeout: float = 0.0, *, cached: bool = False
    ) -> tuple[int, int]:
        assert cached or timeout > 0, "a question to a broker needs an end"
        records = self.log_of((partition.topic, partition.partition)).records
        return 0, max((record.offset() for record in records), default=-1) + 1

    def committed(self, partitions: list[TopicPartition], timeout: float) -> list[Any]:
        assert timeout > 0
        if self.committed_error is not None:
            raise self.committed_error
        answer = []
        for each in partitions:
            offset, metadata = self.committed_by_group.get((each.topic, each.partition), (OFFSET_STORED, ""))
            answer.append(PartitionAnswer(each.topic, each.partition, offset, metadata, self.committed_partition_error))
        return answer

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        for each in partitions:
            key = (each.topic, each.partition)
            log = self.log_of(key)
            assert log.position is None, "assigned twice"
            start = self.committed_by_group.get(key, (0, ""))[0] if each.offset == OFFSET_STORED else each.offset
            assert start >= 0 or start == OFFSET_BEGINNING
            log.position = max(0, start)
            log.paused = False

    def incremental_unassign(self, partitions: list[TopicPartition]) -> None:
        for each in partitions:
            self.log_of((each.topic, each.partition)).position = None

    def pause(self, partitions: list[TopicPartition]) -> None:
        for each in partitions:
            self.log_of((each.topic, each.partition)).paused = True

    def resume(self, partitions: list[TopicPartition]) -> None:
        for each in partitions:
            self.log_of((each.topic, each.partition)).paused = False

    def seek(self, partition: TopicPartition) -> None:
        key = (partition.topic, partition.partition)
        if (error := self.seek_errors.get(key)) is not None:
            raise KafkaException(error)
        log = self.log_of(key)
        if log.position is None:
            raise KafkaException(KafkaError(KafkaError._STATE))
        assert partition.offset >= 0 or partition.offset == OFFSET_BEGINNING
        log.position = max(0, partition.offset)

    def close(self) -> None:
        self.closed = True

    def _at_poll(self, callback: str, keys: tuple[Key, ...]) -> None:
        def rebalance() -> None:
            self._callbacks[callback](self, [TopicPartition(*key) for key in keys])
            for key in keys:
                if callback == "on_assign":
                    # As confluent-kafka does when the callback did not assign.
                    if self.log_of(key).position is None:
                        self.incremental_assign([TopicPartition(*key, OFFSET_STORED)])
                else:
                    self.log_of(key).position = None

        self._during_poll.append(rebalance)

    def _read(self, count: int, *, in_consume: bool) -> list[MemoryRecord]:
        read: list[MemoryRecord] = []
        for key, log in self.logs.items():
            while log.position is not None and not log.paused and len(read) < count:
                if log.faults and log.faults[0].in_consume <= in_consume:
                    fault = log.faults.popleft()
                    for _ in range(fault.freed):
                        self._next(log)
                    if fault.exception is not None:
                        raise fault.exception
                    read.append(MemoryRecord(topic_name=key[0], partition_number=key[1], failure=fault.event))
                    continue
                record = self._next(log)
                if record is None:
                    break
                read.append(record)
        return read

    def _next(self, log: MemoryPartition) -> MemoryRecord | None:
        assert log.position is not None
        at = bisect_left(log.records, log.position, key=MemoryRecord.offset)
        if at == len(log.records):
            return None
        log.position = log.records[at].offset() + 1
        return log.records[at]
