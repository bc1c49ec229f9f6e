"""The same request sent twice: run once when its outcome is known, and each record finished all the same."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from forebay_schemas.contract.tiers import Tier
from harness.gate import HANDLER, Gate
from harness.live_pool import envelope
from harness.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from harness.live_pool import NewPool
    from harness.worker_process import WorkerProcess
    from harness.workers import NewWorker


def skipped(worker: WorkerProcess, **labels: str) -> float:
    return sum(worker.metric(name, **labels) or 0 for name in ("forebay_duplicates_total", "forebay_settled_total"))


def test_an_id_whose_outcome_is_known_runs_once_wherever_it_comes_again(
    new_pool: NewPool, new_worker: NewWorker, tmp_path: Path
) -> None:
    pool, gate = new_pool(partitions=4), Gate(tmp_path)
    worker = new_worker(pool, handler=HANDLER)
    whole = envelope("twice", payload=gate.noted())
    pool.submit(Tier.MID, whole)
    pool.result("twice")
    # The outcome can be read before the worker hears that it is written; until then it is not known.
    wait_until("nothing unfinished", lambda: worker.metric("forebay_unfinished_records") == 0)
    value = json.dumps(whole).encode()
    places = {pool.send(Tier.MID, value, key=f"key-{number}".encode()).partition for number in range(8)}
    pool.send(Tier.LOW, value, key=b"twice")
    assert len(places) > 1
    # What comes soon after a partition without any commit may be found on the results topic, before it is handed on.
    wait_until("all of them skipped", lambda: skipped(worker) == 9)
    assert skipped(worker, tier="mid") == 8
    last = pool.submit(Tier.MID, envelope("last", payload=gate.noted()))
    pool.results(last)
    wait_until("nothing unfinished", lambda: worker.metric("forebay_unfinished_records") == 0)
    assert gate.starts() == {"twice": 1, "last": 1}
    assert len(pool.all_results("twice")) == 1
    worker.terminate()
    committed = pool.kafka.committed(pool.topics.group(Tier.MID), pool.topics.requests(Tier.MID))
    assert sum(committed.values()) == 10
