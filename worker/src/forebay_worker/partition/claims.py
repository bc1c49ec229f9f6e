"""The offsets of one assignment that are being executed, and which of them the group's last commit names.

Pure but for a lock. The consumer's thread and the event loop share it; nothing else is changed by both.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

SUSPECT_CRASHES = 2
"""A request that was running at this many deaths of workers runs alone from then on."""

ANY_OFFSET = 1 << 63


class Claims:
    """After `close` no claim succeeds, and what `close` returned is all that runs.

    ``careful_below``: the last owner died, and may have started any offset below this one without naming it in a
    commit. Such an offset starts only after a commit that names it as running is acknowledged, since a request that
    kills its worker at once leaves no other trace. ``is_announced``: a commit of this owner was acknowledged, so the
    next owner can tell that this one died. ``alone``: the suspect that runs alone in this worker. ``may_say_alone``: a
    commit that names it so may be the group's last. ``is_urgent``: a start waits for a commit.
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
        """Claims an offset for execution; False if the partition was released."""
        with self._lock:
            if self._open:
                self._running.add(offset)
                if self._named:
                    self._named -= {offset}  # from an earlier execution
            return self._open

    def release(self, offset: int) -> None:
        """Releases a claim: the execution ended with an outcome, or the request went back to its lane."""
        with self._lock:
            self._running.discard(offset)

    def is_claimed(self, offset: int) -> bool:
        """Whether it is being executed, or its outcome is on its way."""
        return offset in self._running

    def running(self) -> tuple[int, ...]:
        """The offsets being executed, ascending."""
        with self._lock:
            return tuple(sorted(self._running))

    def close(self) -> tuple[int, ...]:
        """Closes the claims: no further offset can be claimed. Returns those being executed."""
        with self._lock:
            self._open = False
            return tuple(sorted(self._running))

    # The group's knowledge.

    def must_be_named(self, offset: int) -> bool:
        """Whether a claimed offset may start only when the group's last commit names it as running."""
        return offset < self.careful_below

    def is_named(self, offset: int) -> bool:
        """Whether the group's last commit names a claimed offset as running."""
        return offset in self._named

    def name(self, offsets: Iterable[int]) -> None:
        """Notes that the group's last commit names exactly these offsets as running."""
        with self._lock:
            self._named = frozenset(offsets)

    def try_alone(self, offset: int) -> None:
        """Marks a claimed suspect as the only running request, from the next commit on."""
        self.alone = offset
        self.is_urgent = True

    def end_alone(self) -> None:
        """Ends that mark, from the next commit on."""
        self.alone = None
        self.is_urgent = True
