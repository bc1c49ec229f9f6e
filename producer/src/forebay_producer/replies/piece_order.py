"""Puts the pieces of a streamed answer in order, and stops where a reader could see text that disagrees. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Final

from forebay_schemas.contract.pieces import Piece, StreamEvent, StreamFault

EARLY_PIECES_MAX: Final = 64
"""Pieces that may wait for an earlier one. Kafka keeps their order, so that only repeated sends let one wait."""


class StreamState(Enum):
    """How far a streamed answer has come."""

    RUNNING = "running"
    COMPLETE = "complete"
    """All of it was shown; the result follows."""
    BROKEN = "broken"
    """No piece can follow what was shown; the result has the rest."""


class PieceOrder:
    """The order of one request's pieces. Follows the first run; a later run only if it continues that one."""

    __slots__ = ("_early", "_next", "_past", "_replay_count", "_run", "state")

    def __init__(self, *, replay_count: int = 0) -> None:
        self.state = StreamState.RUNNING
        self._replay_count = replay_count
        self._run: str | None = None
        self._next = 0
        self._early: dict[int, Piece] = {}
        self._past: set[str] = set()

    def take(self, piece: Piece) -> Sequence[StreamEvent]:
        """The events that follow what was shown, in order; empty for a repeated piece and for one of another run."""
        if self.state is not StreamState.RUNNING or piece.replay_count != self._replay_count:
            return ()
        if piece.run != self._run and not self._begins_here(piece):
            return ()
        if piece.number < self._next:
            return ()
        if piece.number > self._next:
            self._wait(piece)
            return ()
        events: list[StreamEvent] = []
        found: Piece | None = piece
        while found is not None:
            events += found.events
            self._next += 1
            if found.last:
                self.state = StreamState.COMPLETE
            elif found.error not in (None, StreamFault.BROKEN):
                self.state = StreamState.BROKEN
            found = self._early.pop(self._next, None) if self.state is StreamState.RUNNING else None
        return events

    def _begins_here(self, piece: Piece) -> bool:
        # A run that goes on from another is no beginning: who has not shown the other would lack its text.
        expected = None if self._run is None else (self._run, self._next - 1)
        if piece.number == 0 and piece.continues == expected:
            if self._run is not None:
                self._past.add(self._run)
            self._run, self._next, self._early = piece.run, 0, {}
            return True
        if self._run is not None and piece.run not in self._past:
            # Another execution, whose text nobody has compared with what was shown.
            self.state = StreamState.BROKEN
        return False

    def _wait(self, piece: Piece) -> None:
        self._early[piece.number] = piece
        if len(self._early) > EARLY_PIECES_MAX:
            self.state = StreamState.BROKEN
