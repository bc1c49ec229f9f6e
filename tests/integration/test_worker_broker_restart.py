"""A broker that goes away under load and comes back: nothing is lost, the worker stays."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from forebay_sandbox.engine_process import running_engine
from forebay_schemas.tiers import TIERS, Tier
from harness.commits import CommitWatch
from harness.live_pool import chat, envelope
from harness.waiting import wait_until

if TYPE_CHECKING:
    from forebay_sandbox.pytest_plugin import NewKafka
    from harness.live_pool import NewPool
    from harness.workers import NewWorker


def test_a_broker_restarted_under_load_loses_nothing(
    new_kafka: NewKafka, new_pool: NewPool, new_worker: NewWorker, tmp_path: Path
) -> None:
    kafka = new_kafka()
    pool = new_pool(kafka)
    with running_engine(log_path=tmp_path / "engine.jsonl") as engine:
        worker = new_worker(pool, backend_url=engine.url, limit_max=4)
        with CommitWatch(pool) as watch:
            for tier in TIERS:
                pool.submit(
                    tier, *(envelope(f"{tier}-{number}", payload=chat(output_tokens=10)) for number in range(50))
                )
            wait_until("some of the work", lambda: engine.stats()["completed"] >= 30)
            kafka.brokers[0].stop()
            kafka.brokers[0].start()
            pool.submit(Tier.HIGH, envelope("afterwards"))
            results = pool.results(pool.accepted)
        assert {result.status for result in results.values()} == {"completed"}
        assert len(results) == 151
        assert watch.steps_back == []
        assert worker.get("/livez")[0] == 200
        wait_until("a worker that is ready again", lambda: worker.get("/readyz")[0] == 200)
        worker.terminate()
