"""A backend that is away or says no to everyone: requests wait, none is charged, and work goes on when it is back."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from forebay_sandbox.engine.process import running_engine
from forebay_schemas.contract.tiers import TIERS, Tier
from harness.executions import read_executions
from harness.live_pool import chat, envelope
from harness.waiting import wait_until

if TYPE_CHECKING:
    from harness.live_pool import LivePool
    from harness.workers import NewWorker

OUTAGE_SECONDS = 4.0


def test_an_outage_of_the_backend_charges_no_request(pool: LivePool, new_worker: NewWorker, tmp_path: Path) -> None:
    log_path = tmp_path / "engine.jsonl"
    with running_engine(log_path=log_path) as engine:
        worker = new_worker(pool, backend_url=engine.url, limit_max=8)
        for tier in TIERS:
            pool.submit(tier, *(envelope(f"{tier}-{number}", payload=chat(output_tokens=10)) for number in range(50)))
        wait_until("some of the work", lambda: engine.stats()["completed"] >= 20)
        engine.faults({"kind": "refuse"})
        away_since = time.monotonic()
        wait_until("an open breaker", lambda: worker.status()["breaker"]["state"] == "open")
        assert worker.metric("forebay_breaker_open") == 1
        assert worker.get("/readyz")[0] == 200, "a worker that waits for its backend is no reason to restart it"
        done_before = len(pool.ended())
        time.sleep(max(0.0, away_since + OUTAGE_SECONDS - time.monotonic()))
        assert len(pool.ended()) <= done_before + 8
        assert worker.limited_by() in {"breaker", None}
        back_at_ms = time.time_ns() // 1_000_000
        engine.faults()
        away_seconds = time.monotonic() - away_since
        results = pool.results(pool.accepted)
        assert {(result.status, result.attempt) for result in results.values()} == {("completed", 1)}
        assert len(results) == 150
        assert worker.status()["breaker"]["state"] == "closed"
        assert worker.metric("forebay_breaker_open") == 0
        assert worker.metric("forebay_breaker_opened_total") >= 1
        assert worker.metric("forebay_backend_failures_total") >= 1
        assert worker.metric("forebay_dead_letters_total") == 0
        # What ran when it went, and 0.5, 1, 2, 4 and then 5 s after each other: few knocks at a door that is shut.
        assert worker.metric("forebay_backend_failures_total") <= 8 + 4 + away_seconds / 5
        after = [one for one in read_executions(log_path) if one.started_at_ms >= back_at_ms]
        # The next knock is at most 5 s away. At the full rate 60 take about a second, one by one they would take 6.
        assert (min(one.started_at_ms for one in after) - back_at_ms) / 1000 < 8
        full_rate = after[-60:]
        assert (full_rate[-1].ended_at_ms - full_rate[0].started_at_ms) / 1000 < 5


def test_an_outage_in_the_middle_of_a_stream_charges_nobody(pool: LivePool, new_worker: NewWorker) -> None:
    with running_engine() as engine:
        new_worker(pool, backend_url=engine.url, limit_max=4)
        ids = pool.submit(
            Tier.MID,
            *(envelope(f"stream-{number}", payload=chat(output_tokens=80, stream=True)) for number in range(4)),
        )
        wait_until("four streams", lambda: engine.stats()["running"] == 4)
        engine.faults({"kind": "refuse", "seconds": 1})
        assert {result.status for result in pool.results(ids).values()} == {"completed"}


def test_a_backend_that_refuses_everyone_is_left_alone_for_as_long_as_it_asks(
    pool: LivePool, new_worker: NewWorker, tmp_path: Path
) -> None:
    log_path = tmp_path / "engine.jsonl"
    with running_engine(log_path=log_path) as engine:
        engine.faults({"kind": "status", "status": 429, "retry_after_seconds": 2})
        worker = new_worker(pool, backend_url=engine.url, limit_max=3)
        ids = pool.submit(Tier.HIGH, *(envelope(f"refused-{number}") for number in range(6)))

        def everyone_was_refused() -> bool:
            status = worker.status()
            return bool(status["breaker"]["state"] == "open" and status["in_flight_requests"] == 0)

        wait_until("an open breaker and nothing in flight", everyone_was_refused)
        engine.faults()
        results = pool.results(ids)
    assert {(result.status, result.attempt) for result in results.values()} == {("completed", 1)}
    executions = read_executions(log_path)
    refused = [one.ended_at_ms for one in executions if one.status == 429]
    served = [one.started_at_ms for one in executions if one.status == 200]
    assert len(refused) >= 2
    assert min(served) - max(refused) >= 1_900


def test_a_request_that_breaks_the_backend_each_time_is_not_tried_for_ever(
    pool: LivePool, new_worker: NewWorker
) -> None:
    with running_engine() as engine:
        engine.faults({"kind": "cut", "where": "before", "match": "poison"})
        new_worker(pool, backend_url=engine.url, limit_max=2, max_retries=0)
        enough = threading.Event()

        def send() -> None:
            number = 0
            while not enough.wait(0.05):
                pool.submit(Tier.HIGH, envelope(f"ordinary-{number}"))
                number += 1

        pool.submit(Tier.HIGH, envelope("poison"))
        sender = threading.Thread(target=send, name="sender")
        sender.start()
        try:
            wait_until("an end of the poison", lambda: engine.fault_hits()[0] >= 1)
            time.sleep(0.2)
        finally:
            enough.set()
            sender.join()
        results = pool.results(pool.accepted)
        assert (results["poison"].status, results["poison"].reason) == ("failed", "backend_unavailable")
        assert {result.status for name, result in results.items() if name != "poison"} == {"completed"}


def test_an_outage_with_thousands_waiting_costs_no_memory_and_no_dead_letter(
    pool: LivePool, new_worker: NewWorker, tmp_path: Path
) -> None:
    log_path = tmp_path / "engine.jsonl"
    with running_engine(log_path=log_path, speed=10) as engine:
        engine.faults({"kind": "refuse"})
        worker = new_worker(pool, backend_url=engine.url, limit_max=64)
        pool.submit(Tier.LOW, *(envelope(f"low-{number}", ttl_ms=3_600_000) for number in range(3_000)))
        wait_until(
            "an open breaker and all it may hold",
            lambda: worker.status()["intakes"]["low"]["unfinished_records"] >= 250,
        )
        wait_until("an open breaker", lambda: worker.status()["breaker"]["state"] == "open")
        before = worker.metric("process_resident_memory_bytes")
        knocks = worker.metric("forebay_backend_failures_total")
        time.sleep(OUTAGE_SECONDS)
        assert worker.metric("process_resident_memory_bytes") - before < 10 * 1024 * 1024
        assert worker.metric("forebay_backend_failures_total") - knocks <= OUTAGE_SECONDS / 0.5
        assert pool.ended() == set()
        engine.faults()
        results = pool.results(pool.accepted)
        assert {(result.status, result.attempt) for result in results.values()} == {("completed", 1)}
        assert worker.metric("forebay_dead_letters_total") == 0
        assert worker.metric("forebay_retries_total") == 0
        assert worker.status()["breaker"]["state"] == "closed"
