"""The operations port answers while the worker's event loop is held. A real port and two real loops."""

from __future__ import annotations

import asyncio
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Gauge
from structlog.testing import capture_logs

from forebay_schemas.errors import UsageError
from forebay_worker.ops.loop_watch import HELD_SECONDS_MIN, LoopWatch, look_at
from forebay_worker.ops.metrics import LoopCollector
from forebay_worker.ops.server import OpsPages, OpsServer


class Port:
    """A worker's port, whose status counts how often it was written, and by which thread."""

    def __init__(self) -> None:
        loop, thread_id = asyncio.get_running_loop(), threading.get_ident()
        self.written_by: list[int] = []
        self.trouble: list[str] = []
        registry, live = CollectorRegistry(), CollectorRegistry()
        Gauge("of_the_loop", "", registry=registry).set(7)
        self.watch = LoopWatch(
            ask=loop.call_soon_threadsafe,
            look=lambda: look_at(loop, thread_id, lambda _: "r-1"),
            clock=time.monotonic,
            whose="handler",
        )
        live.register(LoopCollector(pool="p", watch=self.watch, clock=time.monotonic))
        self.server = OpsServer(
            OpsPages(
                registry=registry,
                live=live,
                not_alive=lambda: self.trouble,
                not_ready=lambda: [words] if (words := self.watch.words(time.monotonic())) else [],
                status=self._status,
                watch=self.watch,
            )
        )
        self.port = 0

    def _status(self) -> dict[str, Any]:
        self.written_by.append(threading.get_ident())
        return {"written": len(self.written_by)}

    async def __aenter__(self) -> Port:
        self.port = await self.server.start(host="127.0.0.1", port=0)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.server.stop()

    def get(self, path: str) -> tuple[int, str]:
        """From any thread, that of the held loop too: another one answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.get("/status")[1])
        return found


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with capture_logs():
        asyncio.run(asyncio.wait_for(scenario(), 20))


def test_what_the_loop_owns_is_read_on_the_loop_and_as_it_is_now() -> None:
    async def scenario() -> None:
        async with Port() as port:
            first = await asyncio.to_thread(port.status)
            second = await asyncio.to_thread(port.status)
            assert first["written"] < second["written"] == len(port.written_by)
            assert set(port.written_by) == {threading.get_ident()}
            assert second["event_loop"]["held_seconds"] == 0
            assert second["event_loop"]["document_age_seconds"] < 1
            status, text = await asyncio.to_thread(port.get, "/metrics")
            assert status == 200
            assert "of_the_loop 7.0" in text
            assert 'forebay_event_loop_held_seconds{pool="p"} 0.0' in text

    run(scenario)


def test_every_page_answers_while_the_loop_is_held() -> None:
    async def scenario() -> None:
        async with Port() as port:
            await asyncio.to_thread(port.status)
            await asyncio.to_thread(port.get, "/metrics")
            written = len(port.written_by)
            # All that follows holds the loop, as a handler would that blocks.
            until = time.monotonic() + 10
            while port.get("/readyz")[0] == 200:
                assert time.monotonic() < until
            status, said = port.get("/readyz")
            assert status == 503
            assert "s by the handler of request r-1 at test_server.py:" in said
            assert port.get("/livez") == (200, "ok\n")
            document = port.status()
            assert document["written"] == written
            assert document["event_loop"]["held_seconds"] >= HELD_SECONDS_MIN
            assert document["event_loop"]["request_id"] == "r-1"
            assert document["event_loop"]["document_age_seconds"] >= HELD_SECONDS_MIN
            text = port.get("/metrics")[1]
            assert "of_the_loop 7.0" in text
            assert 'forebay_event_loop_held_seconds{pool="p"} 0.0' not in text
            port.trouble = ["loop has not turned for 31 s"]
            assert port.get("/livez") == (503, "loop has not turned for 31 s\n")
            await asyncio.sleep(0)

    run(scenario)


def test_a_port_that_is_taken_is_named() -> None:
    async def scenario() -> None:
        async with Port() as port:
            other = Port()
            with pytest.raises(UsageError, match="FOREBAY_OPS_PORT"):
                await other.server.start(host="127.0.0.1", port=port.port)

    run(scenario)
