"""The offsets of one assigned partition: received, running, finished, and what may be committed. Pure."""

from __future__ import annotations

import threading
from collections import deque

from forebay_schemas.offsets_metadata import NOTHING, CommitMetadata, encode_metadata, runs_of


class PartitionOffsets:
    """Tracks one partition for one assignment epoch; used by the thread that owns the consumer.

    An offset may finish in any order, even before it is received. Offsets that never arrive between two received
    ones do not exist (compaction, transaction markers), so they hold nothing up.
    """

    __slots__ = ("_finished", "_next", "_pending", "committed")

    def __init__(self, *, committed: int | None, metadata: CommitMetadata = NOTHING) -> None:
        """``committed``: what the group had committed, None for nothing; ``metadata``: what that commit said beyond."""
        self.committed = committed
        self._next = committed
        self._pending: deque[int] = deque()
        self._finished: set[int] = set()
        for first, length in metadata.finished:
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
        """Notes that a record arrived. False: it is known already, or was finished before; do not run it."""
        if self._next is not None and offset < self._next:
            return False
        self._next = offset + 1
        self._pending.append(offset)
        if offset in self._finished:
            self._advance()
            return False
        return True

    def finish(self, offset: int) -> None:
        """Notes that an offset's outcome is durable."""
        if self._pending and offset < self._pending[0]:
            return
        self._finished.add(offset)
        self._advance()

    def _advance(self) -> None:
        pending, finished = self._pending, self._finished
        while pending and pending[0] in finished:
            finished.remove(pending.popleft())

    def position(self) -> int | None:
        """The lowest unfinished offset, which is what to commit; None when nothing is known yet."""
        return self._pending[0] if self._pending else self._next

    def metadata(self, *, running: tuple[tuple[int, int], ...], lease_until_ms: int | None = None) -> str:
        """What to commit beside `position`."""
        position = self.position()
        if position is None:
            return ""
        # Offsets finished ahead that compaction took away never arrive: nobody else would remove them.
        self._finished = {offset for offset in self._finished if offset >= position}
        return encode_metadata(
            position,
            CommitMetadata(
                finished=runs_of(sorted(self._finished)),
                running=tuple(pair for pair in running if pair[0] >= position),
                lease_until_ms=lease_until_ms,
            ),
        )


class Claims:
    """Which offsets of one assignment are being executed.

    The one object that the consumer's thread and the dispatching thread share: after `close` no claim succeeds, and
    what `close` returned is all that runs.
    """

    __slots__ = ("_lock", "_open", "_running")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = True
        self._running: set[int] = set()

    @property
    def is_open(self) -> bool:
        return self._open

    def claim(self, offset: int) -> bool:
        """Asks for the right to execute; False when the partition was given up."""
        with self._lock:
            if self._open:
                self._running.add(offset)
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
