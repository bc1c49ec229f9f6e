"""SIGTERM: what runs is finished, nothing new is started, and the next worker does nothing twice."""

from __future__ import annotations

import random
import signal
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from forebay_sandbox.engine.process import running_engine
from forebay_schemas.contract.tiers import Tier
from harness.commits import Commits
from harness.executions import read_executions
from harness.live_pool import chat, envelope
from harness.waiting import wait_until

if TYPE_CHECKING:
    from forebay_sandbox.engine.process import EngineProcess
    from harness.live_pool import LivePool, NewPool
    from harness.workers import NewWorker

LIMIT = 6


def of_mixed_lengths(number: int, chance: random.Random) -> dict[str, Any]:
    return envelope(f"length-{number}", priority=1, payload=chat(output_tokens=chance.choice((1, 2, 5, 40))))


def of_mixed_priorities(number: int, chance: random.Random) -> dict[str, Any]:
    return envelope(f"priority-{number}", priority=chance.randint(0, 10), payload=chat(output_tokens=6))


@pytest.mark.parametrize("make", [of_mixed_lengths, of_mixed_priorities])
def test_a_drained_worker_leaves_nothing_to_do_twice(
    make: Any, pool: LivePool, new_worker: NewWorker, tmp_path: Path
) -> None:
    log_path = tmp_path / "engine.jsonl"
    chance = random.Random(4)
    with running_engine(log_path=log_path) as engine, closing(Commits(pool)) as commits:
        pool.submit(Tier.LOW, *(make(number, chance) for number in range(80)))
        first = new_worker(pool, backend_url=engine.url, limit_max=LIMIT)
        wait_until("a third of the work", lambda: engine.stats()["completed"] >= 25)
        first.terminate()
        done_by_first = {one.request_id for one in read_executions(log_path)}
        assert engine.stats()["in_flight"] == 0
        assert {one.outcome for one in read_executions(log_path)} == {"completed"}
        covered = commits.covered(pool.accepted)
        assert covered <= done_by_first
        # What ran when the partitions were let go of, or was on its way to the results then, is told to the next owner
        # on the coordination topic.
        assert len(done_by_first - covered) <= 2 * LIMIT

        new_worker(pool, backend_url=engine.url, limit_max=LIMIT)
        results = pool.results(pool.accepted)
    runs = Counter(one.request_id for one in read_executions(log_path))
    assert runs == dict.fromkeys(pool.accepted, 1)
    assert len(done_by_first) < 80
    assert {result.worker for result in results.values()} == {"worker-1", "worker-2"}
    assert all(len(pool.all_results(request_id)) == 1 for request_id in pool.accepted)


def test_while_draining_it_is_alive_but_not_ready_and_starts_nothing(
    pool: LivePool, new_worker: NewWorker, engine: EngineProcess
) -> None:
    worker = new_worker(pool, backend_url=engine.url, limit_max=1)
    pool.submit(Tier.MID, envelope("runs", payload=chat(output_tokens=150)), envelope("waits"))
    wait_until("a request at work", lambda: engine.stats()["received"] == 1)
    wait_until("another in its lane", lambda: worker.waiting()[Tier.MID] == 1)
    worker.signal(signal.SIGTERM)
    wait_until("the word draining", lambda: worker.get("/readyz") == (503, "draining\n"))
    assert worker.get("/livez")[0] == 200
    assert worker.status()["state"] == "draining"
    assert worker.process.wait(30) == 0
    assert pool.ended() == {"runs"}
    assert engine.stats()["received"] == 1


def test_what_outlasts_the_drain_is_run_by_the_next_and_nothing_else_is(
    new_pool: NewPool, new_worker: NewWorker, tmp_path: Path
) -> None:
    pool = new_pool(partitions=1)
    log_path = tmp_path / "engine.jsonl"
    with running_engine(log_path=log_path) as engine, closing(Commits(pool)) as commits:
        engine.faults({"kind": "hang", "match": "stubborn", "count": 1})
        first = new_worker(pool, backend_url=engine.url, drain_seconds=0.3)
        pool.submit(Tier.MID, envelope("before"), envelope("stubborn"), *(envelope(f"after-{n}") for n in range(20)))
        wait_until("all but one done", lambda: engine.stats()["completed"] == 21)
        assert first.terminate() < 15
        [(offset, metadata)] = commits.read(Tier.MID).values()
        assert offset == 1
        assert metadata.finished == ((2, 20),)
        new_worker(pool, backend_url=engine.url)
        assert pool.result("stubborn").status == "completed"
        pool.results(pool.accepted)
    runs = Counter(one.request_id for one in read_executions(log_path))
    assert runs == dict.fromkeys(pool.accepted, 1) | {"stubborn": 2}


def test_a_worker_told_to_stop_while_it_starts_stops(
    pool: LivePool, new_worker: NewWorker, engine: EngineProcess
) -> None:
    worker = new_worker(pool, wait=False, backend_url=engine.url)
    worker.wait_listening()
    worker.terminate()
