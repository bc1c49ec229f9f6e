"""Permissions taken away from a running worker: it says so, loses nothing, and goes on when it has them again."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from forebay_sandbox.kafka.local import local_kafka
from forebay_schemas.contract.tiers import Tier
from harness.gate import HANDLER, Gate
from harness.guarded_kafka import DESCRIBE, GUARDED, READ, WRITE, denied, worker_properties
from harness.live_pool import LivePool, envelope
from harness.waiting import wait_until
from harness.workers import running_workers

if TYPE_CHECKING:
    from forebay_sandbox.kafka.access import KafkaAccess
    from harness.worker_process import WorkerProcess

TURN_SECONDS = 1.0
"""A turn of the intake takes a fifth of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarded:
    """A pool on a guarded broker, and its worker, which comes as a user of its own."""

    pool: LivePool
    worker: WorkerProcess
    gate: Gate


@pytest.fixture(scope="module")
def guarded(
    kafka: KafkaAccess,  # noqa: ARG001 - skips the tests where no broker can run
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    with (
        local_kafka(GUARDED, log_dir=tmp_path_factory.mktemp("guarded-kafka-log")) as cluster,
        closing(LivePool(cluster, partitions=1)) as pool,
        running_workers(folder) as new_worker,
    ):
        worker = new_worker(pool, handler=HANDLER, limit_max=4, kafka_properties=worker_properties(folder))
        yield Guarded(pool=pool, worker=worker, gate=Gate(folder))


def readiness(worker: WorkerProcess) -> str:
    """Problems in /readyz."""
    status, said = worker.get("/readyz")
    return said if status == 503 else ""


def submit(guarded: Guarded, tier: Tier, name: str) -> list[str]:
    gate = guarded.gate
    return guarded.pool.submit(tier, *(envelope(f"{name}-{n}", payload=gate.noted()) for n in range(5)))


def test_permission_to_read_taken_away_is_loudly_missed_and_nothing_is_lost(guarded: Guarded) -> None:
    pool, worker = guarded.pool, guarded.worker
    topic = pool.topics.requests(Tier.MID)
    pool.results(submit(guarded, Tier.MID, "allowed"))
    with denied(pool.kafka, topic, READ):
        waiting = submit(guarded, Tier.MID, "unreadable")
        wait_until("a worker that says so", lambda: topic in readiness(worker))
        assert worker.get("/livez")[0] == 200
        others = submit(guarded, Tier.HIGH, "others")
        pool.results(others)
    pool.results(waiting)
    assert all(guarded.gate.starts()[request_id] == 1 for request_id in [*waiting, *others])
    wait_until("a ready worker", lambda: worker.get("/readyz")[0] == 200)


def test_permission_to_see_a_topic_taken_away_is_loudly_missed_and_nothing_is_lost(guarded: Guarded) -> None:
    pool, worker = guarded.pool, guarded.worker
    topic = pool.topics.requests(Tier.LOW)
    pool.results(submit(guarded, Tier.LOW, "seen"))
    with denied(pool.kafka, topic, DESCRIBE):
        waiting = submit(guarded, Tier.LOW, "unseen")
        wait_until("a worker that says so", lambda: topic in readiness(worker))
    pool.results(waiting)
    assert all(guarded.gate.starts()[request_id] == 1 for request_id in waiting)
    wait_until("a ready worker", lambda: worker.get("/readyz")[0] == 200)


def test_outcomes_refused_for_good_stop_their_partition_loudly_and_nothing_is_lost(guarded: Guarded) -> None:
    pool, worker = guarded.pool, guarded.worker
    topic = pool.topics.requests(Tier.MID)
    group = pool.topics.group(Tier.MID)
    pool.results(submit(guarded, Tier.MID, "taken"))
    accepted = len(pool.kafka.read_all(topic))
    wait_until("a commit of all", lambda: sum(pool.kafka.committed(group, topic).values()) == accepted)
    committed = pool.kafka.committed(group, topic)
    failures = worker.metric("forebay_produce_failures_total")
    with denied(pool.kafka, pool.topics.results, WRITE):
        refused = submit(guarded, Tier.MID, "refused")
        wait_until("a worker that says so", lambda: f"{topic}/0: outcomes are refused" in readiness(worker))
        wait_until("a partition that stands", lambda: worker.status()["in_flight_requests"] == 0)
        time.sleep(TURN_SECONDS)
        behind = submit(guarded, Tier.MID, "behind")
        time.sleep(TURN_SECONDS)
        assert not set(behind) & set(guarded.gate.starts()), "it took more from a partition whose outcomes are refused"
        assert worker.metric("forebay_produce_failures_total") > failures
        assert worker.logged("outcome refused; its partition stops")
        assert pool.kafka.committed(group, topic) == committed
    results = pool.results([*refused, *behind])
    assert {result.status for result in results.values()} == {"completed"}
    assert all(guarded.gate.starts()[request_id] == 1 for request_id in [*refused, *behind])
    wait_until("a ready worker", lambda: worker.get("/readyz")[0] == 200)
    # Tried again every few seconds, not in a hot loop.
    assert worker.metric("forebay_produce_failures_total") - failures < 200


def test_a_dead_letter_refused_for_good_is_neither_dropped_nor_tried_in_a_hot_loop(guarded: Guarded) -> None:
    pool, worker = guarded.pool, guarded.worker
    topic = pool.topics.requests(Tier.LOW)
    failures = worker.metric("forebay_produce_failures_total")
    with denied(pool.kafka, pool.topics.dead_letter, WRITE):
        pool.send(Tier.LOW, b"garbage", key=b"garbage")
        wait_until("a worker that says so", lambda: f"{topic}/0: outcomes are refused" in readiness(worker))
        pool.results(submit(guarded, Tier.HIGH, "beside"))
        assert worker.metric("forebay_produce_failures_total") - failures < 10
    assert [letter.value() for letter in pool.dead_letters(1)] == [b"garbage"]
    wait_until("a ready worker", lambda: worker.get("/readyz")[0] == 200)
    wait_until("nothing unfinished", lambda: worker.metric("forebay_unfinished_records") == 0)
