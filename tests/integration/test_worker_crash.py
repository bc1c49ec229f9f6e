"""kill -9: nothing accepted is lost, and only what the last commit could not know is run again."""

from __future__ import annotations

import random
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forebay_sandbox.engine.process import running_engine
from forebay_schemas.contract.tiers import TIERS
from harness.commits import Commits
from harness.executions import read_executions, run_more_than_once
from harness.live_pool import chat, envelope
from harness.waiting import wait_until

if TYPE_CHECKING:
    from harness.live_pool import LivePool
    from harness.workers import NewWorker

COMMIT_AGE_SECONDS_MAX = 2.0
"""Upper bound on the age of the last commit at a crash: ten times the interval, for a busy machine."""


def test_a_killed_worker_loses_nothing(pool: LivePool, new_worker: NewWorker, tmp_path: Path) -> None:
    log_path = tmp_path / "engine.jsonl"
    lengths = random.Random(3)
    # The shortest session that brokers allow: the second worker gets the partitions when it has passed.
    properties = tmp_path / "kafka.properties"
    properties.write_text("session.timeout.ms=6000\n")
    with running_engine(log_path=log_path) as engine, closing(Commits(pool)) as commits:
        settings: dict[str, Any] = {"backend_url": engine.url, "limit_max": 4, "kafka_properties": properties}
        for tier in TIERS:
            pool.submit(
                tier,
                *(
                    envelope(f"{tier}-{number}", payload=chat(output_tokens=lengths.randint(1, 30)))
                    for number in range(30)
                ),
            )
        first = new_worker(pool, **settings)
        wait_until("some of the work", lambda: engine.stats()["completed"] >= 40)
        killed_at_ms = time.time_ns() // 1_000_000
        first.kill()
        wait_until("an engine that has noticed", lambda: engine.stats()["in_flight"] == 0)
        covered = commits.covered(pool.accepted)
        before = read_executions(log_path)
        assert len(covered) < len(pool.accepted)
        new_worker(pool, **settings)
        results = pool.results(pool.accepted)

    assert len(results) == 90
    assert {result.status for result in results.values()} == {"completed"}
    again = run_more_than_once(read_executions(log_path))
    in_flight = {one.request_id for one in before if one.outcome == "disconnected"}
    since_commit = {one.request_id for one in before if one.outcome == "completed"} - covered
    assert again <= in_flight | since_commit
    assert not again & covered
    long_done = {
        one.request_id
        for one in before
        if one.outcome == "completed" and one.ended_at_ms < killed_at_ms - COMMIT_AGE_SECONDS_MAX * 1000
    }
    assert long_done <= covered
