"""Commit metadata: read back after a crash, subtracted from the backlog, ignored if foreign."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, TopicPartition

from forebay_schemas.contract import headers as h
from forebay_schemas.contract.tiers import Tier
from harness.commits import Commits
from harness.dead_letters import command_of
from harness.gate import HANDLER, Gate
from harness.live_pool import LOG, envelope
from harness.protocols import PROTOCOLS, protocol_properties
from harness.waiting import wait_until

if TYPE_CHECKING:
    from forebay_sandbox.kafka.local import LocalKafka
    from harness.live_pool import LivePool, NewPool
    from harness.workers import NewWorker

BEHIND = 300


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_finished_behind_a_slow_request_is_neither_waiting_nor_run_again_after_a_kill(
    protocol: str, brisk_kafka: LocalKafka, new_pool: NewPool, new_worker: NewWorker, tmp_path: Path
) -> None:
    pool, gate = new_pool(brisk_kafka, partitions=1), Gate(tmp_path)
    properties = protocol_properties(tmp_path, protocol)
    start = partial(new_worker, pool, handler=HANDLER, limit_max=4, kafka_properties=properties)
    first = start()
    pool.submit(Tier.MID, envelope("slow", ttl_ms=3_600_000, payload=gate.payload()))
    pool.submit(Tier.MID, *(envelope(f"quick-{number}", payload=gate.noted()) for number in range(BEHIND)))
    with closing(Commits(pool)) as commits:

        def named() -> bool:
            found = commits.read(Tier.MID)
            return bool(found) and (found[0][0], found[0][1].finished) == (0, ((1, BEHIND),))

        wait_until("a commit that names them", named)
        assert commits.read(Tier.MID)[0][1].running == ((0, 0),)
        [backlog] = command_of(pool).run("backlog", "--interval", "0.1s", "--output", "json").records
        assert backlog["tiers"]["mid"]["waiting"] == 1
        first.kill()
        second = start()
        pool.submit(Tier.MID, envelope("later", payload=gate.noted()))
        gate.open()
        results = pool.results(pool.accepted)
        assert results["slow"].worker == results["later"].worker == "worker-2"
        wait_until("a commit behind all", lambda: commits.read(Tier.MID)[0][0] == BEHIND + 2)
    assert gate.starts() == dict.fromkeys(pool.accepted, 1) | {"slow": 2}
    assert second.metric("forebay_outcomes_total", status="completed") == 2


def test_metadata_that_another_client_committed_is_ignored_with_one_warning(
    new_pool: NewPool, new_worker: NewWorker, tmp_path: Path
) -> None:
    pool, gate = new_pool(partitions=1), Gate(tmp_path)
    pool.submit(Tier.MID, *(envelope(f"request-{number}", payload=gate.noted()) for number in range(6)))
    commit(pool, Tier.MID, TopicPartition(pool.topics.requests(Tier.MID), 0, 2, "moved by hand on Tuesday"))
    worker = new_worker(pool, handler=HANDLER)
    pool.results(f"request-{number}" for number in range(2, 6))
    assert gate.starts() == {f"request-{number}": 1 for number in range(2, 6)}
    [warning] = worker.logged("foreign commit metadata ignored")
    assert warning["topic"] == pool.topics.requests(Tier.MID)
    worker.terminate()


def commit(pool: LivePool, tier: Tier, partition: TopicPartition) -> None:
    """Commits as a tool does that moves a group's offsets."""
    consumer = Consumer(
        {
            **pool.kafka.connection.properties,
            "bootstrap.servers": pool.kafka.bootstrap_servers,
            "group.id": pool.topics.group(tier),
            "logger": LOG,
        }
    )
    try:
        consumer.commit(offsets=[partition], asynchronous=False)
    finally:
        consumer.close()


def test_a_request_that_kills_its_workers_is_a_dead_letter_and_the_rest_completes(
    brisk_kafka: LocalKafka, new_pool: NewPool, new_worker: NewWorker, tmp_path: Path
) -> None:
    pool, gate = new_pool(brisk_kafka, partitions=1), Gate(tmp_path)
    properties = protocol_properties(tmp_path, "cooperative-sticky")
    start = partial(new_worker, pool, handler=HANDLER, limit_max=1, kafka_properties=properties)
    poison = envelope("poison", ttl_ms=3_600_000, payload=gate.payload(do="kill_worker_at_gate"))
    pool.submit(Tier.MID, poison, *(envelope(f"innocent-{number}", payload=gate.noted()) for number in range(5)))
    with closing(Commits(pool)) as commits:
        for crashes in range(2):
            worker = start()

            def runs_and_says_so(crashes: int = crashes) -> bool:
                found = commits.read(Tier.MID)
                return bool(found) and found[0][1].running == ((0, crashes),)

            wait_until("a commit that says that it runs", runs_and_says_so)
            gate.open()
            assert worker.process.wait(60) == -9
            gate.shut()
    start()
    gate.open()  # for the process of its own in which it runs now
    results = pool.results(pool.accepted)
    poisoned = results.pop("poison")
    assert (poisoned.status, poisoned.reason) == ("failed", "worker_crashed")
    assert {result.status for result in results.values()} == {"completed"}
    [letter] = pool.dead_letters(1)
    assert letter.key() == b"poison"
    assert dict(letter.headers() or [])[h.REASON] == b"worker_crashed"
    assert gate.starts() == dict.fromkeys(pool.accepted, 1) | {"poison": 3}
