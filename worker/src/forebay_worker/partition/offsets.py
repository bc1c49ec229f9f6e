"""The offsets of one assigned partition: received, running, finished, and what may be committed. Pure."""

from __future__ import annotations

from collections import deque

from forebay_schemas.contract.offsets_metadata import runs_of

GAP_OFFSETS_MAX = 1_000
"""A wider gap beyond an unfinished offset is not named as finished: each named offset costs memory."""


class PartitionOffsets:
    """Tracks one partition for one assignment epoch; used by the thread that owns the consumer.

    An offset may finish in any order, even before it is received. Offsets that never arrive between two received
    ones do not exist (compaction, transaction markers), so they hold nothing up.
    """

    __slots__ = ("_finished", "_next", "_pending")

    def __init__(self, *, committed: int | None, finished: tuple[tuple[int, int], ...] = ()) -> None:
        """``committed``: the group's committed offset, None for none; ``finished``: runs ``(first, length)`` beyond."""
        self._next = committed
        self._pending: deque[int] = deque()
        self._finished: set[int] = set()
        for first, length in finished:
            self._finished.update(range(first, first + length))

    @property
    def next_offset(self) -> int | None:
        """The offset to read next; None before anything is known."""
        return self._next

    @property
    def pending_count(self) -> int:
        """How many received offsets lie at or above the commit."""
        return len(self._pending)

    def receive(self, offset: int) -> bool:
        """Notes a received record. False: it is known or finished already; do not run it."""
        if self._next is not None and offset != self._next:
            if offset < self._next:
                return False
            self._pass_gap(self._next, offset)
        self._next = offset + 1
        self._pending.append(offset)
        if offset in self._finished:
            self._advance()
            return False
        return True

    def end_at(self, offset: int) -> None:
        """Notes that the partition was read up to this offset: missing offsets below do not exist."""
        if self._next is None or offset > self._next:
            if self._next is not None:
                self._pass_gap(self._next, offset)
            self._next = offset

    def _pass_gap(self, first: int, end: int) -> None:
        """Names offsets without a record, beyond an unfinished one, as finished. A reader of the commit would otherwise
        take them for waiting records."""
        if self._pending and end - first <= GAP_OFFSETS_MAX:
            self._finished.update(range(first, end))

    def finish(self, offset: int) -> None:
        """Notes that an offset's outcome is durable."""
        lowest = self.position()
        if lowest is not None and offset < lowest:
            return
        self._finished.add(offset)
        self._advance()

    def begin_at(self, offset: int) -> None:
        """Notes where the log begins: the next offset to read if none was known."""
        if self._next is None:
            self._next = offset

    def finish_below(self, offset: int) -> None:
        """Notes that every offset below is finished, received or not."""
        while self._pending and self._pending[0] < offset:
            self._pending.popleft()
        self._finished = {each for each in self._finished if each >= offset}
        if self._next is None or self._next < offset:
            self._next = offset
        self._advance()

    def _advance(self) -> None:
        pending, finished = self._pending, self._finished
        while pending and pending[0] in finished:
            finished.remove(pending.popleft())

    def position(self) -> int | None:
        """The lowest unfinished offset, which is the one to commit; None if nothing is known yet."""
        return self._pending[0] if self._pending else self._next

    def is_finished(self, offset: int) -> bool:
        """Whether an offset at or above `position` is finished."""
        return offset in self._finished

    def finished_beyond(self) -> tuple[tuple[int, int], ...]:
        """The runs ``(first, length)`` of finished offsets at or above `position`."""
        position = self.position()
        if position is not None and self._finished:
            # Offsets finished ahead may be removed by compaction and never arrive; nothing else would drop them here.
            self._finished = {offset for offset in self._finished if offset >= position}
        return runs_of(sorted(self._finished))
