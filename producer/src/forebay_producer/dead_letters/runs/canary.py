"""What became of the first replays, before the rest is sent. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from forebay_producer.dead_letters.replay_plan import Replay
from forebay_schemas.contract.reasons import Status
from forebay_schemas.contract.results import Result

NO_OUTCOME = "no_outcome"
"""Stands for the reason of those that had no outcome in time."""

GRACE_SECONDS = 30.0
"""An outcome is waited for so long beyond the deadline: a worker has to say that it has passed."""


class Canary:
    """Waits for the outcome of each replay that it is given: the first one with its request id and replay count.

    Times: monotonic seconds.
    """

    def __init__(self) -> None:
        self._open: dict[tuple[str, int], float] = {}
        self.sent = 0
        self.completed = 0
        self.failed: Counter[str] = Counter()
        """How many ended otherwise, by their reason."""

    def add(self, replay: Replay, *, now: float) -> None:
        """It was sent just now."""
        self.sent += 1
        self._open[replay.request_id, replay.replay_count] = now + replay.ttl_ms / 1000 + GRACE_SECONDS

    def take(self, results: Iterable[Result], *, now: float) -> None:
        """Takes in what the results topic says, up to ``now``."""
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
        """How many have no outcome yet."""
        return len(self._open)
