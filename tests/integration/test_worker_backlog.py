"""A backlog larger than the worker's lanes: it takes what it can use, and the rest waits in Kafka in nobody's way."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from forebay_sandbox.engine.process import running_engine
from forebay_schemas.contract.tiers import Tier
from harness.executions import read_executions
from harness.live_pool import chat, envelope
from harness.signals import frozen
from harness.waiting import wait_until

if TYPE_CHECKING:
    from harness.live_pool import LivePool
    from harness.workers import NewWorker

LANE_RECORDS = 256
FULL_SECONDS_BEFORE_PAUSE = 0.5


def test_a_full_low_lane_keeps_nothing_from_the_high_one_and_loses_nothing(
    pool: LivePool, new_worker: NewWorker, tmp_path: Path
) -> None:
    log_path = tmp_path / "engine.jsonl"
    with running_engine(log_path=log_path, speed=10) as engine:
        worker = new_worker(pool, backend_url=engine.url, limit_max=2)
        pool.submit(Tier.LOW, *(envelope(f"first-{n}", payload=chat(output_tokens=500)) for n in range(2)))
        wait_until("both slots taken", lambda: engine.stats()["in_flight"] == 2)
        with frozen(engine.process):
            pool.submit(Tier.LOW, *(envelope(f"low-{n}") for n in range(800)))
            wait_until("a full lane", lambda: worker.waiting()[Tier.LOW] >= LANE_RECORDS)
            time.sleep(2 * FULL_SECONDS_BEFORE_PAUSE)
            assert worker.waiting()[Tier.LOW] < 800, "it took all there was"
            urgent = pool.submit(Tier.HIGH, *(envelope(f"high-{n}") for n in range(3)))
            wait_until("the urgent ones", lambda: worker.waiting()[Tier.HIGH] == 3)
        pool.results(pool.accepted)
        wait_until("an empty worker", lambda: worker.metric("forebay_unfinished_records") == 0)
    executions = read_executions(log_path)
    assert Counter(one.request_id for one in executions) == dict.fromkeys(pool.accepted, 1)
    in_order = sorted(executions, key=lambda one: one.started_at_ms)
    # Two were at work when the urgent ones came, and one may have been on its way.
    assert set(urgent) <= {one.request_id for one in in_order[:6]}
