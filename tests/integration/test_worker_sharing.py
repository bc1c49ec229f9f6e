"""Several workers before one engine, on a real broker: together they have in flight what one would have."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING

import pytest

from forebay_sandbox.engine.physics import EnginePhysics
from forebay_sandbox.engine.process import running_engine
from forebay_sandbox.testing.proxy import BLACK_HOLE, PASS
from forebay_schemas.contract.coordination import GONE_SECONDS
from forebay_schemas.contract.tiers import Tier
from forebay_worker.pacing.slots.sharing import SILENT_SECONDS
from harness.executions import read_executions, run_more_than_once
from harness.far_kafka import behind_proxy
from harness.live_pool import chat, envelope
from harness.waiting import wait_until

if TYPE_CHECKING:
    from forebay_sandbox.engine.process import EngineProcess
    from forebay_sandbox.testing.pytest_plugin import NewKafka
    from harness.live_pool import LivePool, NewPool
    from harness.worker_process import WorkerProcess
    from harness.workers import NewWorker

LIMIT = 8
TTL_MS = 3_600_000
SLOW_TO_SAY_SECONDS = 5.0
"""For a record a second, a status that is asked for, and a machine with other things to do."""

SMALL = EnginePhysics(a_seconds=0.010, b_seconds=0.002, c_seconds=0.00006)
"""A tenth of the default engine: its knee is at 20 requests, and a token takes 50 ms with as many in flight."""


def flood(pool: LivePool, count: int, *, output_tokens: int, tier: Tier = Tier.LOW) -> None:
    pool.submit(
        tier,
        *(envelope(f"r-{number}", ttl_ms=TTL_MS, payload=chat(output_tokens=output_tokens)) for number in range(count)),
    )


def share(worker: WorkerProcess) -> int:
    return int(worker.status()["share_requests"])


def seconds_until(what: str, look: Callable[[], bool]) -> float:
    began = time.monotonic()
    wait_until(what, look)
    return time.monotonic() - began


def mean_in_flight(engine: EngineProcess, *, seconds: float) -> float:
    end, seen = time.monotonic() + seconds, []
    while time.monotonic() < end:
        seen.append(engine.stats()["in_flight"])
        time.sleep(0.1)
    return mean(seen)


def test_two_workers_have_no_more_in_flight_than_the_backend_takes(
    new_pool: NewPool, new_worker: NewWorker, tmp_path: Path
) -> None:
    pool = new_pool(partitions=4)
    log_path = tmp_path / "engine.jsonl"
    with running_engine(log_path=log_path) as engine:
        workers = [new_worker(pool, wait=False, backend_url=engine.url, limit_max=LIMIT) for _ in range(2)]
        for worker in workers:
            worker.wait_ready()
        flood(pool, 200, output_tokens=20)
        wait_until("equal shares", lambda: [share(worker) for worker in workers] == [LIMIT // 2] * 2)
        assert workers[0].metric("forebay_backend_workers") == 2
        assert workers[0].metric("forebay_backend_limit_requests") == LIMIT
        pool.results(pool.accepted)
        assert engine.stats()["in_flight_peak"] <= LIMIT
    assert run_more_than_once(read_executions(log_path)) == set()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_killed_workers_share_is_free_within_15_seconds_and_a_new_one_does_not_burst(
    new_pool: NewPool, new_worker: NewWorker
) -> None:
    pool = new_pool(partitions=4)
    with running_engine() as engine:
        one = new_worker(pool, backend_url=engine.url, limit_max=LIMIT)
        two = new_worker(pool, backend_url=engine.url, limit_max=LIMIT)
        flood(pool, 3_000, output_tokens=30)
        wait_until("equal shares", lambda: share(one) == share(two) == LIMIT // 2)
        two.kill()
        seconds = seconds_until("the dead one's share", lambda: share(one) == LIMIT)
        assert seconds < GONE_SECONDS + SLOW_TO_SAY_SECONDS
        three = new_worker(pool, backend_url=engine.url, limit_max=LIMIT)
        wait_until("equal shares again", lambda: share(one) == share(three) == LIMIT // 2)
        # Of the killed worker's requests the engine may still run some: it learns of the end when it writes.
        assert engine.stats()["in_flight_peak"] <= LIMIT + LIMIT // 2


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_worker_cut_off_from_kafka_stops_before_its_share_is_given_away(
    new_kafka: NewKafka, new_pool: NewPool, new_worker: NewWorker, tmp_path: Path
) -> None:
    log_path = tmp_path / "engine.jsonl"
    with behind_proxy(new_kafka) as (kafka, proxy), running_engine(log_path=log_path) as engine:
        pool = new_pool(kafka, partitions=4)
        one = new_worker(pool, backend_url=engine.url, limit_max=LIMIT)
        two = new_worker(pool, backend_url=engine.url, limit_max=LIMIT, bootstrap_servers=f"127.0.0.1:{proxy.port}")
        flood(pool, 4_000, output_tokens=30)
        wait_until("equal shares", lambda: share(one) == share(two) == LIMIT // 2)
        proxy.set(BLACK_HOLE)
        began = time.monotonic()
        # Without a result delivered it stops within 3 s; this is for what has no results to deliver.
        wait_until("the worker stopped", lambda: two.limited_by() == "coordination")
        assert time.monotonic() - began < SILENT_SECONDS + SLOW_TO_SAY_SECONDS
        assert share(two) == 0
        assert share(one) == LIMIT // 2 or time.monotonic() - began > GONE_SECONDS - 2.0
        wait_until("all of the backend", lambda: share(one) == LIMIT)
        wait_until("nothing running", lambda: two.status()["in_flight_requests"] == 0)
        proxy.set(PASS)
        wait_until("equal shares again", lambda: share(one) == share(two) == LIMIT // 2)
        assert engine.stats()["in_flight_peak"] <= LIMIT
        one.terminate()
        two.terminate()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_one_worker_four_and_one_again_keep_the_engine_as_full_as_one_would(
    new_pool: NewPool, new_worker: NewWorker, tmp_path: Path
) -> None:
    pool = new_pool(partitions=8)
    log_path = tmp_path / "engine.jsonl"
    with running_engine(physics=SMALL, log_path=log_path) as engine:
        flood(pool, 6_000, output_tokens=20)

        def start() -> WorkerProcess:
            return new_worker(
                pool, wait=False, backend_url=engine.url, pacing_policy="slo_aimd", limit_start=40, drain_seconds=60
            )

        first = start()
        first.wait_ready()
        # It grows past where it comes to rest, and is back there half a minute later.
        time.sleep(55.0)
        alone = mean_in_flight(engine, seconds=15.0)
        more = [start() for _ in range(3)]
        workers = (first, *more)
        for worker in workers:
            worker.wait_ready()
        wait_until("a share for each", lambda: min(share(worker) for worker in workers) >= 5)
        time.sleep(3.0)
        together = mean_in_flight(engine, seconds=15.0)
        shares = [share(worker) for worker in workers]
        for worker in (first, *more[:2]):
            worker.terminate()
        time.sleep(5.0)
        again = mean_in_flight(engine, seconds=15.0)
        figures = {"alone": alone, "together": together, "again": again, "shares": shares}
        assert together == pytest.approx(alone, rel=0.1), figures
        assert again == pytest.approx(alone, rel=0.1), figures
        assert max(shares) - min(shares) <= 2, figures
        results = pool.results(pool.accepted, seconds=200)
    assert {result.status for result in results.values()} == {"completed"}
    assert run_more_than_once(read_executions(log_path)) == set()
    assert all(len(pool.all_results(request_id)) == 1 for request_id in pool.accepted)
