"""Hand-over: a worker that must release a partition finishes its running requests, and the next one waits for its
notice."""

from __future__ import annotations

import signal
from contextlib import closing
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from forebay_schemas.contract.tiers import Tier
from harness.commits import Commits
from harness.gate import HANDLER, Gate
from harness.live_pool import envelope
from harness.protocols import PROTOCOLS, protocol_properties
from harness.waiting import wait_until

if TYPE_CHECKING:
    from forebay_sandbox.kafka.local import LocalKafka
    from harness.live_pool import LivePool, NewPool
    from harness.worker_process import WorkerProcess
    from harness.workers import NewWorker

LET_GO_SECONDS_MAX = 5.0
"""The promise is a second; five are for a busy machine, and still far from the session's end."""


def let_go_seconds(worker: WorkerProcess) -> float:
    """Time from the beginning of the drain until the last partition was released, by the worker's log."""
    [draining] = worker.logged("draining")
    gone = worker.logged("partitions released")
    assert gone
    return (_at(gone[-1]["timestamp"]) - _at(draining["timestamp"])).total_seconds()


def _at(timestamp: str) -> datetime:
    return datetime.fromisoformat(timestamp)


def withheld(worker: WorkerProcess) -> int:
    held: int = worker.status()["intakes"]["mid"]["held_records"]
    return held


def run_at_gate(pool: LivePool, worker: WorkerProcess, gate: Gate, count: int) -> list[str]:
    """Requests of an hour that run in this worker."""
    ids = pool.submit(
        Tier.MID, *(envelope(f"long-{number}", ttl_ms=3_600_000, payload=gate.payload()) for number in range(count))
    )
    wait_until("all at work", lambda: worker.status()["in_flight_requests"] == count)
    return ids


def says_nothing_beyond(commits: Commits, offset: int) -> bool:
    """Whether that is what is committed of mid's one partition, and nothing beyond it is finished or runs."""
    [(committed, said)] = commits.read(Tier.MID).values()
    return committed == offset and (said.finished, said.running, said.waiting, said.handed_over) == ((), (), (), ())


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_runs_is_handed_from_worker_to_worker_and_runs_once(
    protocol: str, brisk_kafka: LocalKafka, new_pool: NewPool, new_worker: NewWorker, tmp_path: Path
) -> None:
    pool, gate = new_pool(brisk_kafka, partitions=1), Gate(tmp_path)
    requests = pool.topics.requests(Tier.MID)
    properties = protocol_properties(tmp_path, protocol)
    start = partial(new_worker, pool, handler=HANDLER, limit_max=8, drain_seconds=300, kafka_properties=properties)
    first = start()
    long = run_at_gate(pool, first, gate, 4)
    second = start(wait=False)
    second.wait_listening()
    first.signal(signal.SIGTERM)
    wait_until("a second owner that withholds what runs", lambda: withheld(second) == 4)
    assert second.assigned(requests) == [0]
    assert let_go_seconds(first) < LET_GO_SECONDS_MAX
    assert first.status()["handed_over_running"] == first.status()["in_flight_requests"] == 4
    assert first.metric("forebay_handed_over_requests") == 4
    assert first.metric("forebay_handed_over_total", direction="given") == 4
    assert second.metric("forebay_handed_over_total", direction="taken") == 4
    pool.submit(Tier.MID, envelope("behind-1", payload=gate.noted()))
    assert pool.result("behind-1").worker == "worker-2"

    third = start(wait=False)
    third.wait_listening()
    second.terminate()
    wait_until("a third owner that withholds what runs", lambda: withheld(third) == 4)
    pool.submit(Tier.MID, envelope("behind-2", payload=gate.noted()))
    assert pool.result("behind-2").worker == "worker-3"

    gate.open()
    assert {result.worker for result in pool.results(long).values()} == {"worker-1"}
    assert first.process.wait(60) == 0
    with closing(Commits(pool)) as commits:
        wait_until("a commit behind all", lambda: says_nothing_beyond(commits, 6))
    assert gate.starts() == dict.fromkeys(pool.accepted, 1)
    assert third.status()["in_flight_requests"] == 0


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_worker_that_joins_takes_partitions_and_leaves_what_runs(
    protocol: str, brisk_kafka: LocalKafka, new_pool: NewPool, new_worker: NewWorker, tmp_path: Path
) -> None:
    pool, gate = new_pool(brisk_kafka, partitions=4), Gate(tmp_path)
    requests = pool.topics.requests(Tier.MID)
    properties = protocol_properties(tmp_path, protocol)
    start = partial(new_worker, pool, handler=HANDLER, limit_max=16, kafka_properties=properties)
    first = start()
    long = run_at_gate(pool, first, gate, 16)
    second = start()
    wait_until("a fair share", lambda: len(second.assigned(requests)) == len(first.assigned(requests)) == 2)
    moved = sum(place.partition in second.assigned(requests) for place in pool.accepted.values())
    wait_until("all of them withheld", lambda: withheld(second) == moved)
    assert first.status()["handed_over_running"] == moved
    gate.open()
    assert {result.worker for result in pool.results(long).values()} == {"worker-1"}
    wait_until("nothing withheld", lambda: withheld(second) == 0)
    wait_until("nothing handed over", lambda: first.status()["handed_over_running"] == 0)
    first.terminate()
    second.terminate()
    with closing(Commits(pool)) as commits:
        assert commits.covered(pool.accepted) == set(long)
    assert gate.starts() == dict.fromkeys(long, 1)


def test_what_outlasts_the_drain_is_given_back_and_runs_in_the_new_owner_at_once(
    new_pool: NewPool, new_worker: NewWorker, tmp_path: Path
) -> None:
    pool, gate = new_pool(partitions=1), Gate(tmp_path)
    start = partial(new_worker, pool, handler=HANDLER, drain_seconds=2)
    first = start()
    long = run_at_gate(pool, first, gate, 2)
    second = start()
    first.terminate()
    wait_until("the second run", lambda: gate.starts() == dict.fromkeys(long, 2))
    assert second.logged("lease ended unheard") == []
    gate.open()
    assert {(result.worker, result.attempt) for result in pool.results(long).values()} == {("worker-2", 1)}


def test_what_a_worker_ran_that_is_killed_in_its_drain_runs_again_when_its_lease_ends(
    new_pool: NewPool, new_worker: NewWorker, tmp_path: Path
) -> None:
    pool, gate = new_pool(partitions=1), Gate(tmp_path)
    start = partial(new_worker, pool, handler=HANDLER, drain_seconds=300)
    first = start()
    long = run_at_gate(pool, first, gate, 2)
    second = start()
    first.signal(signal.SIGTERM)
    wait_until("a second owner that withholds what runs", lambda: withheld(second) == 2)
    first.kill()
    wait_until("the second run", lambda: gate.starts() == dict.fromkeys(long, 2))
    assert second.logged("lease ended unheard")
    gate.open()
    assert {result.worker for result in pool.results(long).values()} == {"worker-2"}
