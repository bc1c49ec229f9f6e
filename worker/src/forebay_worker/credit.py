"""Credit: how many records an intake may hand to dispatch. The two sides are different threads, so each has numbers
of its own and only reads the other's."""

from __future__ import annotations

import threading


class Credit:
    """Raised by dispatch as its lane empties, spent by one intake."""

    __slots__ = ("_allowed_total", "_handed_total", "_raised", "_received_total", "capacity_records")

    def __init__(self, *, capacity_records: int) -> None:
        self.capacity_records = capacity_records
        self._allowed_total = 0
        self._received_total = 0
        self._handed_total = 0
        self._raised = threading.Event()

    # Dispatch's side.

    def received(self, records: int) -> None:
        """Records that were handed over have arrived."""
        self._received_total += records

    def allow(self, room_records: int, *, capacity_records: int) -> None:
        """Lets the intake hand over ``room_records`` more than have arrived; never takes back what was allowed."""
        self.capacity_records = capacity_records
        total = self._received_total + room_records
        if total > self._allowed_total:
            self._allowed_total = total
            self._raised.set()

    # The intake's side.

    @property
    def room_records(self) -> int:
        """How many records may be handed over now."""
        return self._allowed_total - self._handed_total

    def spend(self, records: int) -> None:
        """Records are being handed over."""
        self._handed_total += records

    def wait(self, seconds: float) -> None:
        """Returns when more was allowed, or after ``seconds``."""
        self._raised.wait(seconds)
        self._raised.clear()
