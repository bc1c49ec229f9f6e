"""Reads the body of an HTTP answer into an `AnswerReader`, no further than it is wanted. On the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import aiohttp

from forebay_schemas.contract.topics import LATER_BYTES_MAX
from forebay_worker.answers.judge import AnswerReader, End
from forebay_worker.answers.streams import Progress
from forebay_worker.answers.verdict import Limits, Verdict

ANSWER_LIMITS: Final = Limits(answer_bytes_max=LATER_BYTES_MAX, stream_bytes_max=64 * LATER_BYTES_MAX)
"""A record of the results topic holds no more. A chunk of a stream has some 200 bytes for a token of 4."""

GRACE_SECONDS: Final = 3.0
"""For what may follow a stream that is whole, usage and [DONE], when the connection stays open."""

DRAIN_SECONDS: Final = 0.05
_DRAIN_BYTES_MAX: Final = 64 * 1024

LARGE_BYTES: Final = 1024 * 1024
LARGE_ANSWERS_MAX: Final = 8
"""So many answers above that size are read at a time; the others' connections are not read meanwhile. An engine that
answers everything without an end costs tens of megabytes then, and not as many times the bound as requests run."""


class Room:
    """The memory for the large answers of one backend."""

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(LARGE_ANSWERS_MAX)

    async def enter(self) -> None:
        """Waits for a place."""
        await self._places.acquire()

    def leave(self) -> None:
        self._places.release()


async def read_answer(
    response: aiohttp.ClientResponse,
    reader: AnswerReader,
    *,
    room: Room | None = None,
    grace_seconds: float = GRACE_SECONDS,
    on_piece: Callable[[], object] | None = None,
) -> Verdict:
    """The verdict on an answer whose headers have come. ``on_piece`` is called for each piece that was read,
    until it returns true.

    ``room``: what a large answer waits for before it is read on.
    What is left unread closes the connection with the response. Raises ``TimeoutError`` at the call's time limit.
    """
    content = response.content
    ends_at: float | None = None
    is_in_room = False
    try:
        while True:
            piece = await content.readany() if ends_at is None else await _next_piece(content, ends_at)
            if not piece:
                return reader.finish(End.GRACE if piece is None else End.TIDY)
            progress = reader.feed(piece)
            if on_piece is not None and on_piece():
                on_piece = None
            if room is not None and not is_in_room and reader.kept_bytes > LARGE_BYTES:
                await room.enter()
                is_in_room = True
            if progress is Progress.COMPLETE:
                await _drain(content)
                return reader.finish(End.TIDY)
            if progress is Progress.MORE:
                ends_at = None
            elif ends_at is None:
                ends_at = asyncio.get_running_loop().time() + grace_seconds
    except TimeoutError:
        raise  # it is an OSError too, and the caller's
    except (aiohttp.ClientPayloadError, OSError) as error:
        encoding = response.headers.get("content-encoding") if is_undecodable(error) else None
        return reader.finish(End.BROKEN, encoding=encoding)
    finally:
        if room is not None and is_in_room:
            room.leave()


def is_undecodable(error: BaseException) -> bool:
    """Whether what broke off is not what its content-encoding says."""
    return isinstance(error.__cause__, aiohttp.http_exceptions.ContentEncodingError)


async def read_at_most(response: aiohttp.ClientResponse, bytes_max: int) -> bytes:
    """The beginning of a body, as far as it goes and is allowed."""
    body = bytearray()
    while len(body) < bytes_max and (piece := await response.content.readany()):
        body += piece
    return bytes(body[:bytes_max])


async def _next_piece(content: aiohttp.StreamReader, ends_at: float) -> bytes | None:
    """What came next, empty at the end; None when nothing came until ``ends_at``, in the loop's time."""
    limit = asyncio.timeout_at(ends_at)
    try:
        async with limit:
            return await content.readany()
    except TimeoutError:
        if not limit.expired():
            raise
        return None


async def _drain(content: aiohttp.StreamReader) -> None:
    """Reads the few bytes that end a body, so that the connection can be kept."""
    left = _DRAIN_BYTES_MAX
    try:
        async with asyncio.timeout(DRAIN_SECONDS):
            while left > 0 and (piece := await content.readany()):
                left -= len(piece)
    except (TimeoutError, aiohttp.ClientPayloadError, OSError):
        pass  # it is closed then
