"""Silence of the intakes while a suspect is tried: what they decode could kill the worker, and convict the suspect.

Pure. The intakes' threads and the event loop; each entry of the set has one writer.
"""

from __future__ import annotations


class Quiet:
    """``is_wanted`` is dispatch's to set. Intakes ask `may_read` before they decode anything, and then say `done`."""

    __slots__ = ("_reading", "is_wanted")

    def __init__(self) -> None:
        self.is_wanted = False
        self._reading: set[str] = set()

    def may_read(self, reader: str) -> bool:
        """Whether a reader may decode until it says `done`."""
        self._reading.add(reader)  # before the look: of two who look at once, one sees the other
        if not self.is_wanted:
            return True
        self._reading.discard(reader)
        return False

    def done(self, reader: str) -> None:
        """The reader decodes no more, for now."""
        self._reading.discard(reader)

    @property
    def is_quiet(self) -> bool:
        """Whether nobody decodes, nor begins to."""
        return self.is_wanted and not self._reading
