"""Which requests of a partition may have their outcome already: its last owner died before it could commit that.
Pure; the consumer's thread owns it."""

from __future__ import annotations

from typing import Protocol


class Look(Protocol):
    """A look through the results topic, which another thread takes."""

    @property
    def is_over(self) -> bool:
        """Whether it has reached the end that the topic had when it was asked for, or was given up."""
        ...

    def has(self, request_id: str, replay_count: int) -> bool:
        """Whether an outcome of that request was seen."""
        ...


KEPT_SECONDS = 60.0
"""A partition of which nothing came for so long lets go of what was seen; it asks for another look when it must."""


class Doubt:
    """Of one assignment. A request waits until the look is over; what it saw is not run again.

    ``since_ms``: nothing in doubt has an outcome from before; None for unknown. ``began_ms``: what was enqueued later
    is in no doubt. Both are epoch milliseconds on the brokers' clock. ``below``: nor is what lies at this offset or
    behind it, if that is known. ``look_from_ms``: from when on ``look`` sees outcomes. ``used_at``: monotonic seconds.
    ``is_without_commit``: no owner ever committed, or the brokers have deleted what it did; said once in the log.
    """

    __slots__ = (
        "_waiting",
        "began_ms",
        "below",
        "is_without_commit",
        "look",
        "look_from_ms",
        "since_ms",
        "used_at",
    )

    def __init__(self, *, since_ms: int | None, began_ms: int, is_without_commit: bool = False) -> None:
        self.since_ms = since_ms
        self.is_without_commit = is_without_commit
        self.began_ms = began_ms
        self.below: int | None = None
        self.look: Look | None = None
        self.look_from_ms = 0
        self.used_at = 0.0
        self._waiting: set[int] = set()

    def forget_unused(self, now: float) -> None:
        """Lets go of what was seen when nobody has asked for it for a while."""
        if self.look is not None and self.look.is_over and not self._waiting and now - self.used_at > KEPT_SECONDS:
            self.look = None

    @property
    def has_waiting(self) -> bool:
        """Whether a received offset has not been judged yet."""
        return bool(self._waiting)

    def wait(self, offset: int) -> None:
        """A received offset is to be judged later."""
        self._waiting.add(offset)

    def judged(self, offset: int) -> None:
        """It waits no longer."""
        self._waiting.discard(offset)

    @property
    def is_looking(self) -> bool:
        """Whether requests wait for the look."""
        return bool(self._waiting) and not (self.look is not None and self.look.is_over)

    def withholds(self, offset: int) -> bool:
        """Whether an offset cannot be judged yet."""
        return self.is_looking and offset in self._waiting
