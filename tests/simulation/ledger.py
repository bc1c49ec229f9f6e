"""The events and counts of a history, and the first broken promise. Pure."""

from __future__ import annotations

from collections import Counter, deque

from simulation.scheduler import Scheduler


class Violation(AssertionError):  # noqa: N818 - what it is called in this field
    """A promise is broken."""


class Ledger:
    """``events_max``: how many events are kept; None for all of them."""

    def __init__(self, *, scheduler: Scheduler, events_max: int | None) -> None:
        self._scheduler = scheduler
        self.events: deque[tuple[float, str]] = deque(maxlen=events_max)
        self.counts: Counter[str] = Counter()
        self.causes: Counter[str] = Counter()

    def note(self, text: str) -> None:
        """Remembers an event, to be shown when the history fails."""
        self.events.append((self._scheduler.now, text))

    def fail(self, text: str) -> None:
        """A promise is broken: the history ends here, whoever catches this."""
        violation = Violation(text)
        if self._scheduler.broken is None:
            self._scheduler.broken = violation
        raise violation
