"""A broker that is silent for a while, or goes away under load and comes back: nothing is lost, the worker stays."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from forebay_sandbox.engine.process import running_engine
from forebay_sandbox.kafka.local import LocalKafka, local_kafka
from forebay_schemas.contract.tiers import TIERS, Tier
from harness.commits import CommitWatch
from harness.gate import HANDLER, Gate
from harness.live_pool import chat, envelope
from harness.protocols import protocol_properties
from harness.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.live_pool import NewPool
    from harness.workers import NewWorker

STOP_SECONDS_MAX = 30.0
"""A second of drain, and what it waits for deliveries and commits."""


@pytest.fixture(scope="module")
def own_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKafka]:
    """A broker that may be maltreated."""
    with local_kafka(log_dir=tmp_path_factory.mktemp("kafka-log")) as kafka:
        yield kafka


@pytest.mark.slow
def test_a_worker_that_starts_while_kafka_is_away_waits_for_it(
    own_kafka: LocalKafka, new_pool: NewPool, new_worker: NewWorker
) -> None:
    pool = new_pool(own_kafka)
    with running_engine() as engine:
        own_kafka.brokers[0].stop()
        worker, leaves = (new_worker(pool, backend_url=engine.url, wait=False) for _ in range(2))
        worker.wait_listening()
        leaves.wait_listening()
        assert worker.get("/livez")[0] == 200
        wait_until(
            "a worker that says what it waits for", lambda: own_kafka.bootstrap_servers in worker.get("/readyz")[1]
        )
        status, problems = worker.get("/readyz")
        assert (status, problems.startswith("waiting for Kafka: ")) == (503, True)
        assert worker.status()["state"] == "waiting_for_kafka"
        assert "forebay_in_flight_requests" in worker.get("/metrics")[1]
        leaves.terminate()
        own_kafka.brokers[0].start()
        worker.wait_ready()
        assert worker.status()["state"] == "working"
        [result] = pool.results(pool.submit(Tier.HIGH, envelope("afterwards"))).values()
        assert result.status == "completed"
        assert len(worker.logged("waiting for Kafka")) == 1
        worker.terminate()


def test_a_broker_restarted_under_load_loses_nothing(
    own_kafka: LocalKafka, new_pool: NewPool, new_worker: NewWorker, tmp_path: Path
) -> None:
    pool = new_pool(own_kafka)
    with running_engine(log_path=tmp_path / "engine.jsonl") as engine:
        worker = new_worker(pool, backend_url=engine.url, limit_max=4)
        with CommitWatch(pool) as watch:
            for tier in TIERS:
                pool.submit(
                    tier, *(envelope(f"{tier}-{number}", payload=chat(output_tokens=10)) for number in range(50))
                )
            wait_until("some of the work", lambda: engine.stats()["completed"] >= 30)
            own_kafka.brokers[0].stop()
            own_kafka.brokers[0].start()
            pool.submit(Tier.HIGH, envelope("afterwards"))
            results = pool.results(pool.accepted)
        assert {result.status for result in results.values()} == {"completed"}
        assert len(results) == 151
        assert watch.steps_back == []
        assert worker.get("/livez")[0] == 200
        wait_until("a worker that is ready again", lambda: worker.get("/readyz")[0] == 200)
        worker.terminate()


def test_a_worker_that_cannot_deliver_results_stops_running_requests(
    own_kafka: LocalKafka, new_pool: NewPool, new_worker: NewWorker
) -> None:
    pool = new_pool(own_kafka)
    with running_engine() as engine:
        worker = new_worker(pool, backend_url=engine.url, limit_max=4)
        pool.submit(Tier.MID, *(envelope(f"mid-{number}", payload=chat(output_tokens=20)) for number in range(200)))
        wait_until("some of the work", lambda: engine.stats()["completed"] >= 8)
        own_kafka.brokers[0].pause()
        try:
            # Three seconds without a delivery are enough; all 200 would take ten.
            wait_until("a worker that has stopped", lambda: worker.limited_by() == "results")
            wait_until("an idle engine", lambda: engine.stats()["in_flight"] == 0)
            assert engine.stats()["received"] < 200
            assert worker.get("/readyz") == (503, "results are not delivered\n")
            assert worker.get("/livez")[0] == 200
        finally:
            own_kafka.brokers[0].resume()
        results = pool.results(pool.accepted)
        assert {result.status for result in results.values()} == {"completed"}


@pytest.mark.parametrize("away", ["gone", pytest.param("silent", marks=pytest.mark.slow)])
def test_a_worker_told_to_stop_while_its_broker_is_away_ends_in_time_and_nothing_is_lost(
    away: str, own_kafka: LocalKafka, new_pool: NewPool, new_worker: NewWorker, tmp_path: Path
) -> None:
    pool, gate = new_pool(own_kafka, partitions=1), Gate(tmp_path)
    # The shortest session that brokers allow: the second worker gets the partitions when it has passed.
    properties = protocol_properties(tmp_path, "cooperative-sticky")
    start = partial(new_worker, pool, handler=HANDLER, kafka_properties=properties)
    worker = start(limit_max=2, drain_seconds=1)
    [done] = pool.submit(Tier.MID, envelope("done", payload=gate.noted()))
    pool.result(done)
    group, topic = pool.topics.group(Tier.MID), pool.topics.requests(Tier.MID)
    wait_until("its commit", lambda: pool.kafka.committed(group, topic) == {0: 1})
    # One that ends without the broker hearing of it, one that outlasts the drain.
    late = pool.submit(
        Tier.MID,
        envelope("unheard", ttl_ms=600_000, payload=gate.payload("unheard")),
        envelope("outlasts", ttl_ms=600_000, payload=gate.payload("outlasts")),
    )
    wait_until("both at work", lambda: worker.status()["in_flight_requests"] == 2)
    [broker] = own_kafka.brokers
    if away == "silent":
        broker.pause()
    else:
        broker.kill()
    try:
        gate.open("unheard")
        wait_until("an outcome that is not delivered", lambda: worker.status()["undelivered_records"] > 0)
        assert worker.terminate() < STOP_SECONDS_MAX
    finally:
        if away == "silent":
            broker.resume()
        else:
            broker.start()
    gate.open("outlasts")
    start()
    assert {result.status for result in pool.results(late).values()} == {"completed"}
    assert gate.starts()[done] == 1
