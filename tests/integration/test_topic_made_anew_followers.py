"""Topics that are deleted and made anew under whoever follows them: results, coordination, audit. Nothing of the new
one is passed over because of where the old one was read to."""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from forebay_producer.client.control_client import ControlAnswer, ControlClient, Target
from forebay_producer.client.results_reader import ResultsReader
from forebay_producer.cluster.announcement_reader import AnnouncementReader
from forebay_schemas.clock import SystemClock
from forebay_schemas.contract.control import ControlAction, Controlled, ControlOutcome, encode_controlled
from forebay_schemas.contract.coordination import encode_capacity
from forebay_schemas.contract.results import encode_result
from harness.live_pool import LOG, LivePool
from harness.made_anew import make_anew
from harness.replays import audits, recorded_by_id, replays_by_id, running, write
from harness.waiting import wait_until
from harness.written_results import result_of, write_results
from simulated.capacities import make_capacity

if TYPE_CHECKING:
    from harness.live_pool import NewPool
    from harness.producer_pool import ProducerPool

ANSWER_SECONDS_MAX = 30.0
REQUEST = {"biz_type": "x", "payload": {}}


def test_a_reader_of_results_reads_all_of_a_topic_made_anew_however_long_it_is(producer_pool: ProducerPool) -> None:
    pool, topic = producer_pool, producer_pool.topics.results
    config = {**pool.kafka.connection.properties, "bootstrap.servers": pool.kafka.bootstrap_servers}
    producer = Producer({**config, "acks": "all", "logger": LOG})

    def put(prefix: str, *counts: int) -> set[str]:
        ids = {(number, f"{prefix}-{number}-{each}") for number, count in enumerate(counts) for each in range(count)}
        for number, one in sorted(ids):
            producer.produce(topic, encode_result(result_of(one)), one.encode(), partition=number)
        assert producer.flush(ANSWER_SECONDS_MAX) == 0
        return {one for _, one in ids}

    seen: Counter[str] = Counter()
    with ResultsReader(pool.kafka.connection, pool=pool.topics, since_ms=0, clock=SystemClock()) as reader:

        def has_seen(ids: set[str]) -> bool:
            seen.update(result.request_id for result, _ in reader.read(timeout_seconds=0.1))
            return ids <= seen.keys()

        old = put("old", 5, 5, 5)
        wait_until("the old ones", lambda: has_seen(old))
        make_anew(pool.kafka, pool.topics, topic)
        # Partitions that are shorter than before, as long, and longer.
        new = put("new", 3, 5, 9)
        wait_until("the new ones", lambda: has_seen(new))
        wait_until("its end", lambda: has_seen(new) and reader.caught_up())


def test_a_client_that_follows_outcomes_hears_those_in_a_topic_made_anew(producer_pool: ProducerPool) -> None:
    with producer_pool.producer() as producer:
        ids = [producer.submit(REQUEST).request_id for _ in range(20)]
        write_results(producer_pool, *map(result_of, ids))
        assert producer.outcome(ids[0], timeout_seconds=30).request_id == ids[0]
        make_anew(producer_pool.kafka, producer_pool.topics, producer_pool.topics.results)
        new = [producer.submit(REQUEST).request_id for _ in range(20)]
        write_results(producer_pool, *map(result_of, new))
        for one in new:
            assert producer.outcome(one, timeout_seconds=30).request_id == one


@pytest.mark.parametrize("before", [1, 40])
def test_an_exporter_goes_on_hearing_workers_in_a_topic_made_anew(before: int, new_pool: NewPool) -> None:
    """Workers publish once a second: what the exporter missed meanwhile comes again."""
    pool = new_pool(partitions=1)
    topic = pool.topics.coordination
    heard = AnnouncementReader(pool.kafka.connection, clock=SystemClock(), client_id="test")
    heard.follow(pool.topics, [(topic, number) for number in range(partitions_of(pool, topic))])

    def hears(worker: str) -> bool:
        says(pool, worker)
        heard.poll(0.1)
        return worker in {capacity.worker for capacity in heard.workers(pool.topics)}

    try:
        wait_until("a worker", lambda: hears("old"))
        for _ in range(before):
            says(pool, "old")
        make_anew(pool.kafka, pool.topics, topic)
        wait_until("a worker that speaks in the new one", lambda: hears("new"))
    finally:
        heard.close()


def test_an_answer_to_a_cancel_is_heard_though_coordination_was_made_anew_meanwhile(new_pool: NewPool) -> None:
    pool = new_pool(partitions=1)
    for _ in range(10):
        says(pool, "old")
    control = ControlClient(pool.kafka.connection, pool=pool.topics, delivery_seconds=30, clock=SystemClock())
    told: list[ControlAnswer] = []

    def ask() -> None:
        told.extend(control.ask(ControlAction.CANCEL, [Target("one")], wait_seconds=30))

    asking = threading.Thread(target=ask)
    asking.start()
    wait_until("the cancel", lambda: pool.kafka.read_all(pool.topics.control))
    make_anew(pool.kafka, pool.topics, pool.topics.coordination)
    answer = Controlled(worker="new", action=ControlAction.CANCEL, request_id="one", outcome=ControlOutcome.CANCELLED)
    pool.tell_workers(encode_controlled(answer), key=b"new")
    asking.join()
    control.close()
    assert [(each.outcome, each.worker) for each in told] == [(ControlOutcome.CANCELLED, "new")]


def test_a_replay_under_which_the_audit_topic_is_made_anew_asks_for_its_turn_again_and_repeats_nothing(
    new_pool: NewPool,
) -> None:
    pool = new_pool(partitions=1)
    wanted = write(pool, 60)
    with running(pool, "--rate", "15/s") as run:
        wait_until("some replays", lambda: len(audits(pool)) > 5)
        make_anew(pool.kafka, pool.topics, pool.topics.audit)
        _, err = run.communicate(timeout=60)
    assert run.returncode == 0, err
    assert replays_by_id(pool) == Counter(wanted)
    # Others that look at the new one find a run and its end, that of the one before, and no replay told twice.
    started = audits(pool, "run_started")
    ended = {one["run_id"] for one in audits(pool, "run_ended")}
    assert ended == {started[0]["continues"]} | {one["run_id"] for one in started}
    assert None not in ended
    assert set(recorded_by_id(pool).values()) == {1}
    assert b"was deleted and made anew" in err


def partitions_of(pool: LivePool, topic: str) -> int:
    return len(pool.kafka.admin().list_topics(topic, timeout=ANSWER_SECONDS_MAX).topics[topic].partitions)


def says(pool: LivePool, worker: str) -> None:
    capacity = make_capacity(worker, limit_requests=8, share_requests=8)
    pool.tell_workers(encode_capacity(capacity), key=worker.encode())
