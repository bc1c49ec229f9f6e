"""A process that stood still (SIGSTOP, a frozen machine) may have lost its partitions without knowing it: its consumers
get a moment to learn it before anything starts. Pure; times are monotonic seconds."""

from __future__ import annotations

import math

SUSPENDED_SECONDS = 5.0
RECOVERY_SECONDS = 0.5


class Suspension:
    """``recovered_at``: when requests may start again."""

    def __init__(self) -> None:
        self.recovered_at = 0.0
        self._ticked_at = math.inf

    def ticked(self, now: float) -> None:
        """The event loop turns."""
        self.is_recovering(now)
        self._ticked_at = now

    def is_recovering(self, now: float) -> bool:
        """Whether the process stood still until just now."""
        if now - self._ticked_at > SUSPENDED_SECONDS:
            self._ticked_at = now
            self.recovered_at = now + RECOVERY_SECONDS
        return now < self.recovered_at
