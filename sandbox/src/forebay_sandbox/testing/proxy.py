"""A TCP proxy whose link can be cut, black-holed, delayed and throttled while it runs. One thread with an event
loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Self

from forebay_sandbox.kafka.local import free_port
from forebay_sandbox.kafka.spec import HOST

if TYPE_CHECKING:
    from collections.abc import Coroutine

_CHUNK_BYTES = 65_536
# Enough for 64 MiB/s at a second of delay; beyond it the sender is held back, as by a full TCP window.
_CHUNKS_IN_FLIGHT_MAX = 1024
_COMMAND_SECONDS_MAX = 10.0
_THROTTLE_STEP_SECONDS = 0.05
# Of the event loop, from a socket that is accepted to `_accepted`: its task, `connection_made`, the handler's task.
_ACCEPT_TURNS = 4


class Mode(StrEnum):
    """What happens to connections."""

    PASS = "pass"  # noqa: S105 - not a password
    CUT = "cut"
    BLACK_HOLE = "black_hole"


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """How the link behaves.

    ``cut``: open connections are reset and new ones refused. ``black_hole``: connections are accepted and held, and
    nothing passes until the mode changes; then what was sent meanwhile arrives, as after a network partition.
    ``delay_seconds`` is added each way; ``bytes_per_second`` bounds each connection each way.
    """

    mode: Mode = Mode.PASS
    delay_seconds: float = 0.0
    bytes_per_second: float | None = None


PASS = Link()
CUT = Link(mode=Mode.CUT)
BLACK_HOLE = Link(mode=Mode.BLACK_HOLE)


class TcpProxy:
    """``with TcpProxy(target_port=p) as proxy``: clients of 127.0.0.1:``proxy.port`` reach 127.0.0.1:``target_port``.

    ``set`` may be called from any thread and returns when the new behaviour is in force.
    """

    def __init__(self, *, target_port: int) -> None:
        self._target_port = target_port
        self.port = free_port()
        self._link = PASS
        self._connections: set[_Connection] = set()
        self._server: asyncio.Server | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tcp-proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._call(self._apply(PASS))
        return self

    def __exit__(self, *_: object) -> None:
        self._call(self._apply(CUT))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_COMMAND_SECONDS_MAX)
        self._loop.close()

    def set(self, link: Link) -> None:
        """Changes the link's behaviour from now on, for open connections too."""
        self._call(self._apply(link))

    @property
    def open_connections(self) -> int:
        """The number of open client connections."""
        return len(self._connections)

    def _call(self, step: Coroutine[None, None, None]) -> None:
        asyncio.run_coroutine_threadsafe(step, self._loop).result(_COMMAND_SECONDS_MAX)

    async def _apply(self, link: Link) -> None:
        self._link = link
        for connection in self._connections:
            connection.set(link)
        if link.mode is Mode.CUT:
            if self._server is not None:
                await self._close_listener(self._server)
                self._server = None
            while self._connections:
                await asyncio.wait([connection.reset() for connection in self._connections])
        elif self._server is None:
            self._server = await asyncio.start_server(self._accepted, HOST, self.port)

    async def _close_listener(self, server: asyncio.Server) -> None:
        for listener in server.sockets:
            self._loop.remove_reader(listener.fileno())
        # asyncio loses the connections that it is accepting while its server is closed: they would stay open for ever.
        for _ in range(_ACCEPT_TURNS):
            await asyncio.sleep(0)
        server.close()

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if self._link.mode is Mode.CUT:
            _reset(writer)
            return
        connection = _Connection(link=self._link, task=task)
        self._connections.add(connection)
        try:
            await connection.carry(reader, writer, target_port=self._target_port)
        finally:
            self._connections.discard(connection)


class _Connection:
    """One client's connection and its other half to the target."""

    def __init__(self, *, link: Link, task: asyncio.Task[None]) -> None:
        self._link = link
        self._changed = asyncio.Event()
        self._task = task

    def set(self, link: Link) -> None:
        self._link = link
        self._changed.set()
        self._changed = asyncio.Event()

    def reset(self) -> asyncio.Task[None]:
        """Closes both halves; the returned task ends when that is done."""
        self._task.cancel()
        return self._task

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, target_port: int) -> None:
        """Pass bytes both ways until both sides have closed, one has failed, or `reset` is called."""
        writers = [writer]
        try:
            await self._wait_passable(asyncio.get_running_loop().time())
            target_reader, target_writer = await asyncio.open_connection(HOST, target_port)
            writers.append(target_writer)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(reader, target_writer))
                group.create_task(self._pump(target_reader, writer))
        except (OSError, ExceptionGroup, asyncio.CancelledError):
            # A peer that is gone, or `reset`: either way the other side sees a reset, not a tidy end.
            for each in writers:
                _reset(each)
        finally:
            for each in writers:
                each.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        arrivals: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_CHUNKS_IN_FLIGHT_MAX)
        async with asyncio.TaskGroup() as group:
            group.create_task(_receive(reader, arrivals))
            group.create_task(self._deliver(arrivals, writer))

    async def _deliver(self, arrivals: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
        while True:
            arrived_at, chunk = await arrivals.get()
            await self._wait_passable(arrived_at)
            if not chunk:
                writer.write_eof()
                return
            while chunk:
                rate = self._link.bytes_per_second
                size = len(chunk) if rate is None else max(1, int(rate * _THROTTLE_STEP_SECONDS))
                writer.write(chunk[:size])
                await writer.drain()
                if rate is not None:
                    await asyncio.sleep(len(chunk[:size]) / rate)
                    await self._wait_passable(arrived_at)
                chunk = chunk[size:]

    async def _wait_passable(self, arrived_at: float) -> None:
        """Return when what arrived then may go on, by the link as it is meanwhile."""
        loop = asyncio.get_running_loop()
        while True:
            changed = self._changed
            if self._link.mode is Mode.BLACK_HOLE:
                await changed.wait()
                continue
            due_in = arrived_at + self._link.delay_seconds - loop.time()
            if due_in <= 0:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(due_in):
                    await changed.wait()


async def _receive(reader: asyncio.StreamReader, arrivals: asyncio.Queue[tuple[float, bytes]]) -> None:
    """Note when each piece came; an empty one is the end."""
    loop = asyncio.get_running_loop()
    while True:
        chunk = await reader.read(_CHUNK_BYTES)
        await arrivals.put((loop.time(), chunk))
        if not chunk:
            return


def _reset(writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        # Lingering for zero seconds turns the close into a reset.
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
