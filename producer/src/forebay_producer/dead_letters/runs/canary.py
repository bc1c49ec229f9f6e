"""The outcomes of the first replays, which decide whether the rest is sent. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from forebay_producer.dead_letters.replay_plan import Replay
from forebay_schemas.contract.reasons import Status
from forebay_schemas.contract.results import Result

NO_OUTCOME = "no_outcome"
"""Reason of replays without an outcome in time."""

GRACE_SECONDS = 30.0
"""Wait for an outcome beyond the deadline: a worker needs time to expire the request."""


class Canary:
    """Waits for the outcome of each replay added: the first outcome with its request id and replay count.

    Times: monotonic seconds.
    """

    def __init__(self) -> None:
        self._open: dict[tuple[str, int], float] = {}
        self.sent = 0
        self.completed = 0
        self.failed: Counter[str] = Counter()
        """The number of replays that did not complete, by reason."""

    def add(self, replay: Replay, *, now: float) -> None:
        """Adds a replay that was just sent."""
        self.sent += 1
        self._open[replay.request_id, replay.replay_count] = now + replay.ttl_ms / 1000 + GRACE_SECONDS

    def take(self, results: Iterable[Result], *, now: float) -> None:
        """Processes results read up to ``now``."""
        for result in results:
            if self._open.pop((result.request_id, result.replay_count), None) is None:
                continue
            if result.status is Status.COMPLETED:
                self.completed += 1
            else:
                self.failed[result.reason] += 1
        for key in [key for key, give_up_at in self._open.items() if now > give_up_at]:
            del self._open[key]
            self.failed[NO_OUTCOME] += 1

    @property
    def waits_for(self) -> int:
        """The number of replays without an outcome."""
        return len(self._open)
