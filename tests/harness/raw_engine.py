"""An engine that writes bytes as ordered, also such as no HTTP library writes. Listens on 127.0.0.1, in the event loop
of its test."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

_REASON = "as told"


@dataclass(frozen=True, slots=True, kw_only=True)
class RawRequest:
    """A received request. ``connection``: number of the connection that carried it, from 0. ``headers``: by their names
    in lower case."""

    connection: int
    path: str
    headers: Mapping[str, str]
    body: bytes


AnswerRaw = Callable[[RawRequest, asyncio.StreamWriter], Awaitable[None]]


@dataclass(slots=True)
class RawEngine:
    """``requests``: all that came so far."""

    url: str
    requests: list[RawRequest] = field(default_factory=list)


def response(
    body: bytes, *, status: int = 200, content_type: str = "application/json", headers: Mapping[str, str] | None = None
) -> bytes:
    """An answer with its length."""
    return _head(status, content_type, {"content-length": str(len(body)), **(headers or {})}) + body


def chunked(
    *pieces: bytes,
    content_type: str = "text/event-stream",
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    is_ended: bool = True,
) -> bytes:
    """An answer in chunks; without its last, empty one it has no end."""
    head = _head(status, content_type, {"transfer-encoding": "chunked", **(headers or {})})
    return head + b"".join(map(chunk, pieces)) + (chunk(b"") if is_ended else b"")


def chunk(piece: bytes) -> bytes:
    """A piece of a chunked body; an empty one ends it."""
    return b"%x\r\n%b\r\n" % (len(piece), piece)


def written(answer: bytes, *, then_close: bool = False) -> AnswerRaw:
    """Gives every request the same bytes."""

    async def give(_request: RawRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        if then_close:
            writer.close()

    return give


@asynccontextmanager
async def raw_engine(answer: AnswerRaw) -> AsyncIterator[RawEngine]:
    """An engine whose requests are given to ``answer``, which writes what it likes; connections stay open, unless it
    closes them, until the end."""
    engine = RawEngine("")
    connections: list[asyncio.StreamWriter] = []
    serving: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving.add(task)
        number = len(connections)
        connections.append(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            while not writer.is_closing():
                request = await _read(reader, number)
                engine.requests.append(request)
                await answer(request, writer)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    engine.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield engine
    finally:
        server.close()
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
        for writer in connections:
            writer.transport.abort()


async def _read(reader: asyncio.StreamReader, connection: int) -> RawRequest:
    start, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return RawRequest(connection=connection, path=start.split()[1], headers=headers, body=body)


def _head(status: int, content_type: str, headers: Mapping[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} {_REASON}", f"content-type: {content_type}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode()
