"""What callers of the outcome watch wait by, and what it reads results with. Pure."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from forebay_producer.client.results_reader import ReadResult
from forebay_schemas.errors import ForebayError

Asked = tuple[str, int]
"""A request id and the number of its replay, 0 for the request as it was submitted."""


class Reader(Protocol):
    """The part of `ResultsReader` used here."""

    def read(self, *, timeout_seconds: float, wanted: Callable[[bytes | None], bool] | None) -> list[ReadResult]: ...
    def caught_up(self) -> bool: ...
    def close(self) -> None: ...


class Followed(Enum):
    """Which partitions of results the follower reads."""

    ALL = "all"
    OWN = "own"
    """One, into which this producer's requests ask for their results."""


@dataclass(slots=True, eq=False)
class Wait:
    """The state shared by all callers that wait for one outcome. ``late``: an outcome that arrived during a search for
    an earlier one. ``search_at``, ``search_seconds``: when the other partitions are searched, and how long after."""

    since_ms: int = 0
    callers: int = 0
    done: threading.Event = field(default_factory=threading.Event)
    listeners: list[Callable[[], None]] = field(default_factory=list)
    value: bytes | None = None
    late: bytes | None = None
    failure: ForebayError | None = None
    search_at: float = 0.0
    search_seconds: float = 0.0

    def end(self) -> None:
        """Wakes all callers."""
        self.done.set()
        for listener in self.listeners:
            listener()


@dataclass(slots=True, eq=False)
class Awaited:
    """One caller's wait, from `OutcomeWatch.begin` to `OutcomeWatch.end`. ``value``: an outcome known at once."""

    asked: Asked
    wait: Wait | None = None
    value: bytes | None = None
