"""Silence of the intakes while a suspect is tried: a record that they decode could kill the worker and convict the
suspect.

Pure. The intakes' threads and the event loop; each entry of the set has one writer.
"""

from __future__ import annotations


class Quiet:
    """``is_wanted`` is set by dispatch. Intakes call `may_read` before they decode anything, and `done` afterwards."""

    __slots__ = ("_reading", "is_wanted")

    def __init__(self) -> None:
        self.is_wanted = False
        self._reading: set[str] = set()

    def may_read(self, reader: str) -> bool:
        """Whether a reader may decode until it calls `done`."""
        self._reading.add(reader)  # added before the check: of two concurrent calls, one sees the other
        if not self.is_wanted:
            return True
        self._reading.discard(reader)
        return False

    def done(self, reader: str) -> None:
        """Ends a reader's decoding."""
        self._reading.discard(reader)

    @property
    def is_quiet(self) -> bool:
        """Whether no reader decodes or can begin to."""
        return self.is_wanted and not self._reading
