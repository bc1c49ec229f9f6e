"""What was seen in a run: records of the topics, executions by the engine's log, workers' lives and what was broken.
Pure; times are epoch milliseconds of the one clock that everything here shares."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

PartitionKey = tuple[str, int]


class RunError(Exception):
    """The run itself could not be carried out; says nothing of the worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """A record of a request topic (attempt 1) or of a retry topic: when it was written, and from when on it may run."""

    request_id: str
    attempt: int
    topic: str
    partition: int
    offset: int
    written_ms: int
    due_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A record of the results topic."""

    request_id: str
    attempt: int
    status: str
    reason: str
    worker: str | None
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """A line of the engine's log."""

    request_id: str
    attempt: int
    worker: str
    started_ms: int
    ended_ms: int
    outcome: str
    fault: str | None

    @property
    def ran(self) -> bool:
        """Whether the engine worked on it, to its end or until the worker left; not so if the engine refused or cut."""
        return self.outcome in ("completed", "disconnected") and self.fault in (None, "slow")


class End(StrEnum):
    """How a worker process ended."""

    RUNNING = "running"
    KILLED = "killed"
    TERMINATED = "terminated"
    CRASHED = "crashed"
    UNBORN = "unborn"
    """Terminated before it had got so far as to heed signals."""


@dataclass(slots=True, kw_only=True)
class Life:
    """One worker process. ``signalled_ms``: when it was killed or terminated."""

    worker: str
    slot: int
    started_ms: int
    signalled_ms: int | None = None
    end: End = End.RUNNING
    exit_code: int | None = None
    rss_mb: list[tuple[int, float]] = field(default_factory=list)


class Trouble(StrEnum):
    """What a window of time was about."""

    STOPPED = "stopped"
    LINK = "link"
    BROKER = "broker"
    BACKEND = "backend"


@dataclass(slots=True, kw_only=True)
class Window:
    """From when to when something was wrong. ``slots``: whose workers it concerns. ``cuts_all``: no worker reached any
    broker."""

    trouble: Trouble
    slots: frozenset[int]
    start_ms: int
    end_ms: int | None = None
    cuts_all: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenCommit:
    """What a group's commit for a partition said when it was looked at."""

    at_ms: int
    offset: int
    finished: tuple[tuple[int, int], ...]

    def covers(self, offset: int) -> bool:
        return offset < self.offset or any(first <= offset < first + length for first, length in self.finished)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """A run. ``accepted``: the request ids that brokers confirmed; ``undecodable``: the keys of junk likewise."""

    accepted: frozenset[str]
    undecodable: frozenset[str]
    records: tuple[RequestRecord, ...]
    outcomes: tuple[Outcome, ...]
    dead_letter_keys: frozenset[str]
    executions: tuple[Execution, ...]
    lives: tuple[Life, ...]
    windows: tuple[Window, ...]
    commits: dict[PartitionKey, list[SeenCommit]]
    end_ms: int
