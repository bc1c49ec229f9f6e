"""Requests of a partition that may have their outcome already: its last owner died before it could commit them. Pure;
the consumer's thread owns it."""

from __future__ import annotations

from typing import Protocol


class Look(Protocol):
    """A scan of the results topic, run by another thread."""

    @property
    def is_over(self) -> bool:
        """Whether the scan reached the topic's end as of the request for it, or was given up."""
        ...

    def has(self, request_id: str, replay_count: int) -> bool:
        """Whether the scan found an outcome of that request."""
        ...


KEPT_SECONDS = 60.0
"""A partition without new records for this long frees the outcomes found; it asks for another scan if it needs one."""


class Doubt:
    """The doubt of one assignment. A request waits until the scan is over; one whose outcome was found does not run
    again.

    ``since_ms``: no request in doubt has an earlier outcome; None if unknown. ``began_ms``: requests enqueued later are
    not in doubt. Both are epoch milliseconds on the brokers' clock. ``below``: offsets from here on are not in doubt,
    if known. ``look_from_ms``: where ``look`` begins. ``used_at``: monotonic seconds. ``is_without_commit``: no owner
    ever committed, or the brokers deleted its commit; logged once.
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
        """Frees the outcomes found by the scan when they have not been used for a while."""
        if self.look is not None and self.look.is_over and not self._waiting and now - self.used_at > KEPT_SECONDS:
            self.look = None

    @property
    def has_waiting(self) -> bool:
        """Whether a received offset is not judged yet."""
        return bool(self._waiting)

    def wait(self, offset: int) -> None:
        """Notes that a received offset is to be judged later."""
        self._waiting.add(offset)

    def judged(self, offset: int) -> None:
        """Notes that an offset was judged."""
        self._waiting.discard(offset)

    @property
    def is_looking(self) -> bool:
        """Whether requests wait for the scan."""
        return bool(self._waiting) and not (self.look is not None and self.look.is_over)

    def withholds(self, offset: int) -> bool:
        """Whether an offset cannot be judged yet."""
        return self.is_looking and offset in self._waiting
