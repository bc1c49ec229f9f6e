"""kill -9 in full flow: what has its outcome on the results topic is not run again, by the engine's own log."""

from __future__ import annotations

import random
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from forebay_sandbox.engine.process import EngineProcess, running_engine
from forebay_schemas.contract.tiers import TIERS
from harness.executions import read_executions, run_more_than_once
from harness.live_pool import chat, envelope
from harness.repeats import outcomes_written_ms, run_after_outcome
from harness.waiting import wait_until

if TYPE_CHECKING:
    from forebay_sandbox.kafka.local import LocalKafka
    from harness.live_pool import LivePool, NewPool
    from harness.worker_process import WorkerProcess
    from harness.workers import NewWorker

REQUESTS_A_ROUND = 180
ROUNDS_MAX = 8


def submit_round(pool: LivePool, round_number: int, count: int, lengths: random.Random) -> None:
    for tier in TIERS:
        pool.submit(
            tier,
            *(
                envelope(
                    f"{tier}-{round_number}-{number}",
                    payload=chat(output_tokens=lengths.randint(1, 12)),
                    ttl_ms=600_000,
                )
                for number in range(count // len(TIERS))
            ),
        )


def has_completed(engine: EngineProcess, count: int) -> bool:
    return engine.stats()["completed"] >= count


def settled(workers: list[WorkerProcess]) -> float:
    return sum(worker.metric("forebay_settled_total", tier=tier) for worker in workers for tier in TIERS)


def looks(workers: list[WorkerProcess], outcome: str) -> float:
    return sum(worker.metric("forebay_results_looks_total", outcome=outcome) for worker in workers)


def test_what_has_its_outcome_is_not_run_again_after_a_kill(
    brisk_kafka: LocalKafka, new_pool: NewPool, new_worker: NewWorker, tmp_path: Path
) -> None:
    pool = new_pool(brisk_kafka, partitions=3)
    log_path, lengths = tmp_path / "engine.jsonl", random.Random(5)
    properties = tmp_path / "kafka.properties"
    properties.write_text("session.timeout.ms=3000\nheartbeat.interval.ms=500\n")
    with running_engine(log_path=log_path) as engine:
        settings: dict[str, Any] = {"backend_url": engine.url, "limit_max": 8, "kafka_properties": properties}
        workers = [new_worker(pool, **settings) for _ in range(3)]
        for round_number in range(ROUNDS_MAX):
            wanted = engine.stats()["completed"] + 40
            submit_round(pool, round_number, REQUESTS_A_ROUND, lengths)
            wait_until("full flow", partial(has_completed, engine, wanted))
            workers.pop(0).kill()
            workers.append(new_worker(pool, **settings))
            pool.results(pool.accepted)
            if settled(workers) > 0:
                break
        assert settled(workers) > 0, "nothing was in doubt: this proves nothing"
        assert looks(workers, "given_up") == 0

    executions = read_executions(log_path)
    assert run_more_than_once(executions), "what ran in the killed workers runs again"
    assert run_after_outcome(executions, outcomes_written_ms(pool)) == []


@pytest.mark.long
def test_six_kills_in_a_minute_and_three_thousand_requests_run_nothing_after_its_outcome(
    new_pool: NewPool, new_worker: NewWorker, tmp_path: Path
) -> None:
    pool = new_pool(partitions=6)
    log_path, lengths = tmp_path / "engine.jsonl", random.Random(7)
    with running_engine(log_path=log_path) as engine:
        settings: dict[str, Any] = {"backend_url": engine.url, "limit_max": 8}
        workers = [new_worker(pool, **settings) for _ in range(3)]
        began = time.monotonic()
        for round_number in range(6):
            submit_round(pool, round_number, 500 // 3 * 3 + 3, lengths)
            wait_until("some of the work", partial(has_completed, engine, engine.stats()["completed"] + 100))
            time.sleep(max(0.0, began + round_number * 10 - time.monotonic()))
            workers.pop(0).kill()
            workers.append(new_worker(pool, **settings))
        pool.results(pool.accepted, seconds=180)
        assert len(pool.accepted) >= 3_000
        assert looks(workers, "given_up") == 0

    assert run_after_outcome(read_executions(log_path), outcomes_written_ms(pool)) == []
