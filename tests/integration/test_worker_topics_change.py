"""Topics that change under a running worker: more partitions, records deleted, gaps, a topic made anew."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.cimpl import NewPartitions, NewTopic

from forebay_schemas.contract.tiers import Tier
from harness.gate import HANDLER, Gate
from harness.live_pool import LOG, envelope
from harness.waiting import wait_until

if TYPE_CHECKING:
    from harness.live_pool import LivePool, NewPool
    from harness.workers import NewWorker

ANSWER_SECONDS_MAX = 30.0
NOTICED_SECONDS_MAX = 15.0
"""Five until the client looks at its topics again, and what a busy machine takes."""


def plain_producer(pool: LivePool, **more: object) -> Producer:
    client = {**pool.kafka.connection.properties, "bootstrap.servers": pool.kafka.bootstrap_servers, "logger": LOG}
    return Producer({**client, "acks": "all", **more})


def test_partitions_added_to_a_topic_are_read_from_their_first_record(
    new_pool: NewPool, new_worker: NewWorker, tmp_path: Path
) -> None:
    pool, gate = new_pool(partitions=1), Gate(tmp_path)
    topic = pool.topics.requests(Tier.MID)
    worker = new_worker(pool, handler=HANDLER)
    admin = pool.kafka.admin()
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(ANSWER_SECONDS_MAX)
    wait_until("its share of them", lambda: worker.assigned(topic) == [0, 1, 2], seconds=NOTICED_SECONDS_MAX)
    producer = plain_producer(pool)
    ids = [f"{partition}-{number}" for partition in (1, 2) for number in range(20)]
    wait_until("a leader for each", lambda: len(producer.list_topics(topic, 10).topics[topic].partitions) == 3)
    for request_id in ids:
        value = json.dumps(envelope(request_id, payload=gate.noted())).encode()
        producer.produce(topic, value, request_id.encode(), partition=int(request_id[0]))
    assert producer.flush(ANSWER_SECONDS_MAX) == 0
    assert {result.status for result in pool.results(ids).values()} == {"completed"}
    assert gate.starts() == dict.fromkeys(ids, 1)


def test_a_position_that_was_deleted_goes_on_at_the_first_record_there_is(
    new_pool: NewPool, new_worker: NewWorker, tmp_path: Path
) -> None:
    pool, gate = new_pool(partitions=1), Gate(tmp_path)
    topic = pool.topics.requests(Tier.MID)
    before = pool.submit(Tier.MID, *(envelope(f"before-{n}", payload=gate.noted()) for n in range(5)))
    first = new_worker(pool, handler=HANDLER)
    pool.results(before)
    first.terminate()
    pool.submit(Tier.MID, *(envelope(f"deleted-{n}", payload=gate.noted()) for n in range(5)))
    kept = pool.submit(Tier.MID, *(envelope(f"kept-{n}", payload=gate.noted()) for n in range(5)))
    admin = pool.kafka.admin()
    [deleted] = admin.delete_records([TopicPartition(topic, 0, 10)]).values()
    assert deleted.result(ANSWER_SECONDS_MAX).low_watermark == 10
    worker = new_worker(pool, handler=HANDLER)
    pool.results(kept)
    later = pool.submit(Tier.MID, envelope("later", payload=gate.noted()))
    pool.results(later)
    assert gate.starts() == dict.fromkeys([*before, *kept, *later], 1)
    wait_until("nothing unfinished", lambda: worker.metric("forebay_unfinished_records") == 0)
    worker.terminate()
    assert pool.kafka.committed(pool.topics.group(Tier.MID), topic) == {0: 16}


def test_markers_and_records_of_transactions_that_were_aborted_hold_nothing_up(
    new_pool: NewPool, new_worker: NewWorker, tmp_path: Path
) -> None:
    pool, gate = new_pool(partitions=1), Gate(tmp_path)
    topic = pool.topics.requests(Tier.MID)
    producer = plain_producer(pool, **{"transactional.id": pool.name})
    producer.init_transactions(ANSWER_SECONDS_MAX)

    def transaction(name: str, *, count: int) -> list[str]:
        producer.begin_transaction()
        ids = [f"{name}-{number}" for number in range(count)]
        for request_id in ids:
            value = json.dumps(envelope(request_id, payload=gate.noted())).encode()
            producer.produce(topic, value, request_id.encode())
        assert producer.flush(ANSWER_SECONDS_MAX) == 0
        return ids

    worker = new_worker(pool, handler=HANDLER)
    committed = []
    for round_number in range(4):
        committed += transaction(f"committed-{round_number}", count=3)
        producer.commit_transaction(ANSWER_SECONDS_MAX)
        transaction(f"aborted-{round_number}", count=2)
        producer.abort_transaction(ANSWER_SECONDS_MAX)
    last = pool.submit(Tier.MID, envelope("last", payload=gate.noted()))
    pool.results([*committed, *last])
    assert gate.starts() == dict.fromkeys([*committed, *last], 1)
    wait_until("nothing unfinished", lambda: worker.metric("forebay_unfinished_records") == 0)
    worker.terminate()
    # Four times three records and a marker, two records and a marker, and the last one: the broker may write the last
    # marker behind it.
    behind_last = max(message.offset() or 0 for message in pool.kafka.read_all(topic)) + 1
    assert behind_last in (4 * 7, 4 * 7 + 1)
    assert pool.kafka.committed(pool.topics.group(Tier.MID), topic) == {0: behind_last}


@pytest.mark.parametrize("back", ["when-missed", "at-once"])
def test_a_topic_that_is_deleted_is_loudly_missed_and_read_from_its_first_record_when_it_is_back(
    back: str, new_pool: NewPool, new_worker: NewWorker, tmp_path: Path
) -> None:
    pool, gate = new_pool(partitions=1), Gate(tmp_path)
    topic = pool.topics.requests(Tier.MID)
    worker = new_worker(pool, handler=HANDLER)
    before = pool.submit(Tier.MID, *(envelope(f"before-{number}", payload=gate.noted()) for number in range(10)))
    pool.results(before)
    wait_until("nothing unfinished", lambda: worker.metric("forebay_unfinished_records") == 0)

    admin = pool.kafka.admin()
    admin.delete_topics([topic])[topic].result(ANSWER_SECONDS_MAX)
    if back == "when-missed":
        wait_until("a worker that says so", lambda: topic in worker.get("/readyz")[1])
        assert worker.get("/readyz")[0] == 503
        assert any(event.get("topic") == topic and event["level"] == "warning" for event in worker.events())
        unaffected = pool.submit(Tier.HIGH, envelope("unaffected", payload=gate.noted()))
        pool.results(unaffected)

    [spec] = [spec for spec in pool.topics.specs(partitions=1, replication=1) if spec.name == topic]
    new_topic = NewTopic(topic, 1, 1, config=spec.config)

    def made() -> bool:
        try:
            admin.create_topics([new_topic])[topic].result(ANSWER_SECONDS_MAX)
        except KafkaException:  # the old one is still being deleted
            return False
        return True

    wait_until("the topic made anew", made)
    if back == "when-missed":
        wait_until("a worker that has it again", lambda: worker.get("/readyz")[0] == 200)
    producer = plain_producer(pool)
    # Fewer than the old one had: its positions lie beyond the end of the new one.
    after = [f"after-{number}" for number in range(5)]
    for request_id in after:
        producer.produce(topic, json.dumps(envelope(request_id, payload=gate.noted())).encode(), request_id.encode())
    assert producer.flush(ANSWER_SECONDS_MAX) == 0
    pool.results(after)
    assert {gate.starts()[request_id] for request_id in after} == {1}
    wait_until("a ready worker", lambda: worker.get("/readyz")[0] == 200)
    wait_until("nothing unfinished", lambda: worker.metric("forebay_unfinished_records") == 0)
    worker.terminate()
    assert pool.kafka.committed(pool.topics.group(Tier.MID), topic) == {0: 5}
