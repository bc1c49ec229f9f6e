"""A balancer of TCP connections, as a Kubernetes Service is: each new connection goes to the next backend, and stays
there. Listens on 127.0.0.1, in the event loop of its test."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit


@dataclass(slots=True)
class Balancer:
    """``backends``: URLs; one may be added at any time."""

    url: str
    backends: list[str] = field(default_factory=list)
    connections: int = 0


@asynccontextmanager
async def balancing(*backends: str) -> AsyncIterator[Balancer]:
    """A balancer before these backends."""
    balancer = Balancer("", list(backends))
    piping: set[asyncio.Task[None]] = set()

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        address = urlsplit(balancer.backends[balancer.connections % len(balancer.backends)])
        balancer.connections += 1
        to_reader, to_writer = await asyncio.open_connection(address.hostname, address.port)
        for task in (asyncio.create_task(pipe(reader, to_writer)), asyncio.create_task(pipe(to_reader, writer))):
            piping.add(task)
            task.add_done_callback(piping.discard)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    balancer.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield balancer
    finally:
        server.close()
        for task in list(piping):
            task.cancel()
        await asyncio.gather(*piping, return_exceptions=True)
