"""The worker's own HTTP port: /livez, /readyz, /metrics and /status, on a thread and an event loop of their own.

So it answers while the worker's event loop is held, and names the holder. Data of that loop's thread is read on it
alone: /metrics and /status are written there on request, and served from their last version while it is held.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final, Protocol

import msgspec
import structlog
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from forebay_schemas.runtime.bind_errors import cannot_listen
from forebay_worker.ops.loop_watch import STEP_SECONDS, LoopWatch

Check = Callable[[], list[str]]

ASK_SECONDS: Final = 0.5
"""Longest wait for the worker's loop to write a page; clients may wait only a second."""

KEEP_SECONDS: Final = 5.0
"""Pages are rewritten at this interval without requests: the page of a held loop is no older."""

STOP_SECONDS_MAX: Final = 5.0

log = structlog.get_logger("forebay.worker")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpsPages:
    """The pages of the port. ``not_alive`` and ``not_ready`` return errors, [] for none; they are called on the port's
    own thread. ``registry`` and ``status`` are read on the worker's event loop, ``live`` on the port's thread."""

    registry: CollectorRegistry
    live: CollectorRegistry
    not_alive: Check
    not_ready: Check
    status: Callable[[], dict[str, Any]]
    watch: LoopWatch


class OpsPort(Protocol):
    """A server for the pages."""

    async def start(self, *, host: str, port: int) -> int:
        """Listens; returns the port. Raises ``UsageError`` if it cannot."""
        ...

    async def stop(self) -> None:
        """Closes the port."""


class OpsServer:
    """Serves the four pages over HTTP."""

    def __init__(self, pages: OpsPages) -> None:
        """Must be called in the event loop of the worker."""
        loop = asyncio.get_running_loop()
        self._pages = pages
        self._watch = pages.watch
        self._metrics = _Page(lambda: generate_latest(pages.registry), loop=loop)
        self._status = _Page(lambda: msgspec.json.encode(pages.status()), loop=loop)
        self._thread: threading.Thread | None = None
        self._stop: Callable[[], object] = lambda: None

    async def start(self, *, host: str, port: int) -> int:
        """Listens; returns the port. Raises ``UsageError`` if it cannot."""
        started: Future[int] = Future()
        thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(host, port, started)), name="operations", daemon=True
        )
        thread.start()
        found = await asyncio.wrap_future(started)
        self._thread = thread
        return found

    async def stop(self) -> None:
        """Closes the port."""
        if self._thread is not None:
            self._stop()
            await asyncio.to_thread(self._thread.join, STOP_SECONDS_MAX)

    async def _serve(self, host: str, port: int, started: Future[int]) -> None:
        app = web.Application()
        app.router.add_get("/livez", self._livez)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._get_metrics)
        app.router.add_get("/status", self._get_status)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        try:
            await web.TCPSite(runner, host, port).start()
        except (OSError, UnicodeError) as error:
            await runner.cleanup()
            started.set_exception(cannot_listen(error, host=host, port=port, setting="FOREBAY_OPS"))
            return
        loop, stopping = asyncio.get_running_loop(), asyncio.Event()
        self._stop = lambda: loop.call_soon_threadsafe(stopping.set)
        tasks = [asyncio.create_task(self._follow(stopping)), asyncio.create_task(self._keep(stopping))]
        started.set_result(int(runner.addresses[0][1]))
        await stopping.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await runner.cleanup()

    async def _follow(self, stopping: asyncio.Event) -> None:
        while not stopping.is_set():
            try:
                self._watch.step(time.monotonic(), cpu_seconds=time.process_time())
            except Exception:
                log.exception("a look at the event loop failed")
            await asyncio.sleep(STEP_SECONDS)

    async def _keep(self, stopping: asyncio.Event) -> None:
        while not stopping.is_set():
            for page in (self._metrics, self._status):
                try:
                    await page.read()
                except Exception as error:  # noqa: BLE001 - whoever asks for the page is told
                    log.debug("a page could not be written", error=repr(error))
            await asyncio.sleep(KEEP_SECONDS)

    async def _livez(self, _request: web.Request) -> web.Response:
        return _checked(self._pages.not_alive())

    async def _readyz(self, _request: web.Request) -> web.Response:
        return _checked(self._pages.not_ready())

    async def _get_metrics(self, _request: web.Request) -> web.Response:
        body = await self._metrics.read() or b""
        return web.Response(
            body=body + generate_latest(self._pages.live), headers={"content-type": CONTENT_TYPE_LATEST}
        )

    async def _get_status(self, _request: web.Request) -> web.Response:
        body = await self._status.read()
        if body is None:
            return _checked([self._watch.words(time.monotonic()) or "the event loop has not begun to turn"])
        now = time.monotonic()
        of_loop = {**self._watch.status(now), "document_age_seconds": round(self._status.age_seconds(now), 3)}
        # The document is a non-empty object.
        body = body[:-1] + b',"event_loop":' + msgspec.json.encode(of_loop) + b"}"
        return web.Response(body=body, content_type="application/json")


class _Page:
    """A page that only the worker's event loop can write."""

    def __init__(self, write: Callable[[], bytes], *, loop: asyncio.AbstractEventLoop) -> None:
        self._write = write
        self._loop = loop
        self._last: bytes | None = None
        self._written_at = 0.0

    async def read(self) -> bytes | None:
        """The present page, or its last version while the loop is held; None if there is none."""
        asked: Future[bytes] = Future()
        self._loop.call_soon_threadsafe(self._write_for, asked)
        try:
            async with asyncio.timeout(ASK_SECONDS):
                self._last = await asyncio.wrap_future(asked)
            self._written_at = time.monotonic()
        except TimeoutError:
            pass
        return self._last

    def age_seconds(self, now: float) -> float:
        """Age of the page that `read` returned last."""
        return max(0.0, now - self._written_at)

    def _write_for(self, asked: Future[bytes]) -> None:
        """On the worker's loop."""
        if not asked.set_running_or_notify_cancel():
            return  # the client has gone
        try:
            asked.set_result(self._write())
        except Exception as error:  # noqa: BLE001 - it is the asker's
            asked.set_exception(error)


def _checked(problems: list[str]) -> web.Response:
    if problems:
        return web.Response(status=503, text="\n".join(problems) + "\n")
    return web.Response(text="ok\n")
