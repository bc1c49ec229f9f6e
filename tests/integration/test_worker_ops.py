"""The ops port: /livez, /readyz, /metrics and /status say what is."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from contract import surface
from forebay_sandbox.kafka.spec import ClusterSpec
from forebay_schemas.contract.tiers import TIERS, Tier
from harness.gate import HANDLER
from harness.live_pool import chat, envelope
from harness.protocols import PROTOCOLS, protocol_properties
from harness.signals import frozen
from harness.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from forebay_sandbox.engine.process import EngineProcess
    from forebay_sandbox.kafka.local import LocalKafka
    from forebay_sandbox.testing.pytest_plugin import NewKafka
    from harness.live_pool import NewPool
    from harness.served import Served
    from harness.workers import NewWorker


def assert_keys(status: object) -> None:
    """Its keys are those that people script against, but for what stands in objects that are null now."""
    known, found = set(surface.golden()["status"]), surface.key_paths(status)
    assert found - known == set(), "keys that surface_v1.json lacks"
    objects = {path.rpartition(".")[0] for path in found}
    assert {path for path in known - found if path.rpartition(".")[0] in objects} == set(), "keys that are gone"


def full(status: dict[str, Any]) -> dict[str, Any] | None:
    """The document, once four run and two wait."""
    mid = status["tiers"]["mid"]
    return status if (mid["running"], mid["waiting"]) == (4, 2) else None


def test_a_worker_without_work_is_alive_and_ready(served: Served) -> None:
    assert served.worker.get("/livez") == (200, "ok\n")
    assert served.worker.get("/readyz") == (200, "ok\n")
    assert served.worker.get("/no-such-page")[0] == 404


def test_status_says_what_runs_and_what_waits(served: Served) -> None:
    ids = [f"status-{number}" for number in range(6)]
    with frozen(served.engine.process):
        served.pool.submit(Tier.MID, *map(envelope, ids))
        status = wait_until("a full worker", lambda: full(served.worker.status()))
    assert status is not None
    assert status["worker"] == "worker-1"
    assert status["pool"] == served.pool.name
    assert status["state"] == "working"
    assert status["limited_by"] == {"signal": "limit", "value": 4, "threshold": 4}
    assert status["limit_requests"] == 4
    assert status["in_flight_requests"] == 4
    assert status["breaker"]["state"] == "closed"
    assert list(status["tiers"]) == [str(tier) for tier in TIERS]
    mid = status["tiers"]["mid"]
    assert mid["waiting"] == 2
    assert mid["running"] == 4
    of_mid = status["intakes"]["mid"]
    assert of_mid["assigned"] == {served.pool.topics.requests(Tier.MID): [0, 1]}
    assert of_mid["unfinished_records"] >= 6
    assert of_mid["troubles"] == []
    assert set(status["intakes"]["retry"]["assigned"]) == set(served.pool.topics.retries)
    assert {one["request_id"] for one in status["running"]} <= set(ids)
    assert all(one["tier"] == "mid" for one in status["running"])
    assert all(0 <= one["running_seconds"] < 60 for one in status["running"])
    assert all(0 < one["deadline_in_seconds"] < 60 for one in status["running"])
    assert "messages" not in json.dumps(status), "payloads are nobody's business"
    assert_keys(status)
    served.pool.results(ids)


def test_metrics_can_be_parsed_and_count_what_happened(served: Served) -> None:
    before = served.worker.metric("forebay_outcomes_total", tier="low", status="completed")
    served.pool.submit(Tier.LOW, *(envelope(f"counted-{number}", payload=chat(output_tokens=2)) for number in range(5)))
    served.pool.results(f"counted-{number}" for number in range(5))
    metric = served.worker.metric
    assert metric("forebay_outcomes_total", tier="low", status="completed", reason="completed") == before + 5
    assert metric("forebay_received_total", tier="low") >= 5
    assert metric("forebay_started_total", tier="low") >= 5
    assert metric("forebay_queue_seconds_count", tier="low") == metric("forebay_started_total", tier="low")
    assert metric("forebay_service_seconds_sum", tier="low") > 0
    assert metric("forebay_assigned_partitions", intake="low") == 2
    wait_until("everything committed", lambda: metric("forebay_unfinished_records") == 0)
    families = {family.name: family for family in text_string_to_metric_families(served.worker.get("/metrics")[1])}
    ours = {name: family for name, family in families.items() if name.startswith("forebay_")}
    assert len(ours) >= 15
    assert all(family.documentation for family in ours.values())
    assert "process_resident_memory_bytes" in families


def test_a_worker_is_ready_only_when_its_groups_have_assigned(
    new_kafka: NewKafka, new_pool: NewPool, new_worker: NewWorker, engine: EngineProcess
) -> None:
    slow_to_assign = ClusterSpec(properties={"group.initial.rebalance.delay.ms": "4000"})
    pool = new_pool(new_kafka(slow_to_assign))
    worker = new_worker(pool, wait=False, backend_url=engine.url)
    worker.wait_listening()
    status, problems = worker.get("/readyz")
    assert status == 503
    assert "the group has not assigned partitions yet" in problems
    assert worker.get("/livez")[0] == 200
    wait_until("a ready worker", lambda: worker.get("/readyz")[0] == 200)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_worker_for_whom_no_partition_is_left_is_ready_too(
    protocol: str, brisk_kafka: LocalKafka, new_pool: NewPool, new_worker: NewWorker, tmp_path: Path
) -> None:
    pool = new_pool(brisk_kafka, partitions=1)
    properties = protocol_properties(tmp_path, protocol)
    workers = [new_worker(pool, handler=HANDLER, kafka_properties=properties) for _ in range(2)]
    assigned = [worker.status()["intakes"]["high"]["assigned"] for worker in workers]
    assert {} in assigned
    assert {pool.topics.requests(Tier.HIGH): [0]} in assigned
