"""Joining and leaving again and again, with both protocols: work goes on, no slot is lost, commits only grow."""

from __future__ import annotations

import itertools
import signal
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from forebay_schemas.contract.tiers import TIERS, Tier
from harness.commits import CommitWatch
from harness.gate import HANDLER, Gate
from harness.live_pool import envelope
from harness.protocols import PROTOCOLS, protocol_properties
from harness.waiting import wait_until

if TYPE_CHECKING:
    from forebay_sandbox.kafka.local import LocalKafka
    from harness.live_pool import NewPool
    from harness.workers import NewWorker


def has_started(gate: Gate, count: int) -> bool:
    return sum(gate.starts().values()) >= count


JOINERS = {"cooperative-sticky": 6, "consumer": 3}
LIMIT = 8
BEYOND_POLL_INTERVAL_SECONDS = 7.0


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_joining_and_leaving_again_and_again_costs_no_request_and_no_slot(
    protocol: str, brisk_kafka: LocalKafka, new_pool: NewPool, new_worker: NewWorker, tmp_path: Path
) -> None:
    pool, gate = new_pool(brisk_kafka, partitions=4), Gate(tmp_path)
    properties = protocol_properties(tmp_path, protocol)
    start = partial(new_worker, pool, handler=HANDLER, limit_max=LIMIT, kafka_properties=properties)
    enough = threading.Event()

    def send() -> None:
        for number in itertools.count():
            tier = TIERS[number % 3]
            payload = {**gate.noted(), "do": "note_and_sleep", "seconds": 0.02 * (number % 10)}
            pool.submit(tier, envelope(f"{tier}-{number}", ttl_ms=600_000, payload=payload))
            if enough.wait(0.03):
                return

    stays = start()
    topic = pool.topics.requests(Tier.MID)
    rebalances = stays.metric("forebay_rebalances_total")
    with CommitWatch(pool) as watch:
        sender = threading.Thread(target=send, name="sender")
        sender.start()
        try:
            for joiner in range(JOINERS[protocol]):
                enough_of_them = sum(gate.starts().values()) + 10
                other = start(wait=False)
                wait_until("work that goes on", partial(has_started, gate, enough_of_them))
                other.wait_listening()
                if joiner == 0:
                    wait_until("partitions of its own", partial(other.assigned, topic))
                # The others: in the midst of the rebalance that their joining is, often enough.
                other.terminate()
        finally:
            enough.set()
            sender.join()
        results = pool.results(pool.accepted)
    assert {result.status for result in results.values()} == {"completed"}
    assert gate.starts() == dict.fromkeys(pool.accepted, 1)
    assert watch.looks > 10
    assert watch.steps_back == []
    wait_until("nothing in flight", lambda: stays.status()["in_flight_requests"] == 0)
    wait_until("nothing unfinished", lambda: stays.metric("forebay_unfinished_records") == 0)
    wait_until("all partitions back", lambda: sorted(stays.assigned(topic)) == [0, 1, 2, 3])
    assert stays.metric("forebay_rebalances_total") > rebalances

    full = pool.submit(Tier.LOW, *(envelope(f"full-{n}", payload=gate.payload()) for n in range(LIMIT + 4)))
    wait_until("the whole limit in use", lambda: stays.status()["in_flight_requests"] == LIMIT)
    gate.open()
    pool.results(full)
    stays.terminate()


def test_a_long_request_and_full_lanes_cost_no_membership_and_a_rebalance_while_paused_stops_no_delivery(
    brisk_kafka: LocalKafka, new_pool: NewPool, new_worker: NewWorker, tmp_path: Path
) -> None:
    pool, gate = new_pool(brisk_kafka, partitions=4), Gate(tmp_path)
    properties = protocol_properties(tmp_path, "cooperative-sticky", max_poll_interval_ms="6000")
    start = partial(new_worker, pool, handler=HANDLER, limit_max=1, kafka_properties=properties)
    stays = start()
    topic = pool.topics.requests(Tier.LOW)
    pool.submit(Tier.LOW, *(envelope(f"long-{n}", ttl_ms=600_000, payload=gate.payload()) for n in range(8)))
    wait_until("one at work", lambda: stays.status()["in_flight_requests"] == 1)
    pool.submit(Tier.LOW, *(envelope(f"quick-{n}", ttl_ms=600_000, payload=gate.noted()) for n in range(1_000)))
    wait_until("a full lane", lambda: stays.waiting()[Tier.LOW] >= 250)
    other = start()
    wait_until("a fair share", lambda: len(other.assigned(topic)) == len(stays.assigned(topic)) == 2)
    wait_until("its lane full too", lambda: other.waiting()[Tier.LOW] >= 200)
    rebalances = stays.metric("forebay_rebalances_total")
    time.sleep(BEYOND_POLL_INTERVAL_SECONDS)
    assert stays.metric("forebay_rebalances_total") == rebalances
    other.signal(signal.SIGTERM)
    wait_until("all partitions back", lambda: len(stays.assigned(topic)) == 4)
    gate.open()
    assert {result.status for result in pool.results(pool.accepted).values()} == {"completed"}
    assert gate.starts() == dict.fromkeys(pool.accepted, 1)
    assert other.process.wait(60) == 0
