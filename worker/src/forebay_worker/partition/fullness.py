"""Fullness: whether an intake takes nothing for now, because its lane has no room. Pure."""

from __future__ import annotations

FULL_SECONDS_BEFORE_PAUSE = 0.5


class Fullness:
    """The lane counts as full after half a second without room, and then until it is half empty."""

    def __init__(self) -> None:
        self.is_full = False
        self._since: float | None = None

    def note(self, now: float, *, has_room: bool, is_half_free: bool, must_poll: bool) -> None:
        """Notes one reading. ``must_poll``: commits are in flight. Their answers come by polls, which need room or a
        pause."""
        if has_room:
            self._since = None
            if self.is_full and is_half_free:
                self.is_full = False
        elif self._since is None:
            self._since = now
        elif now - self._since >= FULL_SECONDS_BEFORE_PAUSE or must_poll:
            self.is_full = True
