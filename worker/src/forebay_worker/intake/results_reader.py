"""Scans the results topic for outcomes that a dead owner's last commit does not name. A thread of its own owns the
consumer and runs `step`; the intakes' threads call `look`."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import structlog
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, KafkaError, KafkaException, TopicPartition

from forebay_schemas.clock import Clock, MakeEvent
from forebay_schemas.contract.results import decode_result_of
from forebay_worker.intake.settled import SeenOutcomes
from forebay_worker.request.work import Record

IDLE_SECONDS = 0.2
POLL_SECONDS = 0.05
CONSUME_RECORDS_MAX = 500
BROKER_TIMEOUT_SECONDS = 5.0
AGAIN_SECONDS = 0.2
NO_PROGRESS_SECONDS_MAX = 10.0
"""A results topic that cannot be read must not stop requests for ever."""

KEPT_SECONDS = 60.0
"""For partitions that are assigned a little later: outcomes already found need not be read again."""

log = structlog.get_logger("forebay.results_reader")


class LookingConsumer(Protocol):
    """The part of confluent-kafka's Consumer that is used here. It reports ends of partitions
    (``enable.partition.eof``)."""

    def list_topics(self, topic: str, timeout: float) -> Any: ...
    def offsets_for_times(self, partitions: list[TopicPartition], timeout: float) -> list[TopicPartition]: ...
    def assign(self, partitions: list[TopicPartition]) -> None: ...
    def unassign(self) -> Any: ...
    def poll(self, timeout: float) -> Record | None: ...
    def consume(self, num_messages: int, timeout: float) -> list[Record]: ...
    def close(self) -> None: ...


@dataclass(slots=True, eq=False)
class ResultsLook:
    """One scan, as `Doubt` asks for it. ``is_complete``: it was not given up."""

    since_ms: int
    asked_at: float
    seen: SeenOutcomes = field(default_factory=SeenOutcomes)
    is_over: bool = False
    is_complete: bool = True

    def has(self, request_id: str, replay_count: int) -> bool:
        """Whether the scan found an outcome of that request."""
        return self.seen.has(request_id, replay_count)


@dataclass(slots=True, eq=False)
class _Reading:
    """A contiguous scan: all outcomes from ``since_ms`` on, below ``positions``."""

    since_ms: int
    topic_id: int | None
    positions: dict[int, int]
    seen: SeenOutcomes = field(default_factory=SeenOutcomes)


class ResultsReader:
    """``make_consumer`` is called at the first scan: a worker that meets no crash never needs it. ``topic_id``: the id
    of the present topic of that name; None if unknown."""

    def __init__(
        self,
        *,
        make_consumer: Callable[[], LookingConsumer],
        topic: str,
        topic_id: Callable[[], int | None],
        clock: Clock,
        make_event: MakeEvent = threading.Event,
    ) -> None:
        self._make_consumer = make_consumer
        self._topic = topic
        self._topic_id = topic_id
        self._clock = clock
        self._consumer: LookingConsumer | None = None
        self._asked: deque[ResultsLook] = deque()
        self._was_asked = make_event()
        self._looks: list[ResultsLook] = []
        self._reading: _Reading | None = None
        self._progress_at = 0.0
        self.completed_count = 0
        self.given_up_count = 0
        self.look_seconds = 0.0
        """Total time of all scans."""

    def look(self, since_ms: int) -> ResultsLook:
        """Asks for a scan from a time on (epoch milliseconds on the brokers' clock) to the end. From any thread."""
        look = ResultsLook(since_ms=since_ms, asked_at=self._clock.monotonic())
        self._asked.append(look)
        self._was_asked.set()
        return look

    def step(self) -> None:
        """Takes new requests for a scan, and reads. Blocks briefly and never raises; failures are retried."""
        now = self._clock.monotonic()
        if not self._looks and not self._asked:
            if self._reading is not None and now - self._progress_at > KEPT_SECONDS:
                self._reading = None
            self._was_asked.wait(IDLE_SECONDS)
            self._was_asked.clear()
            return
        if not self._looks:
            self._progress_at = now
        while self._asked:
            self._looks.append(self._asked.popleft())
        try:
            self._read()
        except Exception as error:  # noqa: BLE001 - whatever it was, it is tried again, and given up in time
            log.warning("results not scanned; trying again", error=str(error))
            self._clock.sleep(AGAIN_SECONDS)
        else:
            self._end(is_complete=self._reading is not None and not self._reading.seen.is_full)
        if self._looks and self._clock.monotonic() - self._progress_at > NO_PROGRESS_SECONDS_MAX:
            self._end(is_complete=False)

    def close(self) -> None:
        """Closes the consumer."""
        if self._consumer is not None:
            self._consumer.close()

    def _end(self, *, is_complete: bool) -> None:
        now, reading = self._clock.monotonic(), self._reading
        looks, self._looks = self._looks, []
        for look in looks:
            if reading is not None:
                look.seen = reading.seen
            look.is_complete = is_complete
            look.is_over = True
            self.look_seconds += now - look.asked_at
        if is_complete:
            self.completed_count += len(looks)
        else:
            self.given_up_count += len(looks)
        say = log.info if is_complete else log.error
        event = "results scanned" if is_complete else "results not scanned; requests may run again"
        since_ms = min(look.since_ms for look in looks)
        say(
            event,
            looks=len(looks),
            seconds=round(now - min(look.asked_at for look in looks), 3),
            since_seconds=round((self._clock.wall_ms() - since_ms) / 1000, 1),
            outcomes=0 if reading is None else reading.seen.count,
        )

    def _read(self) -> None:
        """Reads up to the present ends of the topic. Raises the client's errors; outcomes read before are kept."""
        consumer = self._consumer
        if consumer is None:
            consumer = self._consumer = self._make_consumer()
        since_ms = min(look.since_ms for look in self._looks)
        topic_id = self._topic_id()
        if self._reading is None or since_ms < self._reading.since_ms or topic_id != self._reading.topic_id:
            # Nothing was read of a recreated topic, whatever position the former scan reached.
            self._reading = _Reading(since_ms, topic_id, {})
        reading = self._reading
        # In this order: records written meanwhile are found by the second.
        numbers = self._partition_numbers(consumer)
        firsts = self._offsets(consumer, numbers, OFFSET_BEGINNING)
        ends = self._offsets(consumer, numbers, OFFSET_END)
        young = self._offsets(consumer, [each for each in numbers if each not in reading.positions], reading.since_ms)
        for number, offset in young.items():
            # For a partition without such a record the client returns a negative offset.
            reading.positions[number] = offset if offset >= 0 else ends[number]
        for number, first in firsts.items():
            reading.positions[number] = max(reading.positions[number], first)
        missing = {number for number, end in ends.items() if reading.positions[number] < end}
        consumer.assign([TopicPartition(self._topic, number, reading.positions[number]) for number in sorted(missing)])
        try:
            while missing and not reading.seen.is_full:
                # In two calls: consume with a timeout would wait for all of it.
                head = consumer.poll(POLL_SECONDS)
                records = [] if head is None else [head, *consumer.consume(CONSUME_RECORDS_MAX - 1, 0)]
                now = self._clock.monotonic()
                if records:
                    self._progress_at = now
                elif now - self._progress_at > NO_PROGRESS_SECONDS_MAX:
                    raise TimeoutError(f"nothing came of {len(missing)} partitions of {self._topic}")
                for record in records:
                    self._take(record, reading)
                missing = {number for number in missing if reading.positions[number] < ends[number]}
        finally:
            consumer.unassign()

    def _partition_numbers(self, consumer: LookingConsumer) -> list[int]:
        topic = consumer.list_topics(self._topic, timeout=BROKER_TIMEOUT_SECONDS).topics[self._topic]
        if topic.error is not None:
            raise KafkaException(topic.error)
        return sorted(topic.partitions)

    def _offsets(self, consumer: LookingConsumer, numbers: list[int], at: int) -> dict[int, int]:
        """Offsets where each partition begins, ends, or has its first record from a time on (epoch milliseconds). Asks
        all leaders at once; watermarks would take two requests a partition, one after another."""
        if not numbers:
            return {}
        wanted = [TopicPartition(self._topic, number, at) for number in numbers]
        found = consumer.offsets_for_times(wanted, timeout=BROKER_TIMEOUT_SECONDS)
        for each in found:
            if each.error is not None:
                raise KafkaException(each.error)
        return {each.partition: each.offset for each in found}

    def _take(self, record: Record, reading: _Reading) -> None:
        error: KafkaError | None = record.error()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            raise KafkaException(error)
        number = record.partition()
        if error is not None:
            # After the last record there may be one that no consumer receives, such as a transaction's marker.
            reading.positions[number] = max(reading.positions[number], record.offset())
            return
        reading.positions[number] = record.offset() + 1
        result = decode_result_of(record.value())
        if result is not None:
            reading.seen.add(result.request_id, result.replay_count)
