"""Partitions assigned to a simulated client, and its reading of them, with delays and errors drawn by the broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, OFFSET_STORED, KafkaError, KafkaException, TopicPartition

from simulation.broker import Broker, Key, Log, LogRecord
from simulation.groups import Group
from simulation.scheduler import Process


@dataclass(slots=True, eq=False)
class _Reading:
    """The client's position in one assigned partition."""

    key: Key
    log: Log
    position: int
    paused: bool = False
    ready_at: float = 0.0
    told_end: int | None = None


class Readings:
    """``data_came``: called when a record is appended to one of the partitions."""

    def __init__(self, *, broker: Broker, process: Process, group: Group, data_came: Callable[[], None]) -> None:
        self._broker = broker
        self._process = process
        self._group = group
        self._data_came = data_came
        self._scheduler = broker.scheduler
        self._random = broker.random
        self._of: dict[Key, _Reading] = {}

    def __contains__(self, key: Key) -> bool:
        return key in self._of

    def assign(self, partitions: list[TopicPartition]) -> None:
        for each in partitions:
            key = (each.topic, each.partition)
            self._scheduler.require(key not in self._of, f"{key} is assigned twice")
            log = self._broker.log(key)
            reading = _Reading(key, log, self._start(key, log, each.offset))
            self._make_ready(reading)
            self._of[key] = reading
            log.listeners.append(self._data_came)

    def forget(self, keys: list[Key]) -> None:
        for key in keys:
            reading = self._of.pop(key, None)
            if reading is not None:
                reading.log.listeners.remove(self._data_came)

    def pause(self, partitions: list[TopicPartition]) -> None:
        for each in partitions:
            self._reading(each).paused = True

    def resume(self, partitions: list[TopicPartition]) -> None:
        for each in sorted(partitions):
            reading = self._reading(each)
            # What had been fetched was thrown away by the pause.
            reading.paused = False
            self._make_ready(reading)

    def seek(self, partition: TopicPartition) -> None:
        reading = self._reading(partition)
        reading.position = self._start(reading.key, reading.log, partition.offset)
        self._make_ready(reading)

    def ready_after(self, now: float) -> Iterator[float]:
        """Times after now at which a partition can be read."""
        return (each.ready_at for each in self._of.values() if each.ready_at > now)

    def read(self, count: int) -> list[Any]:
        now = self._scheduler.now
        if self._process.cut_until > now or self._broker.down_until > now:
            return []
        readings = [
            each
            for each in self._of.values()
            if not each.paused
            and each.ready_at <= now
            and (each.position < each.log.end or each.told_end != each.log.end)
        ]
        if not readings:
            return []
        random, rates = self._random, self._broker.rates
        if len(readings) > 1:
            random.shuffle(readings)
        read: list[Any] = []
        for reading in readings:
            log = reading.log
            if reading.position < log.start:
                reading.position = log.start  # out of range: reset to the earliest
            index = log.index(reading.position)
            records = log.records[index : index + count - len(read)]
            if not records:
                reading.position = reading.told_end = log.end
                read.append(end_event(reading.key, log.end))
                if len(read) >= count:
                    break
                continue
            if rates.read_raises and random.random() < rates.read_raises:
                # Everything read so far is freed unseen, but the client's position moves on.
                reading.position = records[-1].offset_number + 1
                if random.random() < 0.5:
                    raise KafkaException(KafkaError(KafkaError._FAIL))
                raise SystemError("returned a result with an exception set")
            if rates.read_error_event and random.random() < rates.read_error_event:
                reading.position = records[0].offset_number + 1
                read.append(_error_event(records[0]))
                if len(read) >= count:
                    break
                continue
            reading.position = records[-1].offset_number + 1
            read += records
            if len(read) >= count:
                break
        return read

    def _start(self, key: Key, log: Log, offset: int) -> int:
        if offset == OFFSET_STORED:
            offset = self._group.committed.get(key, (OFFSET_BEGINNING, ""))[0]
        if offset == OFFSET_BEGINNING:
            return log.start
        assert offset >= 0, offset
        return offset

    def _make_ready(self, reading: _Reading) -> None:
        reading.told_end = None
        reading.ready_at = self._scheduler.now + 0.005 + 0.05 * self._random.random() ** 2

    def _reading(self, partition: TopicPartition) -> _Reading:
        reading = self._of.get((partition.topic, partition.partition))
        if reading is None:
            raise KafkaException(KafkaError(KafkaError._STATE))
        return reading


def end_event(key: Key, end: int) -> LogRecord:
    """The client's event at the end of a partition."""
    return LogRecord(*key, end, None, None, None, 0, failure=KafkaError(KafkaError._PARTITION_EOF))


def _error_event(instead_of: LogRecord) -> LogRecord:
    topic, partition, _ = instead_of.place
    failure = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    return LogRecord(topic, partition, -1001, None, None, None, 0, failure=failure)
