"""Which offsets of one assignment are being executed, and what the group's last commit says of them.

Pure but for a lock. The consumer's thread and the event loop share it; it is the only thing that both change.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

SUSPECT_CRASHES = 2
"""A request that was running when so many workers died runs alone from then on."""

ANY_OFFSET = 1 << 63


class Claims:
    """After `close` no claim succeeds, and what `close` returned is all that runs.

    ``careful_below``: the last owner died, and may have started any offset below this one without a commit that says
    so. A start of these waits until a commit that names it as running is acknowledged: a request that kills its worker
    at once leaves no other trace. ``is_announced``: a commit of this owner was acknowledged, so that the next owner can
    tell that the partition was not let go of. ``alone``: the suspect that runs alone in this worker.
    ``may_say_alone``: a commit that names it so may be the group's last. ``is_urgent``: somebody waits for a commit.
    """

    __slots__ = (
        "_lock",
        "_named",
        "_open",
        "_running",
        "alone",
        "careful_below",
        "is_announced",
        "is_urgent",
        "may_say_alone",
    )

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = True
        self._running: set[int] = set()
        self._named: frozenset[int] = frozenset()
        self.careful_below = 0
        self.is_announced = False
        self.is_urgent = False
        self.alone: int | None = None
        self.may_say_alone = False

    @property
    def is_open(self) -> bool:
        return self._open

    def claim(self, offset: int) -> bool:
        """Asks for the right to execute; False when the partition was given up."""
        with self._lock:
            if self._open:
                self._running.add(offset)
                if self._named:
                    self._named -= {offset}  # an earlier execution's
            return self._open

    def release(self, offset: int) -> None:
        """Execution ended, by an outcome or by going back to its lane."""
        with self._lock:
            self._running.discard(offset)

    def running(self) -> tuple[int, ...]:
        """The offsets being executed, ascending."""
        with self._lock:
            return tuple(sorted(self._running))

    def close(self) -> tuple[int, ...]:
        """Lets no further offset be claimed; returns those being executed."""
        with self._lock:
            self._open = False
            return tuple(sorted(self._running))

    # What the group knows.

    def must_be_named(self, offset: int) -> bool:
        """Whether a claimed offset may start only when the group's last commit names it as running."""
        return offset < self.careful_below

    def is_named(self, offset: int) -> bool:
        """Whether the group's last commit names a claimed offset as running."""
        return offset in self._named

    def name(self, offsets: Iterable[int]) -> None:
        """The group's last commit names these as running, and no others."""
        with self._lock:
            self._named = frozenset(offsets)

    def try_alone(self, offset: int) -> None:
        """From the next commit on a claimed suspect counts as the only request that runs in this worker."""
        self.alone = offset
        self.is_urgent = True

    def end_alone(self) -> None:
        """From the next commit on no request counts as such."""
        self.alone = None
        self.is_urgent = True
