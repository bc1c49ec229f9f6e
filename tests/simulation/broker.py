"""A simulated Kafka cluster: logs with gaps and retention, requests and answers that take time, get cut off or lost.
Pure, in virtual time."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any
from zlib import crc32

from simulated.ports import MessageAccessors
from simulation.scheduler import WALL_START_MS, Process, Scheduler

if TYPE_CHECKING:
    from simulation.groups import Group
    from simulation.oracle import Oracle

Key = tuple[str, int]
METADATA_BYTES_MAX = 4_096


@dataclass(slots=True, eq=False)
class LogRecord(MessageAccessors):
    """A record in a log."""

    topic_name: str
    partition_number: int
    offset_number: int
    key_bytes: bytes | None
    value_bytes: bytes | None
    header_list: list[tuple[str, bytes | None]] | None
    timestamp_ms: int
    request_id: str | None = None
    attempt: int = 1
    failure: Any = None
    latency_seconds: float | None = None

    def topic(self) -> str:
        return self.topic_name

    def set_headers(self, value: list[tuple[str, bytes | None]], /) -> None:
        self.header_list = value

    def latency(self) -> float | None:
        return self.latency_seconds

    @property
    def place(self) -> tuple[str, int, int]:
        return self.topic_name, self.partition_number, self.offset_number


@dataclass(slots=True)
class Log:
    """One partition. ``start`` is the first offset that retention has left; ``end`` the next one to be written."""

    start: int = 0
    end: int = 0
    offsets: list[int] = field(default_factory=list)
    records: list[LogRecord] = field(default_factory=list)
    listeners: list[Callable[[], None]] = field(default_factory=list)

    def index(self, offset: int) -> int:
        """Index of the first record at or after ``offset``."""
        return bisect_left(self.offsets, offset)


@dataclass(slots=True, kw_only=True)
class FaultRates:
    """Probability of each fault, each time that it could happen; all 0 in calm."""

    produce_failed: float = 0.0
    produce_failed_but_written: float = 0.0
    produce_slow: float = 0.0
    produce_queue_full: float = 0.0
    commit_failed: float = 0.0
    commit_partly_failed: float = 0.0
    commit_failed_but_written: float = 0.0
    commit_answer_lost: float = 0.0
    commit_slow: float = 0.0
    commit_slow_seconds: float = 12.0
    last_commit_failed: float = 0.0
    committed_failed: float = 0.0
    read_raises: float = 0.0
    read_error_event: float = 0.0
    lookup_failed: float = 0.0


class Broker:
    """All brokers as one. ``down_until``: nobody answers before. ``fetch_seconds_max``: how long a fetch of those who
    follow a topic may take."""

    fetch_seconds_max = 0.0

    def __init__(
        self, *, scheduler: Scheduler, random: Random, oracle: Oracle, gap_rate: float, rates: FaultRates
    ) -> None:
        self.scheduler = scheduler
        self.random = random
        self.oracle = oracle
        self.rates = rates
        self.fetch_random = Random(0)
        self.commit_answered: Callable[[Process], None] = lambda _: None
        """Called when a worker has been given the answer to a commit."""
        self.down_until = 0.0
        self.refused_topics: dict[str, float] = {}
        self.topics: dict[str, list[Log]] = {}
        self.groups: dict[str, Group] = {}
        self._gap_rate = gap_rate

    def create_topic(self, name: str, partitions: int) -> None:
        self.topics[name] = [Log() for _ in range(partitions)]

    def grow_topic(self, name: str) -> None:
        """One more partition."""
        self.topics[name].append(Log())

    def log(self, key: Key) -> Log:
        return self.topics[key[0]][key[1]]

    def wall_ms(self) -> int:
        return WALL_START_MS + int(self.scheduler.now * 1000)

    def partition_for(self, topic: str, key: bytes | None) -> int:
        logs = self.topics[topic]
        return self.random.randrange(len(logs)) if key is None else crc32(key) % len(logs)

    def append(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: list[tuple[str, bytes | None]] | None,
        partition: int | None = None,
    ) -> LogRecord:
        """Writes a record; offsets before and behind it may be taken by what no consumer sees."""
        if partition is None:
            partition = self.partition_for(topic, key)
        log = self.topics[topic][partition]
        random = self.random
        if self._gap_rate and random.random() < self._gap_rate:
            log.end += random.randint(1, 4)
        record = LogRecord(topic, partition, log.end, key, value, headers, self.wall_ms())
        log.offsets.append(log.end)
        log.records.append(record)
        log.end += 1
        if self._gap_rate and random.random() < self._gap_rate / 2:
            log.end += 1
        self.oracle.appended(record)
        for listener in log.listeners:
            listener()
        return record

    def truncate(self, key: Key, share: float) -> None:
        """Retention removes the oldest records of a partition."""
        log = self.log(key)
        count = int(len(log.records) * share)
        for record in log.records[:count]:
            if record.offset_number >= log.start:
                self.oracle.removed(record)
        if count:
            log.start = max(log.start, log.offsets[count - 1] + 1)

    def watch(self, process: Process) -> None:
        """A process has just become unreachable: its sessions may end."""
        for group in self.groups.values():
            for member in list(group.members.values()):
                if member.consumer.process is process:
                    group.watch(member)

    def is_reachable(self, process: Process) -> bool:
        """Whether the group coordinator and a process reach each other now."""
        now = self.scheduler.now
        return process.alive and not process.stopped and process.cut_until <= now

    def is_refused(self, topic: str) -> bool:
        """Whether nobody may write to a topic now."""
        return self.refused_topics.get(topic, 0.0) > self.scheduler.now


class Connection:
    """One client's connection: what is sent arrives in order, and so do the answers."""

    def __init__(self, broker: Broker, process: Process) -> None:
        self._broker = broker
        self._scheduler = broker.scheduler
        self._process = process
        self._out_at = 0.0
        self._in_at = 0.0

    def _latency(self) -> float:
        return 0.001 + 0.02 * self._broker.random.random() ** 3

    def send(self, handle: Callable[..., object], *args: Any, slow_seconds: float = 0.0) -> None:
        """A request: it arrives even if its process dies on the way, unless it could not leave it."""
        now = self._scheduler.now
        reachable_at = max(now, self._process.cut_until, self._broker.down_until)
        self._out_at = max(self._out_at, reachable_at + self._latency() + slow_seconds)
        must_live = self._process if reachable_at > now else None
        self._scheduler.at(self._out_at, None, self._arrive, must_live, handle, args)

    def _arrive(self, must_live: Process | None, handle: Callable[..., object], args: tuple[Any, ...]) -> None:
        if must_live is None or must_live.alive:
            handle(*args)

    def reply(self, handle: Callable[..., object], *args: Any, slow_seconds: float = 0.0) -> None:
        """An answer, handled by the client's own threads."""
        reachable_at = max(self._scheduler.now, self._process.cut_until, self._broker.down_until)
        self._in_at = max(self._in_at, reachable_at + self._latency() + slow_seconds)
        self._scheduler.at(self._in_at, self._process, handle, *args)
