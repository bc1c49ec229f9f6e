"""The poller and its HTTP sources, against a real HTTP server in the same loop."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from forebay_schemas.clock import SystemClock
from forebay_worker.signals.gpu_prometheus import PrometheusGpu
from forebay_worker.signals.poller import STALE_SECONDS, EngineMetrics, SignalPoller, Source
from forebay_worker.signals.readings import EngineReading, GpuReading

CLOCK = SystemClock()
PAGE = "vllm:num_requests_running 7\nvllm:num_requests_waiting 3\nvllm:kv_cache_usage_perc 0.25\n"
PATIENCE_SECONDS = 30.0

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def page(_: web.Request) -> web.StreamResponse:
    return web.Response(text=PAGE)


async def hang(_: web.Request) -> web.StreamResponse:
    await asyncio.sleep(3600)
    raise AssertionError


async def flood(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    for _ in range(80):
        await response.write(b"# nothing\n" * 10_000)
    return response


async def unavailable(_: web.Request) -> web.StreamResponse:
    return web.Response(status=503, text="loading the model")


async def html(_: web.Request) -> web.StreamResponse:
    return web.Response(text="<html>")


QUERY = 'avg(DCGM_FI_DEV_GPU_UTIL{pod=~"a|b"})'


def prometheus(*, percent: str = "40", age_seconds: str = "0") -> Answer:
    """A Prometheus that knows the query, with samples of this age."""
    values = {QUERY: percent, f"max(time() - timestamp({QUERY}))": age_seconds}

    async def answer(request: web.Request) -> web.StreamResponse:
        assert request.path == "/prometheus/api/v1/query"
        result = [{"metric": {}, "value": [time.time(), values[request.query["query"]]]}]
        return web.Response(text=json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}}))

    return answer


class MetricsServer:
    """``answer`` answers whatever is asked, and may be another at any moment."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.url = ""

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        return await self.answer(request)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[MetricsServer]:
        app = web.Application()
        app.router.add_get("/{path:.*}", self._handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await runner.cleanup()


@asynccontextmanager
async def polling(
    *, engine: Source[EngineReading] | None = None, gpu: Source[GpuReading] | None = None
) -> AsyncIterator[SignalPoller]:
    poller = SignalPoller(engine=engine, gpu=gpu, clock=CLOCK)
    await poller.start()
    try:
        yield poller
    finally:
        await poller.stop()


async def until(what: str, look: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not look():
        assert time.monotonic() < deadline, f"not in time: {what}"
        await asyncio.sleep(0.01)


def engine_at(server: MetricsServer) -> EngineMetrics:
    return EngineMetrics(url=server.url + "/metrics", prefix="", clock=CLOCK)


def prometheus_at(server: MetricsServer, *, clock: SystemClock = CLOCK) -> PrometheusGpu:
    return PrometheusGpu(url=server.url + "/prometheus/", query=QUERY, clock=clock)


def test_readings_carry_their_age_and_are_none_once_they_are_stale() -> None:
    async def look() -> None:
        async with MetricsServer(page).serving() as server, polling(engine=engine_at(server)) as poller:
            await until("a reading", lambda: poller.latest_engine(CLOCK.monotonic()))
            reading = poller.latest_engine(CLOCK.monotonic())
            assert reading is not None
            assert (reading.running_requests, reading.waiting_requests, reading.kv_used_share) == (7, 3, 0.25)
            now = reading.at + STALE_SECONDS
            assert poller.latest_engine(now) == reading
            assert poller.latest_engine(now + 0.01) is None
            fresh, stale = poller.sources(now)["engine"], poller.sources(now + 0.01)["engine"]
            assert (fresh["state"], fresh["age_seconds"], fresh["error"]) == ("ok", 5.0, None)
            assert (stale["state"], stale["age_seconds"]) == ("stale", 5.01)
            assert stale["values"]["running_requests"] == 7
            assert stale["source"] == server.url + "/metrics"
            await until("another look", lambda: poller.latest_engine(CLOCK.monotonic()) != reading)

    asyncio.run(look())


def test_without_sources_both_signals_are_off() -> None:
    async def look() -> None:
        with capture_logs() as lines:
            async with polling() as poller:
                await asyncio.sleep(0.3)
                now = CLOCK.monotonic() + 2 * STALE_SECONDS
                assert (poller.latest_engine(now), poller.latest_gpu(now)) == (None, None)
                off: dict[str, object] = {
                    "state": "off",
                    "source": None,
                    "age_seconds": None,
                    "error": None,
                    "values": {},
                }
                assert poller.sources(now) == {"engine": off, "gpu": off}
        assert lines == []

    asyncio.run(look())


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (unavailable, "HTTP 503 Service Unavailable"),
        (html, "no metric of vllm"),
        (hang, "no answer within 0.8 s"),
        (flood, "the answer is larger than 4194304 bytes"),
    ],
)
def test_an_engine_that_fails_is_missing_says_why_and_takes_nothing_from_the_gpu(answer: Answer, error: str) -> None:
    async def look() -> None:
        async with (
            MetricsServer(answer).serving() as bad,
            MetricsServer(prometheus()).serving() as good,
            polling(engine=engine_at(bad), gpu=prometheus_at(good)) as poller,
        ):
            await until("the error", lambda: poller.sources(CLOCK.monotonic())["engine"]["error"])
            status = poller.sources(CLOCK.monotonic())["engine"]
            assert status["state"] == "missing"
            assert error in status["error"]
            await until("the GPU", lambda: poller.latest_gpu(CLOCK.monotonic()))
            first = poller.latest_gpu(CLOCK.monotonic())
            assert first is not None
            assert first.utilisation == 0.4
            await until("the GPU again", lambda: poller.latest_gpu(CLOCK.monotonic()) not in (None, first))
            assert poller.latest_engine(CLOCK.monotonic()) is None

    asyncio.run(look())


