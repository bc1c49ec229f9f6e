"""HTTP connections to one backend: kept alive, but none for ever. Touches the network on the event loop."""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
from aiohttp.client_proto import ResponseHandler

KEPT_ALIVE_SECONDS: Final = 30.0
AGE_SECONDS: Final = (30.0, 60.0)
"""Connections are replaced after a time drawn from this range, so that replicas that joined behind a balancer of
connections (a Kubernetes Service is one) get their part; drawn, so that workers do not do it at the same moment."""

STALE_SECONDS: Final = 1.0
"""A reused connection that the server had closed fails at once. What fails later may have been worked on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """``total_seconds``: of one call, ``connect_seconds``: of which until it is connected."""

    total_seconds: float
    connect_seconds: float


class Exchange:
    """What is known of the connection that carries a call. ``reused_at``: when it was taken over, in the loop's time;
    None for a new one."""

    __slots__ = ("reused_at",)

    def __init__(self) -> None:
        self.reused_at: float | None = None

    def was_stale(self, now: float) -> bool:
        """Whether a failure at ``now``, with nothing received, is that of a connection closed while it was idle."""
        return self.reused_at is not None and now - self.reused_at <= STALE_SECONDS


class _QuietWhenIdle(ResponseHandler):
    """A connection that is not used again once something came on it that nobody had asked for.

    aiohttp (3.14) takes what came meanwhile for the answer to the next request: another one's answer, or the 408 with
    which a balancer ends an idle connection.
    """

    def is_connected(self) -> bool:
        return super().is_connected() and not self.should_close


def _quiet(loop: asyncio.AbstractEventLoop) -> ResponseHandler:
    return _QuietWhenIdle(loop)


class _Connector(aiohttp.TCPConnector):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._factory = functools.partial(_quiet, loop=asyncio.get_running_loop())


class Lease:
    """A session in use: its connections stay open while it is held."""

    __slots__ = ("in_use", "is_retired", "session")

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self.session = session
        self.in_use = 0
        self.is_retired = False


class Connections:
    """Sessions one after another: each serves new calls for a while, ends those that it has, and closes."""

    def __init__(
        self, *, headers: Mapping[str, str], timeouts: Timeouts, age_seconds: tuple[float, float] = AGE_SECONDS
    ) -> None:
        """Must be called in the event loop that uses it."""
        self._headers = dict(headers)
        self._timeout = aiohttp.ClientTimeout(
            total=timeouts.total_seconds, connect=None, sock_connect=timeouts.connect_seconds
        )
        self._age_seconds = age_seconds
        self._chance = random.Random()  # noqa: S311 - it spreads reconnections, and guards nothing
        self._loop = asyncio.get_running_loop()
        self._retired: set[Lease] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._lease = self._begin()
        self.unshared = self._session(force_close=True)
        """Makes a connection for each call."""

    def take(self) -> Lease:
        """The session for a new call. Give it back when the call has ended."""
        if self._loop.time() >= self._ends_at:
            old, self._lease = self._lease, self._begin()
            old.is_retired = True
            self._retired.add(old)
            self._close_unused(old)
        self._lease.in_use += 1
        return self._lease

    def give_back(self, lease: Lease) -> None:
        lease.in_use -= 1
        self._close_unused(lease)

    async def close(self) -> None:
        """Closes all connections."""
        for lease in (self._lease, *self._retired):
            await lease.session.close()
        await self.unshared.close()
        if self._closing:
            await asyncio.wait(self._closing)

    def _begin(self) -> Lease:
        self._ends_at = self._loop.time() + self._chance.uniform(*self._age_seconds)
        return Lease(self._session(force_close=False))

    def _close_unused(self, lease: Lease) -> None:
        if lease.is_retired and not lease.in_use:
            self._retired.discard(lease)
            task = self._loop.create_task(lease.session.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    def _session(self, *, force_close: bool) -> aiohttp.ClientSession:
        trace = aiohttp.TraceConfig()
        trace.on_connection_reuseconn.append(_note_reuse)
        # Without a limit: the gate bounds what is in flight, the pool must not queue.
        connector = (
            aiohttp.TCPConnector(limit=0, force_close=True)
            if force_close
            else _Connector(limit=0, keepalive_timeout=KEPT_ALIVE_SECONDS)
        )
        return aiohttp.ClientSession(
            connector=connector,
            timeout=self._timeout,
            headers=self._headers,
            # A balancer's cookie of one answer would bind all further requests, of whomever, to one replica.
            cookie_jar=aiohttp.DummyCookieJar(),
            trace_configs=[] if force_close else [trace],
        )


async def _note_reuse(_session: aiohttp.ClientSession, context: Any, _: aiohttp.TraceConnectionReuseconnParams) -> None:
    context.trace_request_ctx.reused_at = asyncio.get_running_loop().time()
