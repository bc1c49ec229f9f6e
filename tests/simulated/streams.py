"""Runs of followed answers over an outlet in memory, and a reader of their pieces as any client may write one. Pure."""

from __future__ import annotations

import json
from typing import Any

from forebay_schemas.contract.pieces import Piece, decode_piece
from forebay_worker.answers.endpoints import Shape
from forebay_worker.answers.judge import AnswerReader, End
from forebay_worker.answers.streams import Progress
from forebay_worker.answers.verdict import Verdict
from forebay_worker.streaming.continuity import Sent
from forebay_worker.streaming.run import Run
from simulated.answers import LIMITS


class MemoryOutlet:
    """Keeps pieces in memory; drops them while ``is_full``."""

    def __init__(self) -> None:
        self.pieces: list[Piece] = []
        self.waiting: list[Run] = []
        self.is_full = False

    def send(self, run: Run, value: bytes) -> bool:
        if self.is_full:
            return False
        piece = decode_piece(value)
        assert piece.request_id == run.request_id
        self.pieces.append(piece)
        return True

    def wait(self, run: Run) -> None:
        self.waiting.append(run)

    def tick(self) -> None:
        """The timer ends."""
        waiting, self.waiting = self.waiting, []
        for run in waiting:
            run.flush()


def make_run(outlet: MemoryOutlet, *, name: str = "a", attempt: int = 1, sent: Sent | None = None) -> Run:
    return Run(outlet=outlet, request_id="r-1", attempt=attempt, replay_count=0, name=name, partition=-1, sent=sent)


def stream_into(
    run: Run,
    body: bytes,
    *,
    shape: Shape = Shape.CHAT,
    content_type: str = "text/event-stream",
    cut: int = 1 << 20,
    end: End = End.TIDY,
) -> Verdict:
    """Reads an engine's body, cut into pieces of ``cut`` bytes, into a run. Ends nothing."""
    reader = AnswerReader(shape=shape, status=200, content_type=content_type, limits=LIMITS, on_event=run.add)
    for start in range(0, len(body), cut):
        if reader.feed(body[start : start + cut]) is Progress.COMPLETE:
            break
    return reader.finish(end)


class Reader:
    """Shows pieces as the contract asks of a reader: in order, without a gap, and of one text."""

    def __init__(self) -> None:
        self.shown: list[tuple[str | None, bytes]] = []
        self.is_whole = False
        self.error: str | None = None
        self._after: tuple[str, int] | None = None
        self._waits_for_result = False

    def take(self, piece: Piece) -> None:
        if self._waits_for_result:
            return
        begins = piece.number == 0 and self._after is None and piece.continues is None
        goes_on = self._after is not None and self._after in ((piece.run, piece.number - 1), piece.continues)
        if not begins and not goes_on:
            self._waits_for_result = True
            return
        self._after = (piece.run, piece.number)
        self.shown += [(event.event, bytes(event.data)) for event in piece.events]
        self.error = piece.error
        self.is_whole = piece.last

    def values(self) -> list[Any]:
        return [json.loads(data) for _, data in self.shown]

    def sse(self) -> bytes:
        """What was shown, as an engine would send it."""
        lines = [b"%bdata: %b\n\n" % (f"event: {name}\n".encode() if name else b"", data) for name, data in self.shown]
        return b"".join(lines)

    def text(self) -> str:
        """The content of the first choice."""
        choices = [value["choices"][0] for value in self.values() if value.get("choices")]
        return "".join(choice.get("delta", {}).get("content") or "" for choice in choices)


def shown(pieces: list[Piece]) -> Reader:
    reader = Reader()
    for piece in pieces:
        reader.take(piece)
    return reader