def test_a_gpu_source_that_hangs_takes_nothing_from_the_engine() -> None:
    async def look() -> None:
        async with (
            MetricsServer(hang).serving() as bad,
            MetricsServer(page).serving() as good,
            polling(engine=engine_at(good), gpu=prometheus_at(bad)) as poller,
        ):
            await until("the engine", lambda: poller.latest_engine(CLOCK.monotonic()))
            await until("the error", lambda: poller.sources(CLOCK.monotonic())["gpu"]["error"])
            assert poller.latest_gpu(CLOCK.monotonic()) is None

    asyncio.run(look())


def test_an_engine_that_goes_and_comes_is_said_once_each() -> None:
    async def look() -> None:
        async with MetricsServer(unavailable).serving() as server, polling(engine=engine_at(server)) as poller:
            await until("it is missing", lambda: len(lines) == 1)
            await asyncio.sleep(1.5)  # nothing to wait for: nothing more shall be said
            server.answer = page
            await until("it is back", lambda: len(lines) == 2)
            assert poller.sources(CLOCK.monotonic())["engine"]["state"] == "ok"

    with capture_logs() as lines:
        asyncio.run(look())
    assert [line["event"] for line in lines] == ["signal is missing; pacing goes on without it", "signal is back"]
    assert lines[0]["error"].endswith("HTTP 503 Service Unavailable")


def test_one_failed_look_is_no_missing_engine() -> None:
    async def look() -> None:
        async with MetricsServer(page).serving() as server, polling(engine=engine_at(server)) as poller:
            await until("a reading", lambda: poller.latest_engine(CLOCK.monotonic()))
            server.answer = unavailable
            await until("an error", lambda: poller.sources(CLOCK.monotonic())["engine"]["error"])
            assert poller.sources(CLOCK.monotonic())["engine"]["state"] == "ok"
            server.answer = page
            await until("none", lambda: not poller.sources(CLOCK.monotonic())["engine"]["error"])

    with capture_logs() as lines:
        asyncio.run(look())
    assert lines == []


def test_a_port_nobody_listens_on_is_a_missing_engine_and_no_password_is_shown() -> None:
    async def look() -> None:
        async with MetricsServer(page).serving() as server:
            url = server.url.replace("http://", "http://me:secret@") + "/metrics"
        engine = EngineMetrics(url=url, prefix="", clock=CLOCK)
        async with polling(engine=engine) as poller:
            await until("the error", lambda: poller.sources(CLOCK.monotonic())["engine"]["error"])
            status = poller.sources(CLOCK.monotonic())["engine"]
            assert status["error"].endswith("/metrics: connection refused")
            assert "secret" not in str(status)

    asyncio.run(look())


class _WrongWallClock(SystemClock):
    """An hour slow."""

    __slots__ = ()

    def wall_ms(self) -> int:
        return super().wall_ms() - 3_600_000


def test_a_wrong_clock_of_this_machine_makes_no_sample_stale() -> None:
    async def look() -> None:
        async with (
            MetricsServer(prometheus()).serving() as server,
            polling(gpu=prometheus_at(server, clock=_WrongWallClock())) as poller,
        ):
            await until("a reading", lambda: poller.latest_gpu(CLOCK.monotonic()))

    asyncio.run(look())


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (prometheus(age_seconds="61"), "FOREBAY_GPU_PROMETHEUS_QUERY: the oldest sample is 61 s old and refused"),
        (prometheus(percent="9.3e18"), "FOREBAY_GPU_PROMETHEUS_QUERY: '9.3e18' is no percentage and refused"),
        (unavailable, "/prometheus/api/v1/query: HTTP 503 Service Unavailable"),
        (html, "FOREBAY_GPU_PROMETHEUS_URL: the answer is none of Prometheus' query API"),
    ],
)
def test_a_prometheus_without_a_sound_fresh_value_is_a_missing_gpu(answer: Answer, error: str) -> None:
    async def look() -> None:
        async with MetricsServer(answer).serving() as server, polling(gpu=prometheus_at(server)) as poller:
            await until("the error", lambda: poller.sources(CLOCK.monotonic())["gpu"]["error"])
            assert poller.sources(CLOCK.monotonic())["gpu"]["error"].endswith(error)
            assert poller.latest_gpu(CLOCK.monotonic()) is None

    asyncio.run(look())


class _Broken:
    """A GPU source with a bug."""

    name = "broken"

    async def follow(
        self,
        *,
        received: Callable[[GpuReading, str | None], None],  # noqa: ARG002 - the protocol's
        failed: Callable[[str], None],  # noqa: ARG002
    ) -> None:
        raise ZeroDivisionError("by zero")


def test_a_source_with_a_bug_is_a_missing_signal() -> None:
    async def look() -> None:
        async with polling(gpu=_Broken()) as poller:
            await until("the error", lambda: poller.sources(CLOCK.monotonic())["gpu"]["error"])
            assert poller.sources(CLOCK.monotonic())["gpu"]["error"] == "ZeroDivisionError: by zero"

    asyncio.run(look())


def test_stopping_waits_for_no_answer() -> None:
    async def look() -> None:
        async with MetricsServer(hang).serving() as server:
            poller = SignalPoller(engine=engine_at(server), gpu=prometheus_at(server), clock=CLOCK)
            await poller.start()
            await asyncio.sleep(0.1)
            async with asyncio.timeout(PATIENCE_SECONDS):
                await poller.stop()
            assert [task for task in asyncio.all_tasks() if task.get_name().startswith("signals-")] == []

    asyncio.run(look())
