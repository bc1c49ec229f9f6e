"""Workers that join and leave while traffic flows: nothing is lost, and commits never go back."""

from __future__ import annotations

import itertools
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forebay_sandbox.engine.process import running_engine
from forebay_schemas.contract.tiers import TIERS
from harness.commits import CommitWatch
from harness.live_pool import chat, envelope
from harness.waiting import wait_until

if TYPE_CHECKING:
    from harness.live_pool import NewPool
    from harness.worker_process import WorkerProcess
    from harness.workers import NewWorker


def has_served(worker: WorkerProcess) -> bool:
    return worker.metric("forebay_outcomes_total", status="completed") > 0


def test_workers_joining_and_leaving_under_traffic_lose_nothing(
    new_pool: NewPool, new_worker: NewWorker, tmp_path: Path
) -> None:
    pool = new_pool(partitions=4)
    enough = threading.Event()

    def send() -> None:
        for number in itertools.count():
            tier = TIERS[number % 3]
            pool.submit(tier, envelope(f"{tier}-{number}", payload=chat(output_tokens=1 + number % 17)))
            if enough.wait(0.02):
                return

    with running_engine(log_path=tmp_path / "engine.jsonl") as engine, CommitWatch(pool) as watch:
        settings: dict[str, Any] = {"backend_url": engine.url, "limit_max": 8}
        sender = threading.Thread(target=send, name="sender")
        sender.start()
        try:
            here = new_worker(pool, **settings)
            for _ in range(3):
                other = new_worker(pool, **settings)
                wait_until("traffic for both", partial(has_served, other))
                here.terminate()
                here = other
        finally:
            enough.set()
            sender.join()
        results = pool.results(pool.accepted)
        here.terminate()
    assert {result.status for result in results.values()} == {"completed"}
    assert len({result.worker for result in results.values()}) == 4
    assert watch.looks > 10
    assert watch.steps_back == []
