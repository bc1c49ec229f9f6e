"""Clients in any language read a worker's records without a codec that they would have to install."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from forebay_schemas.contract.tiers import Tier
from harness.bare_client import fetch_batches
from harness.live_pool import envelope

if TYPE_CHECKING:
    from harness.live_pool import LivePool, NewPool
    from harness.workers import NewWorker

TEXT = "the quick brown fox jumps over the lazy dog " * 100


def test_results_and_dead_letters_are_read_without_a_codec_of_its_own(new_pool: NewPool, new_worker: NewWorker) -> None:
    """kafkajs and plain kafka-python end at the first batch of LZ4."""
    pool = new_pool(partitions=1)
    new_worker(pool, handler="harness.handlers:obey", max_retries=0)
    answered = [envelope(f"answered-{number}", payload={"do": "echo", "text": TEXT}) for number in range(50)]
    pool.submit(Tier.HIGH, *answered, envelope("fails", payload={"do": "raise", "text": TEXT}))
    pool.results([*(one["request_id"] for one in answered), "fails"])
    results = read(pool, pool.topics.results)
    assert all(one["request_id"].encode() in results for one in answered)
    assert results.count(TEXT.encode()) == 50
    pool.dead_letters(1)
    assert TEXT.encode() in read(pool, pool.topics.dead_letter)
    assert b'"worker-1"' in read(pool, pool.topics.coordination)
    write_in_lz4(pool, pool.topics.results)
    with pytest.raises(ValueError, match="LZ4 compression not implemented"):
        read(pool, pool.topics.results)


def read(pool: LivePool, topic: str) -> bytes:
    """All records of the only partition, unpacked."""
    return b"".join(batch.records for batch in fetch_batches(pool.kafka, topic))


def write_in_lz4(pool: LivePool, topic: str) -> None:
    """As workers did once: the reader here is to be one that cannot read it."""
    properties = {**pool.kafka.connection.properties, "bootstrap.servers": pool.kafka.bootstrap_servers}
    producer = Producer({**properties, "compression.type": "lz4"})
    producer.produce(topic, TEXT.encode(), b"packed")
    assert producer.flush(30) == 0
