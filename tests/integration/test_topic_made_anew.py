"""Topics that are deleted and made anew: offsets, commits and notices of the old one say nothing of the new one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

from forebay_schemas.contract.control import Control, ControlAction, encode_control
from forebay_schemas.contract.tiers import Tier
from harness.dead_letters import command_of
from harness.gate import HANDLER, Gate
from harness.live_pool import LOG, envelope
from harness.made_anew import make_anew
from harness.waiting import wait_until

if TYPE_CHECKING:
    from harness.live_pool import LivePool, NewPool
    from harness.workers import NewWorker

ANSWER_SECONDS_MAX = 30.0


def send(pool: LivePool, topic: str, prefix: str, count: int, payload: Any) -> list[str]:
    """Sends as a client does that does not know the old topic."""
    producer = Producer({"bootstrap.servers": pool.kafka.bootstrap_servers, "acks": "all", "logger": LOG})
    ids = [f"{prefix}-{number}" for number in range(count)]
    failures: list[str] = []
    for request_id in ids:
        producer.produce(
            topic,
            json.dumps(envelope(request_id, payload=payload)).encode(),
            request_id.encode(),
            on_delivery=lambda error, _: failures.append(error.str()) if error is not None else None,
        )
    assert producer.flush(ANSWER_SECONDS_MAX) == 0
    assert failures == []
    return ids


@pytest.mark.parametrize(
    ("before", "after", "is_retry"),
    [(40, 5, False), (5, 40, False), (40, 40, False), (40, 200, False), (10, 20, True)],
    ids=["40-then-5", "5-then-40", "40-then-40", "40-then-200", "retries"],
)
def test_nothing_of_a_topic_made_anew_under_a_worker_is_skipped(
    before: int, after: int, is_retry: bool, new_pool: NewPool, new_worker: NewWorker, tmp_path: Path
) -> None:
    pool, gate = new_pool(partitions=1), Gate(tmp_path)
    topic = pool.topics.retry(Tier.MID, 1) if is_retry else pool.topics.requests(Tier.MID)
    group = pool.topics.retry_group if is_retry else pool.topics.group(Tier.MID)
    worker = new_worker(pool, handler=HANDLER)
    pool.results(send(pool, topic, "before", before, gate.noted()))
    wait_until("the old one's commit", lambda: pool.kafka.committed(group, topic) == {0: before})

    make_anew(pool.kafka, pool.topics, topic)
    ids = send(pool, topic, "after", after, gate.noted())
    pool.results(ids)
    # What was read before it was noticed came twice, and ran once.
    assert {request_id: gate.starts()[request_id] for request_id in ids} == dict.fromkeys(ids, 1)
    wait_until("the new one's commit", lambda: pool.kafka.committed(group, topic) == {0: after})
    assert worker.metric("forebay_remade_partitions_total") >= 1
    told = [event for event in worker.events() if event.get("topic") == topic and event["level"] == "error"]
    assert told
    assert worker.get("/readyz")[0] == 200


def test_commits_of_the_old_topic_count_for_nobody(new_pool: NewPool, new_worker: NewWorker, tmp_path: Path) -> None:
    """It is made anew while no worker runs."""
    pool, gate = new_pool(partitions=1), Gate(tmp_path)
    topic = pool.topics.requests(Tier.MID)
    worker = new_worker(pool, handler=HANDLER)
    pool.results(send(pool, topic, "before", 20, gate.noted()))
    worker.terminate()
    assert pool.kafka.committed(pool.topics.group(Tier.MID), topic) == {0: 20}
    make_anew(pool.kafka, pool.topics, topic)
    ids = send(pool, topic, "after", 30, gate.noted())
    [record] = command_of(pool).run("backlog", "--output", "json", "--interval", "0.1").records
    assert record["tiers"]["mid"]["waiting"] == 30
    new_worker(pool, handler=HANDLER)
    pool.results(ids)
    assert {gate.starts()[request_id] for request_id in ids} == {1}


def test_two_workers_skip_nothing_of_a_topic_made_anew(
    new_pool: NewPool, new_worker: NewWorker, tmp_path: Path
) -> None:
    pool, gate = new_pool(partitions=4), Gate(tmp_path)
    topic = pool.topics.requests(Tier.MID)
    workers = [new_worker(pool, handler=HANDLER) for _ in range(2)]
    wait_until("a share for each", lambda: all(len(worker.assigned(topic)) == 2 for worker in workers))
    pool.results(send(pool, topic, "before", 60, gate.noted()))
    make_anew(pool.kafka, pool.topics, topic)
    ids = send(pool, topic, "after", 60, gate.noted())
    pool.results(ids)
    assert set(ids) <= gate.starts().keys()
    for worker in workers:
        wait_until("a worker that is done", lambda worker=worker: worker.metric("forebay_unfinished_records") == 0)  # type: ignore[misc]


def test_a_cancel_in_a_control_topic_made_anew_is_heard(
    new_pool: NewPool, new_worker: NewWorker, tmp_path: Path
) -> None:
    pool, gate = new_pool(partitions=1), Gate(tmp_path)
    topic = pool.topics.control

    def cancel(*request_ids: str) -> None:
        producer = Producer({"bootstrap.servers": pool.kafka.bootstrap_servers, "logger": LOG})
        for request_id in request_ids:
            control = Control(action=ControlAction.CANCEL, request_id=request_id, at=0, by="test")
            producer.produce(topic, encode_control(control), f"cancel:{request_id}".encode())
        assert producer.flush(ANSWER_SECONDS_MAX) == 0

    cancel("nobody-1", "nobody-2", "nobody-3")
    worker = new_worker(pool, handler=HANDLER)
    pool.submit(Tier.MID, envelope("running", payload=gate.payload()))
    wait_until("it runs", lambda: worker.status()["in_flight_requests"] == 1)
    make_anew(pool.kafka, pool.topics, topic)
    # At an offset that the old one had, and that was read there.
    cancel("running")
    assert pool.result("running").status == "cancelled"
