"""Order and bound: the more urgent runs first, and never more at once than the limit."""

from __future__ import annotations

import random
import statistics
from pathlib import Path
from typing import TYPE_CHECKING

from forebay_sandbox.engine.process import running_engine
from forebay_schemas.contract.tiers import TIERS, Tier
from harness.executions import read_executions
from harness.live_pool import chat, envelope
from harness.signals import frozen
from harness.waiting import wait_until

if TYPE_CHECKING:
    from harness.live_pool import LivePool
    from harness.served import Served
    from harness.workers import NewWorker


def test_high_runs_before_mid_before_low_and_by_priority_within(
    pool: LivePool, new_worker: NewWorker, tmp_path: Path
) -> None:
    log_path = tmp_path / "engine.jsonl"
    priorities = {Tier.HIGH: (7, 8, 9, 10), Tier.MID: (4, 5, 6), Tier.LOW: (0, 1, 2, 3)}
    backlog = {
        tier: [
            envelope(f"{tier}-{priority}-{number}", priority=priority)
            for number in range(4)
            for priority in priorities[tier]
        ]
        for tier in TIERS
    }
    with running_engine(log_path=log_path) as engine:
        worker = new_worker(pool, backend_url=engine.url, limit_max=1)
        pool.submit(Tier.HIGH, envelope("first", payload=chat(output_tokens=100)))
        wait_until("the first request at work", lambda: engine.stats()["in_flight"] == 1)
        with frozen(engine.process):
            for tier in reversed(TIERS):
                random.Random(1).shuffle(backlog[tier])
                pool.submit(tier, *backlog[tier])
            wait_until(
                "all the others in their lanes",
                lambda: worker.waiting() == {tier: len(backlog[tier]) for tier in TIERS},
            )
        pool.results(pool.accepted)
        ran = [execution.request_id for execution in read_executions(log_path)]
    assert ran[0] == "first"
    urgency = [tuple(request_id.split("-")[:2]) for request_id in ran[1:]]
    expected = [(str(tier), str(priority)) for tier in TIERS for priority in reversed(priorities[tier])]
    assert urgency == [each for each in expected for _ in range(4)]


def test_the_limit_is_reached_and_never_exceeded(pool: LivePool, new_worker: NewWorker) -> None:
    lengths = random.Random(2)
    with running_engine() as engine:
        for tier in TIERS:
            pool.submit(
                tier,
                *(
                    envelope(f"{tier}-{number}", payload=chat(output_tokens=lengths.randint(1, 10)))
                    for number in range(40)
                ),
            )
        worker = new_worker(pool, backend_url=engine.url, limit_max=6)
        results = pool.results(pool.accepted)
        assert {result.status for result in results.values()} == {"completed"}
        assert engine.stats()["in_flight_peak"] == 6
        assert engine.stats()["received"] == 120
        assert worker.metric("forebay_limit_requests") == 6


def test_a_lone_request_is_started_at_once(served: Served) -> None:
    waited = []
    for number in range(15):
        [request_id] = served.pool.submit(Tier.HIGH, envelope(f"lone-{number}"))
        queue_seconds = served.pool.result(request_id).queue_seconds
        assert queue_seconds is not None
        waited.append(queue_seconds)
    # A consumer that waits for its batch to fill would take half a second.
    assert statistics.median(waited) < 0.3
