"""Transactions of others in our topics: their markers and what they aborted hold offsets and are no records."""

from __future__ import annotations

import json
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

from forebay_schemas.contract.control import Control, ControlAction, encode_control
from forebay_schemas.contract.tiers import TIERS, Tier
from harness.dead_letters import command_of, value_of, write_letters
from harness.exporter_process import running_exporter
from harness.gate import HANDLER, Gate
from harness.live_pool import LOG, envelope
from harness.replays import SELECTION
from harness.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.live_pool import LivePool, NewPool
    from harness.workers import NewWorker

ANSWER_SECONDS_MAX = 30.0


@contextmanager
def transactional(pool: LivePool) -> Iterator[Producer]:
    """A producer whose transaction has begun; what is open at the end is aborted."""
    client = {**pool.kafka.connection.properties, "bootstrap.servers": pool.kafka.bootstrap_servers, "logger": LOG}
    producer = Producer({**client, "transactional.id": pool.name})
    producer.init_transactions(ANSWER_SECONDS_MAX)
    producer.begin_transaction()
    yield producer
    producer.abort_transaction(ANSWER_SECONDS_MAX)


def commit(producer: Producer) -> None:
    """Commits, and begins the next one."""
    producer.commit_transaction(ANSWER_SECONDS_MAX)
    producer.begin_transaction()


def abort(producer: Producer) -> None:
    """Aborts what has reached the broker, and begins the next one."""
    assert producer.flush(ANSWER_SECONDS_MAX) == 0
    producer.abort_transaction(ANSWER_SECONDS_MAX)
    producer.begin_transaction()


def request(producer: Producer, topic: str, request_id: str, payload: Any, *, partition: int = 0) -> str:
    value = json.dumps(envelope(request_id, payload=payload)).encode()
    producer.produce(topic, value, request_id.encode(), partition=partition)
    return request_id


def waiting(pool: LivePool) -> dict[str, int]:
    """Waiting requests as `forebay backlog` counts them."""
    [record] = command_of(pool).run("backlog", "--output", "json", "--interval", "0.1").records
    return {tier: figures["waiting"] for tier, figures in record["tiers"].items()}


NOTHING = dict.fromkeys(TIERS, 0)


@pytest.mark.parametrize("last", ["committed", "aborted", "open"])
def test_a_transaction_on_the_control_topic_keeps_no_partition_closed(
    last: str, pool: LivePool, new_worker: NewWorker, tmp_path: Path
) -> None:
    gate, topic = Gate(tmp_path), pool.topics.control
    with transactional(pool) as producer:
        control = Control(action=ControlAction.CANCEL, request_id="somebody-elses", at=0, by="test")
        producer.produce(topic, encode_control(control), b"cancel:somebody-elses")
        assert producer.flush(ANSWER_SECONDS_MAX) == 0
        if last == "committed":
            commit(producer)
        elif last == "aborted":
            abort(producer)
        pool.submit(Tier.MID, envelope("first", payload=gate.noted()))
        worker = new_worker(pool, handler=HANDLER)
        pool.result("first")
    # Ten seconds would have gone by before it was said, and the request's start with it.
    assert "coordination not read in time" not in {event["event"] for event in worker.events()}


def test_markers_and_aborted_records_are_no_backlog_for_anybody(
    new_pool: NewPool, new_worker: NewWorker, tmp_path: Path
) -> None:
    """Three transactions that are committed and one that is not, in each of four partitions."""
    pool, gate = new_pool(partitions=4), Gate(tmp_path)
    topic = pool.topics.requests(Tier.HIGH)
    ids = []
    with transactional(pool) as producer:
        for partition in range(4):
            for number in range(3):
                ids.append(request(producer, topic, f"{partition}-{number}", gate.noted(), partition=partition))
                commit(producer)
            request(producer, topic, f"{partition}-aborted", gate.noted(), partition=partition)
            abort(producer)
        # The last one is open: nobody has submitted what is in it.
        request(producer, topic, "undecided", gate.noted())
        assert producer.flush(ANSWER_SECONDS_MAX) == 0
        with running_exporter(command_of(pool), pool.name) as exporter:

            def figure(name: str) -> float | None:
                return exporter.metric(name, pool=pool.name, tier="high")

            worker = new_worker(pool, handler=HANDLER)
            pool.results(ids)
            wait_until("an exporter that counts none", lambda: figure("forebay_backlog_records") == 0)
            assert waiting(pool) == NOTHING
            group = pool.topics.group(Tier.HIGH)
            # As a plain look at the group's lag has it, and whoever scales by that.
            behind = [2 * 3 + 2] * 4
            wait_until("commits at the ends", lambda: list(pool.kafka.committed(group, topic).values()) == behind)
            worker.terminate()
            wait_until("no worker", lambda: exporter.metric("forebay_workers", pool=pool.name) == 0, seconds=60)
            assert waiting(pool) == NOTHING
            assert figure("forebay_backlog_records") == 0
            assert figure("forebay_backlog_wait_seconds") == 0
            assert figure("forebay_deadline_risk_ratio") == 0
    assert gate.starts() == dict.fromkeys(ids, 1)


def test_what_was_aborted_before_any_worker_ran_is_no_backlog(new_pool: NewPool) -> None:
    pool = new_pool(partitions=4)
    with transactional(pool) as producer:
        for partition in range(4):
            request(producer, pool.topics.requests(Tier.LOW), f"{partition}", {}, partition=partition)
        abort(producer)
        began_at = time.monotonic()
        assert waiting(pool) == NOTHING
        # What is not there is not waited for.
        assert time.monotonic() - began_at < 5.0
        with running_exporter(command_of(pool), pool.name) as exporter:
            wait_until("a risk of nothing", lambda: exporter.metrics("forebay_deadline_risk_ratio") == [0.0] * 3)
            assert exporter.metrics("forebay_backlog_records") == [0.0] * 3
        pool.submit(Tier.LOW, envelope("there"))
        assert sum(waiting(pool).values()) >= 1


def test_a_transaction_keeps_no_replay_from_being_sent(new_pool: NewPool, new_worker: NewWorker) -> None:
    pool = new_pool(partitions=12)
    topic = pool.topics.requests(Tier.HIGH)
    with transactional(pool) as producer:
        ids = [request(producer, topic, f"r-{number}", {"do": "answer"}, partition=number) for number in range(12)]
        commit(producer)
        worker = new_worker(pool, handler=HANDLER)
        pool.results(ids)
        worker.terminate()
        # No worker has come past these.
        for number in range(12):
            request(producer, topic, f"aborted-{number}", {"do": "answer"}, partition=number)
        abort(producer)
        write_letters(pool, [("dead", value_of("dead"))], tier=Tier.HIGH)
        done = command_of(pool).run("dead-letters", "replay", *SELECTION, "--yes", "--output", "json")
    assert done.code == 0, done.err
    assert done.records[0]["replayed"] == 1
    assert "does a worker run?" not in done.err
