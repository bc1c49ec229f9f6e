"""Credit: how many records and bytes an intake may hand to dispatch. The two sides are different threads: each writes
its own numbers and only reads the other's."""

from __future__ import annotations

import threading

from forebay_schemas.clock import MakeEvent


class Credit:
    """Raised by dispatch as its lane empties, spent by one intake.

    Bytes are counted with what each record costs beyond its value. Both bounds hold: large records come long before
    many do.
    """

    __slots__ = (
        "_allowed_bytes",
        "_allowed_records",
        "_handed_bytes",
        "_handed_records",
        "_raised",
        "_received_bytes",
        "_received_records",
        "capacity_bytes",
        "capacity_records",
    )

    def __init__(self, *, capacity_records: int, make_event: MakeEvent = threading.Event) -> None:
        self.capacity_records = capacity_records
        self.capacity_bytes = 0
        self._allowed_records = self._allowed_bytes = 0
        self._received_records = self._received_bytes = 0
        self._handed_records = self._handed_bytes = 0
        self._raised = make_event()

    # Dispatch's side.

    def received(self, records: int, size_bytes: int) -> None:
        """Notes that handed-over records have arrived."""
        self._received_records += records
        self._received_bytes += size_bytes

    def allow(self, room_records: int, room_bytes: int, *, capacity_records: int, capacity_bytes: int) -> None:
        """Allows the intake to hand over this much beyond what has arrived. Never withdraws an earlier allowance."""
        self.capacity_records, self.capacity_bytes = capacity_records, capacity_bytes
        records, size_bytes = self._received_records + room_records, self._received_bytes + room_bytes
        if records > self._allowed_records or size_bytes > self._allowed_bytes:
            self._allowed_records = max(records, self._allowed_records)
            self._allowed_bytes = max(size_bytes, self._allowed_bytes)
            self._raised.set()

    # The intake's side.

    @property
    def room_records(self) -> int:
        """How many records may be handed over now; the last of them may exceed the bytes."""
        return self._allowed_records - self._handed_records if self._room_bytes > 0 else 0

    @property
    def is_half_free(self) -> bool:
        """Whether half of the capacity, by records and by bytes, may be handed over now."""
        return self.room_records >= self.capacity_records // 2 and self._room_bytes >= self.capacity_bytes // 2

    def spend(self, records: int, size_bytes: int) -> None:
        """Counts records that are being handed over."""
        self._handed_records += records
        self._handed_bytes += size_bytes

    def wait(self, seconds: float) -> None:
        """Returns when more was allowed, or after ``seconds``."""
        self._raised.wait(seconds)
        self._raised.clear()

    @property
    def _room_bytes(self) -> int:
        return self._allowed_bytes - self._handed_bytes
