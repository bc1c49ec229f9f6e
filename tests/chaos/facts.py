"""Observations of a run: records of the topics, executions in the engine's log, workers' lives, and faults. Pure; times
are epoch milliseconds of the one clock that everything here shares."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from chaos.acts import Ask
from forebay_schemas.contract.tiers import TIERS, Tier

PartitionKey = tuple[str, int]

Turn = tuple[str, int]
"""A request id and how many times it has come back from the dead letters: each turn ends in an outcome of its own."""


Rank = tuple[int, int]
"""A request's place among others that wait in the same worker."""


class RunError(Exception):
    """The run itself could not be carried out; says nothing of the worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """A record of a request topic (attempt 1) or of a retry topic: when it was written, and from when on it may run.

    ``is_copy``: it lies in the high tier, and the request was submitted to another one: an expedited one.
    ``priority``: from 0 to 10; of a tier's requests the one that has more goes first.
    """

    request_id: str
    attempt: int
    replay_count: int = 0
    is_copy: bool = False
    topic: str
    partition: int
    offset: int
    written_ms: int
    due_ms: int
    tier: Tier = Tier.HIGH
    priority: int = 0

    @property
    def rank(self) -> Rank:
        """Less goes first, in a worker that has both."""
        return (TIERS.index(self.tier), -self.priority)

    @property
    def turn(self) -> Turn:
        return (self.request_id, self.replay_count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A record of the results topic."""

    request_id: str
    attempt: int
    status: str
    reason: str
    worker: str | None
    at_ms: int
    replay_count: int = 0

    @property
    def turn(self) -> Turn:
        return (self.request_id, self.replay_count)


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
    replay_count: int = 0

    @property
    def turn(self) -> Turn:
        return (self.request_id, self.replay_count)

    @property
    def ran(self) -> bool:
        """Whether the engine worked on it, to its end or until the worker left. False if the engine refused or cut
        it."""
        return self.outcome in ("completed", "disconnected") and self.fault in (None, "slow")


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """A record of the dead-letter topic. ``key``: the request's id, or that of junk."""

    partition: int
    offset: int
    key: str
    reason: str
    replay_count: int
    at_ms: int

    @property
    def replayed_as(self) -> Turn:
        """The turn that a replay of it is."""
        return (self.key, self.replay_count + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """A record of the audit topic: this dead letter was replayed as this turn, and the replay lies there."""

    partition: int
    offset: int
    turn: Turn
    topic: str
    to_partition: int
    to_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Discarded:
    """A record of the audit topic: this dead letter was discarded."""

    partition: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A record of the control topic. ``answer``: what a worker said that it did, to whoever asked and waited for it."""

    ask: Ask
    request_id: str
    at_ms: int
    answer: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandRun:
    """A command of `forebay`. ``exit_code`` is None when it was killed, as planned; ``crashed``: it said so itself.
    ``out_path``: what it printed."""

    words: str
    started_ms: int
    ended_ms: int
    exit_code: int | None
    crashed: bool
    out_path: Path


class End(StrEnum):
    """The end of a worker process."""

    RUNNING = "running"
    KILLED = "killed"
    TERMINATED = "terminated"
    CRASHED = "crashed"
    UNBORN = "unborn"
    """Terminated before it obeyed signals, or cut off from all brokers while it started."""


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
    """The fault of a window of time."""

    STOPPED = "stopped"
    LINK = "link"
    BROKER = "broker"
    BACKEND = "backend"


@dataclass(slots=True, kw_only=True)
class Window:
    """From when to when something was wrong. ``slots``: whose workers it concerns. ``cuts_all``: no worker reached any
    broker. ``serves_nobody``: the backend failed every request."""

    trouble: Trouble
    slots: frozenset[int]
    start_ms: int
    end_ms: int | None = None
    cuts_all: bool = False
    serves_nobody: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerChange:
    """A line of a worker's log: it was given a partition, or it has given it up or found that it had lost it."""

    at_ms: int
    worker: str
    key: PartitionKey
    is_gain: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenCommit:
    """A group's commit for a partition, at the time of a look."""

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
    letters: tuple[Letter, ...]
    executions: tuple[Execution, ...]
    lives: tuple[Life, ...]
    windows: tuple[Window, ...]
    commits: dict[PartitionKey, list[SeenCommit]]
    end_ms: int
    replayed: tuple[Replayed, ...] = ()
    discarded: tuple[Discarded, ...] = ()
    asked: tuple[Asked, ...] = ()
    owner_changes: tuple[OwnerChange, ...] = ()
