"""Reads single records out of turn, for controls of unread requests. A thread of its own owns the consumer and runs
`step`; the intakes' threads call `fetch`."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import structlog
from confluent_kafka import TopicPartition

from forebay_schemas.clock import Clock, MakeEvent
from forebay_worker.partition.assignment import Assignment
from forebay_worker.request.work import Record

IDLE_SECONDS = 0.2
POLL_SECONDS = 0.05
ROUND_SECONDS_MAX = 2.0

log = structlog.get_logger("forebay.fetcher")


class FetchingConsumer(Protocol):
    """The part of confluent-kafka's Consumer that is used here."""

    def assign(self, partitions: list[TopicPartition]) -> None: ...
    def unassign(self) -> Any: ...
    def poll(self, timeout: float) -> Record | None: ...
    def get_watermark_offsets(self, partition: TopicPartition, timeout: float) -> Any: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Fetched:
    """``record``: None if it could not be read or does not exist. ``begins_at``: the first offset of the log, if
    nothing was known of the partition and the broker answered."""

    assignment: Assignment
    offset: int
    record: Record | None
    begins_at: int | None = None


_Wanted = tuple[Assignment, int, deque[Fetched]]


class Fetcher:
    """``make_consumer`` is called at the first fetch: most workers never need the consumer."""

    def __init__(
        self,
        *,
        make_consumer: Callable[[], FetchingConsumer],
        clock: Clock,
        make_event: MakeEvent = threading.Event,
    ) -> None:
        self._make_consumer = make_consumer
        self._clock = clock
        self._consumer: FetchingConsumer | None = None
        self._came: deque[_Wanted] = deque()
        self._wanted: dict[tuple[str, int], deque[_Wanted]] = {}
        self._asked = make_event()

    def fetch(self, assignment: Assignment, offset: int, answers: deque[Fetched]) -> None:
        """Asks for a record. The answer is always put into ``answers``."""
        self._came.append((assignment, offset, answers))
        self._asked.set()

    def step(self) -> None:
        """One round: fetches one wanted record of each partition. Blocks briefly and never raises."""
        for _ in range(len(self._came)):
            one = self._came.popleft()
            self._wanted.setdefault((one[0].topic, one[0].partition), deque()).append(one)
        if not self._wanted:
            self._asked.wait(IDLE_SECONDS)
            self._asked.clear()
            return
        asked = {key: of_partition.popleft() for key, of_partition in self._wanted.items()}
        self._wanted = {key: of_partition for key, of_partition in self._wanted.items() if of_partition}
        found: dict[tuple[str, int], Record] = {}
        begins: dict[tuple[str, int], int] = {}
        try:
            found = self._read({key: offset for key, (_, offset, _) in asked.items()})
            begins = self._begins([key for key, one in asked.items() if one[0].offsets.next_offset is None])
        except Exception as error:  # noqa: BLE001 - whatever it was, the requests are found when they are read
            log.warning("records not fetched out of turn", error=str(error))
        for key, (assignment, offset, answers) in asked.items():
            answers.append(Fetched(assignment, offset, found.get(key), begins.get(key)))

    def close(self) -> None:
        """Closes the consumer."""
        if self._consumer is not None:
            self._consumer.close()

    def _begins(self, keys: list[tuple[str, int]]) -> dict[tuple[str, int], int]:
        assert self._consumer is not None
        return {
            key: self._consumer.get_watermark_offsets(TopicPartition(*key), timeout=ROUND_SECONDS_MAX)[0]
            for key in keys
        }

    def _read(self, offsets: dict[tuple[str, int], int]) -> dict[tuple[str, int], Record]:
        consumer = self._consumer
        if consumer is None:
            consumer = self._consumer = self._make_consumer()
        consumer.assign([TopicPartition(*key, offset) for key, offset in offsets.items()])
        missing = set(offsets)
        found: dict[tuple[str, int], Record] = {}
        end = self._clock.monotonic() + ROUND_SECONDS_MAX
        while missing and self._clock.monotonic() < end:
            record = consumer.poll(POLL_SECONDS)
            if record is None:
                continue
            key = (record.topic(), record.partition())
            if key not in missing:
                continue
            missing.remove(key)
            if record.error() is None and record.offset() == offsets[key]:
                found[key] = record
        consumer.unassign()
        return found
