"""One streamed answer as an async iterator: its events in order, and what lacks of them filled from the result."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

import msgspec

from forebay_producer.errors import StreamDiffersError
from forebay_producer.replies.piece_order import PieceOrder, StreamState
from forebay_producer.replies.remainder import RemainderError, Shown
from forebay_schemas.contract.pieces import Piece, StreamEvent
from forebay_schemas.contract.reasons import Status
from forebay_schemas.contract.results import Result

LATE_PIECES_SECONDS: Final = 0.25
"""The result and the last pieces come by two topics: after the result as long is waited for pieces."""


class AnswerEvent(msgspec.Struct, frozen=True, gc=False):
    """One event of an engine's stream: its JSON ``data`` as bytes, and its name if it has one (/v1/responses)."""

    data: bytes
    event: str | None = None

    def json(self) -> Any:
        """The data, decoded."""
        return msgspec.json.decode(self.data)


class ReplyStream:
    """Yields the engine's events as they come. What lacks of a chat or a completion is filled from the result.

    ``result`` is there when the iteration has ended, whatever became of the request. Iterate it once.
    Raises ``StreamDiffersError`` when the result is not what was shown, and what `AsyncProducer.outcome` raises.
    """

    def __init__(
        self,
        *,
        pieces: asyncio.Queue[Piece | None],
        outcome: Callable[[], Awaitable[Result]],
        leave: Callable[[], None],
        replay_count: int = 0,
    ) -> None:
        """``pieces``: as they are read; None when no more can be. ``leave`` is called at the end."""
        self.result: Result | None = None
        self._pieces = pieces
        self._outcome = outcome
        self._leave = leave
        self._order = PieceOrder(replay_count=replay_count)
        self._shown = Shown()

    async def __aiter__(self) -> AsyncIterator[AnswerEvent]:
        outcome = asyncio.ensure_future(self._outcome())
        try:
            async for event in self._pieces_until(outcome):
                self._shown.add(event)
                yield AnswerEvent(bytes(event.data), event.event)
            self.result = result = await outcome
            last = self._remainder(result)
            if last is not None:
                yield AnswerEvent(bytes(last.data))
        finally:
            self._leave()
            outcome.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await outcome

    async def _pieces_until(self, outcome: asyncio.Future[Result]) -> AsyncIterator[StreamEvent]:
        while self._order.state is StreamState.RUNNING:
            piece = await self._next(outcome)
            if piece is None:
                return
            for event in self._order.take(piece):
                yield event

    async def _next(self, outcome: asyncio.Future[Result]) -> Piece | None:
        """The next piece; None when there are no more, or none came in time after the outcome."""
        with suppress(asyncio.QueueEmpty):
            return self._pieces.get_nowait()
        waiting = asyncio.ensure_future(self._pieces.get())
        both: set[asyncio.Future[Any]] = {waiting, outcome}
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done() and not outcome.cancelled() and outcome.exception() is None:
                await asyncio.wait({waiting}, timeout=LATE_PIECES_SECONDS)
            return waiting.result() if waiting.done() else None
        finally:
            waiting.cancel()

    def _remainder(self, result: Result) -> StreamEvent | None:
        if result.status is not Status.COMPLETED:
            return None
        try:
            return self._shown.remainder(result.body)
        except RemainderError as error:
            if not self._shown.events or (self._order.state is StreamState.COMPLETE and not self._shown.is_comparable):
                return None  # nothing that was shown can disagree
            raise StreamDiffersError(
                f"the answer to {result.request_id} is not the one that was streamed: {error}", result=result
            ) from None
