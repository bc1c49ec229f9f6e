"""A listening port that can be made to refuse connections and to listen again. Owns sockets; runs on asyncio."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from aiohttp import web

if TYPE_CHECKING:
    import asyncio

# What is still running when the server stops is cut; a crash would not wait either.
_STOP_SECONDS_MAX = 0.1


class SwitchablePort:
    """Serves one application on one port."""

    def __init__(self, *, host: str, port: int, app: web.Application) -> None:
        self._host = host
        self._port = port
        # A client that leaves cancels its handler: that is how an engine's slot becomes free.
        self._runner = web.AppRunner(
            app, handler_cancellation=True, access_log=None, shutdown_timeout=_STOP_SECONDS_MAX
        )
        self._site: web.TCPSite | None = None
        self._placeholder: socket.socket | None = None

    @property
    def url(self) -> str:
        return f"http://{self._host}:{self._port}"

    async def open(self) -> None:
        """Listen. OSError: the port is taken."""
        await self._runner.setup()
        await self.accept()

    async def accept(self) -> None:
        """Take connections (again); nothing happens when it does already."""
        if self._site is not None:
            return
        site = web.TCPSite(self._runner, self._host, self._port, backlog=1024)
        await site.start()
        self._site, self._port = site, site.port
        if self._placeholder is not None:
            self._placeholder.close()
            self._placeholder = None

    async def refuse(self, *, spare: asyncio.BaseTransport | None) -> None:
        """Refuse new connections and cut those there are, but for `spare`; nothing happens when it does already."""
        if self._site is None:
            return
        await self._site.stop()
        self._site = None
        # Bound but not listening: the port stays ours, and no client's socket gets it by chance and connects to itself.
        self._placeholder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._placeholder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._placeholder.bind((self._host, self._port))
        server = self._runner.server
        assert server is not None
        for connection in server.connections:
            transport = connection.transport
            if transport is not None and transport is not spare:
                transport.abort()

    async def close(self) -> None:
        await self._runner.cleanup()
        if self._placeholder is not None:
            self._placeholder.close()
            self._placeholder = None
