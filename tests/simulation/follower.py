"""A simulated consumer that follows topics by assignment, without a group. Blocks in virtual time."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, KafkaError, KafkaException, TopicPartition

from simulation.broker import Broker, Key, Log
from simulation.readings import end_event
from simulation.scheduler import Process, Thread


@dataclass(frozen=True, slots=True)
class _ListedTopic:
    partitions: dict[int, None]
    error: KafkaError | None = None


@dataclass(frozen=True, slots=True)
class _Listed:
    topics: dict[str, _ListedTopic]


class Follower:
    """Reads topics by assignment, without a group. What a broker has, a fetch brings, and that may take its time."""

    def __init__(self, *, broker: Broker, process: Process) -> None:
        self._broker = broker
        self._process = process
        self._scheduler = broker.scheduler
        self._positions: dict[Key, int] = {}
        self._told_ends: dict[Key, int] = {}
        self._fetched: dict[Key, int] = {}
        self._fetch_ends_at: dict[Key, float] = {}
        self._thread: Thread | None = None

    def assign(self, partitions: list[TopicPartition]) -> None:
        self._positions.clear()
        self._told_ends.clear()
        self._fetch_ends_at.clear()
        for each in partitions:
            key = (each.topic, each.partition)
            log = self._broker.log(key)
            self._positions[key] = self._fetched[key] = each.offset if each.offset != OFFSET_END else log.end
            if self._data_came not in log.listeners:
                log.listeners.append(self._data_came)

    def offsets_for_times(self, partitions: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        self._ask(timeout)
        found = []
        for each in partitions:
            log = self._broker.log((each.topic, each.partition))
            if each.offset in (OFFSET_BEGINNING, OFFSET_END):
                offset = log.start if each.offset == OFFSET_BEGINNING else log.end
            else:
                index = bisect_left(log.records, each.offset, key=lambda record: record.timestamp_ms)
                offset = log.records[index].offset_number if index < len(log.records) else OFFSET_END
            found.append(TopicPartition(each.topic, each.partition, offset))
        return found

    def get_watermark_offsets(self, partition: TopicPartition, timeout: float) -> tuple[int, int]:
        self._ask(timeout)
        log = self._broker.log((partition.topic, partition.partition))
        return log.start, log.end

    def list_topics(self, topic: str, timeout: float) -> Any:
        self._ask(timeout)
        return _Listed({topic: _ListedTopic(dict.fromkeys(range(len(self._broker.topics[topic]))))})

    def poll(self, timeout: float) -> Any:
        end = self._scheduler.now + timeout * self._process.poll_stretch * 4
        while True:
            record = self._next()
            if record is not None:
                return record
            if self._scheduler.now >= end:
                return None
            self._thread = self._scheduler.current_thread
            assert self._thread is not None
            now = self._scheduler.now
            self._thread.wait(min([end, *(at for at in self._fetch_ends_at.values() if at > now)]) - now)
            self._thread = None

    def consume(self, num_messages: int, timeout: float) -> list[Any]:
        self._scheduler.require(timeout == 0, "consume with a timeout waits for all of it")
        records: list[Any] = []
        while len(records) < num_messages and (record := self._next()) is not None:
            records.append(record)
        return records

    def unassign(self) -> None:
        self._positions.clear()

    def close(self) -> None:
        self._positions.clear()

    def _next(self) -> Any:
        if max(self._process.cut_until, self._broker.down_until) > self._scheduler.now:
            return None
        for key, position in self._positions.items():
            log = self._broker.log(key)
            end = self._fetched_end(key, log, position)
            index = log.index(position)
            if index < len(log.records) and log.records[index].offset_number < end:
                record = log.records[index]
                self._positions[key] = record.offset_number + 1
                return record
            if end == log.end and self._told_ends.get(key) != end:
                self._positions[key] = self._told_ends[key] = end
                return end_event(key, end)
        return None

    def _fetched_end(self, key: Key, log: Log, position: int) -> int:
        """Up to where a log has been fetched; begins another fetch when all of that was read."""
        if not self._broker.fetch_seconds_max:
            return log.end
        if (ends_at := self._fetch_ends_at.get(key)) is not None:
            if ends_at <= self._scheduler.now:
                del self._fetch_ends_at[key]
                self._fetched[key] = log.end
        elif position >= self._fetched[key] < log.end:
            seconds = self._broker.fetch_seconds_max * self._broker.fetch_random.random() ** 3
            self._fetch_ends_at[key] = self._scheduler.now + seconds
        return self._fetched[key]

    def _ask(self, timeout: float) -> None:
        rates, random = self._broker.rates, self._broker.random
        now = self._scheduler.now
        wait = max(self._process.cut_until, self._broker.down_until, now) - now + 0.001 + 0.01 * random.random()
        if wait > timeout or (rates.lookup_failed and random.random() < rates.lookup_failed):
            self._scheduler.sleep(min(wait, timeout))
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        self._scheduler.sleep(wait)

    def _data_came(self) -> None:
        if self._thread is not None:
            self._thread.wake(0.002)
