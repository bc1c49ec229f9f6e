"""The metrics of running engines, read over HTTP as a worker does: the sandbox's, xpyd-sim and real llama.cpp."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from forebay_schemas.clock import SystemClock
from forebay_worker.signals.poller import EngineMetrics
from forebay_worker.signals.readings import EngineReading
from harness.waiting import PATIENCE_SECONDS

if TYPE_CHECKING:
    from forebay_sandbox.engine.process import EngineProcess
    from forebay_sandbox.testing.foreign_engines import ForeignEngine


def first_reading(url: str) -> EngineReading:
    """The first that the engine at this URL gives."""

    async def look() -> EngineReading:
        readings: asyncio.Queue[EngineReading] = asyncio.Queue()
        source = EngineMetrics(url=url + "/metrics", prefix="", clock=SystemClock())
        task = asyncio.create_task(
            source.follow(received=lambda reading, _: readings.put_nowait(reading), failed=lambda _: None)
        )
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                return await readings.get()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    return asyncio.run(look())


def test_the_sandbox_engine_tells_everything(engine: EngineProcess) -> None:
    reading = first_reading(engine.url)
    assert (reading.running_requests, reading.waiting_requests, reading.kv_used_share) == (0, 0, 0)
    assert (reading.preemptions_total, reading.prompt_tokens_total, reading.output_tokens_total) == (0, 0, 0)


def test_xpyd_sim_tells_requests_and_output(xpyd_engine: ForeignEngine) -> None:
    reading = first_reading(xpyd_engine.url)
    assert (reading.running_requests, reading.waiting_requests) == (0, 0)
    assert reading.output_tokens_total is not None


def test_llamacpp_tells_requests_and_tokens(llamacpp_engine: ForeignEngine) -> None:
    reading = first_reading(llamacpp_engine.url)
    assert (reading.running_requests, reading.waiting_requests) == (0, 0)
    assert reading.prompt_tokens_total is not None
    assert reading.output_tokens_total is not None
