"""A handler that kills its worker, however soon: a dead letter after three workers at most, and nobody else is."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from forebay_schemas.contract import headers as h
from forebay_schemas.contract.tiers import Tier
from harness.gate import HANDLER, Gate
from harness.live_pool import envelope
from harness.protocols import protocol_properties
from harness.waiting import wait_until

if TYPE_CHECKING:
    from forebay_sandbox.kafka.local import LocalKafka
    from harness.live_pool import LivePool, NewPool
    from harness.worker_process import WorkerProcess
    from harness.workers import NewWorker

INNOCENTS = 5
DEATHS_MAX = 3


@pytest.fixture
def properties(tmp_path: Path) -> Path:
    """A worker that died is missed after a second."""
    path = protocol_properties(tmp_path, "cooperative-sticky")
    path.write_text("session.timeout.ms=1000\nheartbeat.interval.ms=300\n", encoding="utf-8")
    return path


def kept_running(pool: LivePool, start: Any, until_ended: str) -> int:
    """Starts a worker whenever the last one has died, until a request has its outcome; returns how many died."""
    deaths = 0
    worker: WorkerProcess = start()

    def is_over() -> bool:
        nonlocal deaths, worker
        if until_ended in pool.ended():
            return True
        if worker.process.poll() is not None:
            deaths += 1
            assert deaths <= DEATHS_MAX, f"{deaths} workers died"
            worker = start()
        return False

    wait_until(f"an outcome of {until_ended}", is_over, seconds=120.0)
    return deaths


@pytest.mark.parametrize("seconds", [0.0, 0.1, 0.3])
def test_a_poison_is_convicted_however_soon_it_kills_and_whoever_runs_beside_it_completes(
    seconds: float, brisk_kafka: LocalKafka, new_pool: NewPool, new_worker: NewWorker, tmp_path: Path, properties: Path
) -> None:
    pool, gate = new_pool(brisk_kafka, partitions=1), Gate(tmp_path)
    poison = gate.noted() | {"do": "kill_after", "seconds": seconds}
    beside = gate.noted() | {"do": "note_and_sleep", "seconds": 0.5}
    innocents = [envelope(f"innocent-{number}", ttl_ms=600_000, payload=beside) for number in range(INNOCENTS)]
    pool.submit(Tier.MID, *innocents[:3], envelope("poison", ttl_ms=600_000, payload=poison), *innocents[3:])

    def start() -> WorkerProcess:
        return new_worker(pool, wait=False, handler=HANDLER, limit_max=8, kafka_properties=properties)

    deaths = kept_running(pool, start, "poison")
    results = pool.results(pool.accepted)
    assert (results["poison"].status, results["poison"].reason) == ("failed", "worker_crashed")
    assert {results[name].status for name in results if name != "poison"} == {"completed"}
    # A worker that went on to the end: whatever would have been reported twice has been.
    pool.submit(Tier.MID, envelope("last", payload=gate.noted()))
    assert pool.result("last").status == "completed"
    assert {name: len(pool.all_results(name)) for name in results} == dict.fromkeys(results, 1)
    [letter] = pool.dead_letters(1)
    assert letter.key() == b"poison"
    said = dict(letter.headers() or [])
    assert said[h.REASON] == b"worker_crashed"
    assert b"was ended by SIGKILL" in (said["kafka_dlt-exception-message"] or b"")
    assert gate.starts()["poison"] == deaths + 1, "the last time in a process of its own"


def test_how_the_process_of_a_suspect_died_is_told(
    brisk_kafka: LocalKafka, new_pool: NewPool, new_worker: NewWorker, tmp_path: Path, properties: Path
) -> None:
    pool, gate = new_pool(brisk_kafka, partitions=1), Gate(tmp_path)
    poison = gate.noted() | {"do": "kill_after", "seconds": 0.0, "signal": signal.SIGSEGV.name}
    pool.submit(Tier.HIGH, envelope("poison", ttl_ms=600_000, payload=poison))

    def start() -> WorkerProcess:
        return new_worker(pool, wait=False, handler=HANDLER, limit_max=8, kafka_properties=properties)

    kept_running(pool, start, "poison")
    [letter] = pool.dead_letters(1)
    assert b"was ended by SIGSEGV" in (dict(letter.headers() or [])["kafka_dlt-exception-message"] or b"")
