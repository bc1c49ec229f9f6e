"""A client's wait for its own outcome after others have written many results. Runs a worker as a child."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psutil

from benchmarks.cluster import Cluster
from benchmarks.programs import worker_program
from forebay_producer import Producer, ProducerSettings, Status
from forebay_schemas.contract.reasons import Reason
from forebay_schemas.contract.results import Result, encode_result

ROUND_TRIPS = 100
WAIT_SECONDS_MAX = 60.0
BODY_BYTES = 1_900
_REQUEST = {"biz_type": "chat_completion", "payload": {"model": "bench", "messages": []}}


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeWaits:
    """Milliseconds from a submit to its outcome, with a new client and after others have written ``theirs`` results.
    ``grown_mb``: of this process meanwhile, in 10^6 bytes, from the first half of their results on."""

    theirs: int
    fresh_ms: list[float]
    later_ms: list[float]
    grown_mb: float

    @property
    def ratio(self) -> float:
        return median(self.later_ms) / median(self.fresh_ms)


def measure_outcomes(
    cluster: Cluster, *, pool_name: str, theirs: int, logs: Path, say: Callable[[str], None]
) -> OutcomeWaits:
    """One client that goes on while others write."""
    pool, kafka, process = cluster.make_pool(pool_name), cluster.kafka, psutil.Process()
    settings = ProducerSettings(bootstrap_servers=kafka.bootstrap_servers, pool=pool.name)
    with (
        worker_program(kafka, pool=pool.name, handler="noop", limit_requests=8, logs=logs),
        Producer(settings=settings) as producer,
    ):
        _round_trips(producer)
        fresh_ms = _round_trips(producer)
        say(f"outcomes: {median(fresh_ms):.1f} ms; writing {theirs:,} results of others")
        cluster.fill(pool.results, _results(0, theirs // 2))
        _round_trips(producer)
        before_bytes = process.memory_info().rss
        cluster.fill(pool.results, _results(theirs // 2, theirs))
        _round_trips(producer)
        later_ms = _round_trips(producer)
        grown_mb = (process.memory_info().rss - before_bytes) / 1e6
    say(f"outcomes: {median(later_ms):.1f} ms after them, {grown_mb:+.1f} MB")
    return OutcomeWaits(theirs=theirs, fresh_ms=fresh_ms, later_ms=later_ms, grown_mb=grown_mb)


def _round_trips(producer: Producer) -> list[float]:
    took_ms = []
    for _ in range(ROUND_TRIPS):
        began = time.perf_counter()
        producer.submit(_REQUEST).outcome(timeout_seconds=WAIT_SECONDS_MAX)
        took_ms.append((time.perf_counter() - began) * 1000)
    return took_ms


def _results(first: int, end: int) -> Iterator[tuple[str, bytes]]:
    for number in range(first, end):
        request_id = f"theirs-{number}"
        result = Result(
            request_id=request_id,
            status=Status.COMPLETED,
            reason=Reason.COMPLETED.code,
            finished_at=0,
            body="x" * BODY_BYTES,
        )
        yield request_id, encode_result(result)
