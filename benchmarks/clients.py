"""Round trips of the asyncio client beside the threaded one, at a fixed pace, and as many as it can. Runs a worker as a
child."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.cluster import Cluster
from benchmarks.programs import worker_program
from forebay_producer import AsyncHandle, AsyncProducer, Producer, ProducerSettings

PER_SECOND = 200
BLOCK_REQUESTS = 400
BLOCKS = 5
FULL_SPEED_REQUESTS = 12_000
FULL_SPEED_BATCH = 500
WAIT_SECONDS_MAX = 60.0
THREADS = 64
_REQUEST = {"biz_type": "chat_completion", "payload": {"model": "bench", "messages": []}}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTrips:
    """Milliseconds from a submit to its outcome at 200 a second, of either client, in blocks that take turns.
    ``full_speed_per_second``: submits with outcomes of the asyncio client."""

    threaded_ms: list[float]
    asyncio_ms: list[float]
    full_speed_per_second: float

    @property
    def ratio(self) -> float:
        """The asyncio client's median against the threaded one's."""
        return median(self.asyncio_ms) / median(self.threaded_ms)


def measure_clients(cluster: Cluster, *, pool_name: str, logs: Path, say: Callable[[str], None]) -> ClientTrips:
    """Both clients in this process, one after the other, on one pool."""
    pool, kafka = cluster.make_pool(pool_name), cluster.kafka
    settings = ProducerSettings(bootstrap_servers=kafka.bootstrap_servers, pool=pool.name)
    threaded_ms: list[float] = []
    asyncio_ms: list[float] = []
    with worker_program(kafka, pool=pool.name, handler="noop", limit_requests=256, logs=logs):
        for block in range(BLOCKS + 1):
            threaded, in_asyncio = _threaded(settings), asyncio.run(_in_asyncio(settings))
            if block:  # the first warms up
                threaded_ms += threaded
                asyncio_ms += in_asyncio
        per_second = asyncio.run(_full_speed(settings))
    say(f"clients: threads {median(threaded_ms):.1f} ms, asyncio {median(asyncio_ms):.1f} ms, {per_second:,.0f}/s")
    return ClientTrips(threaded_ms=threaded_ms, asyncio_ms=asyncio_ms, full_speed_per_second=per_second)


def _threaded(settings: ProducerSettings) -> list[float]:
    def trip(producer: Producer) -> float:
        began = time.perf_counter()
        producer.submit(_REQUEST).outcome(timeout_seconds=WAIT_SECONDS_MAX)
        return (time.perf_counter() - began) * 1000

    with Producer(settings=settings) as producer, ThreadPoolExecutor(THREADS) as threads:
        trip(producer)
        began = time.perf_counter()
        trips = []
        for number in range(BLOCK_REQUESTS):
            time.sleep(max(0.0, began + number / PER_SECOND - time.perf_counter()))
            trips.append(threads.submit(trip, producer))
        return [each.result() for each in trips]


async def _in_asyncio(settings: ProducerSettings) -> list[float]:
    async def trip(producer: AsyncProducer) -> float:
        began = time.perf_counter()
        await (await producer.submit(_REQUEST)).outcome(timeout_seconds=WAIT_SECONDS_MAX)
        return (time.perf_counter() - began) * 1000

    async with AsyncProducer(settings=settings) as producer:
        await trip(producer)
        began = time.perf_counter()
        trips = []
        for number in range(BLOCK_REQUESTS):
            await asyncio.sleep(max(0.0, began + number / PER_SECOND - time.perf_counter()))
            trips.append(asyncio.ensure_future(trip(producer)))
        return [await each for each in trips]


async def _full_speed(settings: ProducerSettings) -> float:
    async def batch(producer: AsyncProducer) -> int:
        handles = [
            each for each in await producer.submit_batch([_REQUEST] * FULL_SPEED_BATCH) if isinstance(each, AsyncHandle)
        ]
        return len([each async for each in producer.outcomes(handles, timeout_seconds=WAIT_SECONDS_MAX)])

    async with AsyncProducer(settings=settings) as producer:
        await batch(producer)
        began = time.perf_counter()
        done = await asyncio.gather(*(batch(producer) for _ in range(FULL_SPEED_REQUESTS // FULL_SPEED_BATCH)))
        return sum(done) / (time.perf_counter() - began)
