"""Cancels and expedites that race with the start of their requests: each request ends once and runs once at most."""

from __future__ import annotations

import threading
import time
from collections import Counter
from random import Random
from typing import TYPE_CHECKING

import pytest

from forebay_producer import ControlAction, Handle, Producer
from forebay_sandbox.engine.process import running_engine
from harness.executions import read_executions
from harness.live_pool import LivePool, chat

if TYPE_CHECKING:
    from pathlib import Path

    from harness.workers import NewWorker

RACES = 1_000
SEED = 17


@pytest.mark.long
@pytest.mark.timeout(300)
def test_in_a_thousand_close_races_each_request_ends_once_and_none_runs_twice(
    pool: LivePool, new_worker: NewWorker, tmp_path: Path
) -> None:
    """Two workers of four slots; each wish is sent about when its request starts, half of them cancels."""
    log = tmp_path / "engine.jsonl"
    random = Random(SEED)
    wishes: dict[str, ControlAction] = {}
    with (
        running_engine(log_path=log) as engine,
        Producer(bootstrap_servers=pool.kafka.bootstrap_servers, pool=pool.name) as client,
    ):
        for _ in range(2):
            new_worker(pool, backend_url=engine.url, limit_max=4, pacing_policy="fixed", max_retries=0)
        late: list[threading.Timer] = []
        for number in range(RACES):
            handle = client.submit(
                {
                    "request_id": f"r{number}",
                    "biz_type": "chat_completion",
                    "priority": "low",
                    "payload": chat(output_tokens=1 + number % 4),
                }
            )
            assert isinstance(handle, Handle)
            action = random.choice(list(ControlAction))
            wishes[handle.request_id] = action
            ask = handle.cancel if action is ControlAction.CANCEL else handle.expedite
            timer = threading.Timer(random.random() * 0.04, ask, kwargs={"wait_seconds": 0})
            timer.start()
            late.append(timer)
            time.sleep(0.005)
        for timer in late:
            timer.join()
        results = pool.results(wishes, seconds=120)
    ran = Counter(execution.request_id for execution in read_executions(log))
    completed = Counter(execution.request_id for execution in read_executions(log) if execution.outcome == "completed")
    assert set(ran.values()) == {1}, "something ran twice"
    for name, action in wishes.items():
        result = results[name]
        assert len(pool.all_results(name)) == 1
        if action is ControlAction.EXPEDITE:
            assert result.status == "completed"
            assert completed[name] == 1
        else:
            assert result.status in ("completed", "cancelled")
    ended = Counter((str(wishes[name]), str(result.status), result.tier) for name, result in results.items())
    # The races were close: each way to end was met.
    assert ended["cancel", "cancelled", "low"] > RACES / 50
    assert ended["cancel", "completed", "low"] > RACES / 50
    assert ended["expedite", "completed", "low"] > RACES / 50
    assert ended["expedite", "completed", "high"] > RACES / 50
