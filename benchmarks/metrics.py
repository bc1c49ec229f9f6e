"""Costs of metrics: the page while 200 tenants wait, and the counting as a share of the worker's time for a request.
Runs a child process.

The counting is timed alone, in CPU time, as the worker does it for one request. Two runs of a whole worker, with and
without it, differ by more than that from one to the next.
"""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.cluster import Cluster
from benchmarks.programs import RUN_SECONDS_MAX, BenchError, worker_program
from benchmarks.records import FAR_EXPIRE_AT
from benchmarks.throughput import Run
from forebay_schemas.contract.headers import History
from forebay_schemas.contract.reasons import Reason
from forebay_schemas.contract.tiers import TIERS, Tier
from forebay_worker.partition.assignment import Assignment
from forebay_worker.partition.credit import Credit
from forebay_worker.request.work import Work
from forebay_worker.telemetry.stats import Stats

TENANTS = 200
"""Tenants that wait in each lane."""

WRITTEN_TENANTS = 250
"""Tenants with a request each: as many as a lane takes at once. Some run before the page is read."""

LIMIT_REQUESTS = 4
SCRAPES = 100

COUNTED_AT_ONCE = 2_000
"""Between two folds: what a worker ends in a sweep of its lanes at 20,000 a second."""

ROUNDS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsCost:
    """``scrapes_ms``: each /metrics, from the request to the last byte. ``counting_microseconds``: of one request, CPU
    time. ``request_microseconds``: what a request takes the worker at full speed, by the clock or in all threads' CPU
    time, whichever is less: on a busy machine it waits, on a quiet one its threads run side by side."""

    scrapes_ms: list[float]
    page_bytes: int
    counting_microseconds: float
    request_microseconds: float

    @property
    def scrape_ms(self) -> float:
        return median(self.scrapes_ms)

    @property
    def cost_ratio(self) -> float:
        return self.counting_microseconds / self.request_microseconds


def measure_metrics(
    cluster: Cluster, *, pool_name: str, full_speed: Sequence[Run], logs: Path, say: Callable[[str], None]
) -> MetricsCost:
    """``full_speed``: runs of the worker with a handler that does nothing, made a moment ago."""
    pool = cluster.make_pool(pool_name)
    for tier in TIERS:
        cluster.fill(pool.requests(tier), _of_many_tenants())
    kafka = cluster.kafka
    with worker_program(kafka, pool=pool.name, handler="sleepy", limit_requests=LIMIT_REQUESTS, logs=logs) as worker:
        _wait_for_tenants(worker.ops_url)
        scrapes_ms, size = [], 0
        for _ in range(SCRAPES):
            began = time.perf_counter()
            size = len(_get(worker.ops_url))
            scrapes_ms.append((time.perf_counter() - began) * 1000)
    found = MetricsCost(
        scrapes_ms=scrapes_ms,
        page_bytes=size,
        counting_microseconds=_counting_microseconds(),
        request_microseconds=min(
            1e6 / median(run.per_second for run in full_speed),
            median(run.cpu_microseconds_per_record for run in full_speed),
        ),
    )
    say(f"metrics: {found.scrape_ms:.1f} ms a page of {size:,} bytes; {found.counting_microseconds:.2f} µs a request")
    return found


def _of_many_tenants() -> Iterator[tuple[str, bytes]]:
    for number in range(WRITTEN_TENANTS):
        request_id = f"of-tenant-{number:06}"
        fields = {
            "request_id": request_id,
            "biz_type": "chat_completion",
            "tenant": f"tenant-{number:03}",
            "expire_at": FAR_EXPIRE_AT,
            "payload": {"model": f"model-{number:03}", "messages": [], "max_tokens": 64},
        }
        yield request_id, json.dumps(fields).encode()


def _wait_for_tenants(url: str) -> None:
    deadline = time.monotonic() + RUN_SECONDS_MAX
    while time.monotonic() < deadline:
        lines = [line for line in _get(url).decode().splitlines() if line.startswith("forebay_lane_tenants{")]
        if lines and all(float(line.rsplit(" ", 1)[1]) >= TENANTS for line in lines):
            return
        time.sleep(0.1)
    raise BenchError(f"{TENANTS} tenants did not come to wait in each lane")


def _get(url: str) -> bytes:
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:  # noqa: S310 - our own http URL
        page: bytes = answer.read()
    return page


class _NoRecord:
    """Nothing of it is looked at."""


def _counting_microseconds() -> float:
    """The least of many rounds: what disturbs the machine only ever adds."""
    assignment = Assignment(
        topic="t",
        partition=0,
        tier=Tier.MID,
        retry_delay_seconds=0,
        credit=Credit(capacity_records=1),
        now=0.0,
        committed=0,
    )
    now_ms = 1_900_000_000_000
    works = [
        Work(
            record=_NoRecord(),  # type: ignore[arg-type]
            assignment=assignment,
            offset=offset,
            size_bytes=800,
            history=History(),
            first_enqueued_at=now_ms - offset % 997,
        )
        for offset in range(COUNTED_AT_ONCE)
    ]
    stats = Stats()
    took = []
    for _ in range(ROUNDS):
        began = time.thread_time()
        for work in works:
            stats.dispatched(work, now_ms)
            stats.ended(work, Reason.COMPLETED, 0.001)
            stats.durable(work, Reason.COMPLETED, now_ms)
        stats.fold()
        took.append(time.thread_time() - began)
    return min(took) / COUNTED_AT_ONCE * 1e6
