"""Costs of a distance between a pool's clients and its brokers, measured: clients and workers are on one side of a
link, the broker on the other. Starts engines and workers; talks to the broker."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forebay_producer import Producer
from forebay_sandbox.engine.physics import EnginePhysics
from forebay_sandbox.engine.process import EngineProcess, running_engine
from forebay_sandbox.kafka.access import KafkaAccess
from forebay_schemas.contract.tiers import Tier
from harness.executions import read_executions, run_more_than_once
from harness.live_pool import LivePool, chat, envelope
from harness.worker_process import WorkerProcess
from harness.workers import running_workers

# A token takes as long whatever else runs, so a full engine serves so many requests a second.
_PHYSICS = EnginePhysics(a_seconds=0.01, b_seconds=0.0, c_seconds=0.0, max_num_seqs=256)
_LIMIT = 16
_TOKENS = 25
_ALONE = 10
_BACKLOG = 600
_TAKEN_OVER = 8
_ROLL_EVERY_SECONDS = 0.1
_AFTER_ROLL_SECONDS = 3.0
_PATIENCE_SECONDS = 240.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Seconds, but for the share. Of lone requests the median is meant."""

    submit_seconds: float
    """From the submit until the broker's acknowledgement."""
    request_seconds: float
    """From the submit until the client had the outcome, without the 0.1 s in the engine."""
    retry_seconds: float
    """From the submit until the outcome, for a request that failed once and ran again after 1 s."""
    busy_share: float
    """Used share of one worker's slots while hundreds of requests waited."""
    take_over_seconds: float
    """From kill -9 until another worker had started all that lay in the dead one's partitions."""
    roll_wait_seconds: float
    """The longest that a high request waited for its start while one worker was replaced by another."""
    run_twice: frozenset[str]
    """Requests of the replacement that ran twice."""


def measure(kafka: KafkaAccess, *, near: KafkaAccess, folder: Path) -> Figures:
    """Clients and workers go by ``kafka``; ``near`` is the same cluster without the link, for what only looks on."""
    folder.mkdir()
    log_path = folder / "engine.jsonl"
    with (
        running_engine(physics=_PHYSICS, log_path=log_path) as engine,
        running_workers(folder) as new_worker,
        closing(LivePool(near, partitions=4)) as pool,
        Producer(bootstrap_servers=kafka.bootstrap_servers, pool=pool.name) as client,
    ):

        def start() -> WorkerProcess:
            servers = kafka.bootstrap_servers
            worker = new_worker(
                pool, wait=False, bootstrap_servers=servers, backend_url=engine.url, limit_max=_LIMIT, drain_seconds=20
            )
            worker.wait_ready(seconds=_PATIENCE_SECONDS)
            return worker

        first = start()
        submit_seconds, request_seconds = _lone_requests(client)
        retry_seconds = _retry(client, engine)
        busy_share = _backlog(pool, log_path)
        second = start()
        take_over_seconds = _take_over(pool, first, log_path)
        due = _replace(client, second, start)
        pool.results(due, seconds=_PATIENCE_SECONDS)
        executions = [one for one in read_executions(log_path) if one.request_id in due]
        started = {one.request_id: one.started_at_ms / 1000 for one in reversed(executions)}
        return Figures(
            submit_seconds=submit_seconds,
            request_seconds=request_seconds,
            retry_seconds=retry_seconds,
            busy_share=busy_share,
            take_over_seconds=take_over_seconds,
            roll_wait_seconds=max(started[request_id] - at for request_id, at in due.items()),
            run_twice=frozenset(run_more_than_once(executions)),
        )


def _request(request_id: str, *, tokens: int, **payload: Any) -> dict[str, Any]:
    return envelope(request_id, priority="high", payload=chat(output_tokens=tokens, **payload))


def _lone_requests(client: Producer) -> tuple[float, float]:
    submits, requests = [], []
    for number in range(_ALONE + 1):
        began = time.monotonic()
        client.submit(_request(f"alone-{number}", tokens=10))
        submits.append(time.monotonic() - began)
        assert client.outcome(f"alone-{number}", timeout_seconds=60).status == "completed"
        requests.append(time.monotonic() - began - 10 * _PHYSICS.a_seconds)
    # The first one finds the topics and its way to their leaders.
    return statistics.median(submits[1:]), statistics.median(requests[1:])


def _retry(client: Producer, engine: EngineProcess) -> float:
    engine.faults({"kind": "status", "status": 408, "match": "unlucky", "count": 1})
    began = time.monotonic()
    client.submit(_request("retried", tokens=10, user="unlucky"))
    outcome = client.outcome("retried", timeout_seconds=60)
    engine.faults()
    assert (outcome.status, outcome.attempt) == ("completed", 2)
    return time.monotonic() - began - 10 * _PHYSICS.a_seconds


def _backlog(pool: LivePool, log_path: Path) -> float:
    ids = pool.submit(
        Tier.MID, *(envelope(f"backlog-{n}", payload=chat(output_tokens=_TOKENS)) for n in range(_BACKLOG))
    )
    pool.results(ids, seconds=_PATIENCE_SECONDS)
    mine = [one for one in read_executions(log_path) if one.request_id.startswith("backlog-")]
    # From the first tenth on: before that the worker finds out that there is something to do.
    mine = sorted(mine, key=lambda one: one.started_at_ms)[_BACKLOG // 10 :]
    span_ms = max(one.ended_at_ms for one in mine) - min(one.started_at_ms for one in mine)
    return sum(one.ended_at_ms - one.started_at_ms for one in mine) / (span_ms * _LIMIT)


def _take_over(pool: LivePool, dying: WorkerProcess, log_path: Path) -> float:
    dying.kill()
    at_ms = time.time() * 1000
    ids = pool.submit(Tier.HIGH, *(_request(f"taken-over-{n}", tokens=1) for n in range(_TAKEN_OVER)))
    pool.results(ids, seconds=_PATIENCE_SECONDS)
    starts = [one.started_at_ms for one in read_executions(log_path) if one.request_id in ids]
    return (max(starts) - at_ms) / 1000


def _replace(client: Producer, old: WorkerProcess, start: Callable[[], WorkerProcess]) -> dict[str, float]:
    """Acknowledgement times of the replacement's requests, by id."""
    due: dict[str, float] = {}
    done = threading.Event()

    def submit() -> None:
        while not done.is_set():
            request_id = f"rolled-{len(due)}"
            client.submit(_request(request_id, tokens=20))
            due[request_id] = time.time()
            done.wait(_ROLL_EVERY_SECONDS)

    load = threading.Thread(target=submit, name="load")
    load.start()
    try:
        start()
        old.terminate()
        done.wait(_AFTER_ROLL_SECONDS)
    finally:
        done.set()
        load.join()
    return due
