"""From submit to result with one request in flight, through a worker and through a raw echo. Runs child processes.

Both sides are driven by the same raw client, in turns, so what differs is the program in the middle.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from benchmarks import raw
from benchmarks.cluster import PARTITIONS, Cluster
from benchmarks.programs import BenchError, raw_program, worker_program
from benchmarks.records import envelopes
from forebay_sandbox.kafka_access import KafkaAccess
from forebay_schemas.kafka import create_client
from forebay_schemas.tiers import Tier

BLOCK_REQUESTS = 200
WARM_UP_BLOCKS = 2
LIMIT_REQUESTS = 64
ANSWER_SECONDS_MAX = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Round trips in seconds, warm-up left out."""

    raw_seconds: list[float]
    worker_seconds: list[float]

    @property
    def p50_extra_ms(self) -> float:
        return (percentile(self.worker_seconds, 50) - percentile(self.raw_seconds, 50)) * 1000

    @property
    def p99_ratio(self) -> float:
        return percentile(self.worker_seconds, 99) / percentile(self.raw_seconds, 99)


def percentile(values: list[float], percent: float) -> float:
    """The smallest of ``values`` that at least ``percent`` of them do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def measure_latency(
    cluster: Cluster, *, pool_name: str, blocks: int, logs: Path, say: Callable[[str], None]
) -> Latency:
    """``blocks`` times 200 round trips on either side, after two blocks each to warm up."""
    pool = cluster.make_pool(pool_name)
    source, sink = cluster.make_like_results(pool, "echo-in"), cluster.make_like_results(pool, "echo-out")
    requests = envelopes((blocks + WARM_UP_BLOCKS) * BLOCK_REQUESTS * 2)
    found = Latency(raw_seconds=[], worker_seconds=[])
    group = f"{pool.name}.echo"
    kafka = cluster.kafka
    with (
        raw_program("echo", kafka, source=source, sink=sink, group=group, logs=logs),
        worker_program(kafka, pool=pool.name, handler="noop", limit_requests=LIMIT_REQUESTS, logs=logs),
        _client(kafka, source=source, sink=sink) as through_raw,
        _client(kafka, source=pool.requests(Tier.HIGH), sink=pool.results) as through_worker,
    ):
        say("latency: warming up")
        for client in (through_raw, through_worker) * WARM_UP_BLOCKS:
            _block(client, requests)
        for number in range(1, blocks + 1):
            found.raw_seconds.extend(_block(through_raw, requests))
            found.worker_seconds.extend(_block(through_worker, requests))
            medians = [percentile(one, 50) * 1000 for one in (found.raw_seconds, found.worker_seconds)]
            say(f"latency: block {number} of {blocks}: p50 so far {medians[0]:.2f} ms raw, {medians[1]:.2f} ms worker")
    return found


class _Client:
    """Sends a record to ``source`` and waits for the one with its key in ``sink``."""

    def __init__(self, producer: Producer, consumer: Consumer, *, source: str) -> None:
        self._producer = producer
        self._consumer = consumer
        self._source = source

    def round_trip_seconds(self, request_id: str, value: bytes) -> float:
        key = request_id.encode()
        began = time.perf_counter()
        self._producer.produce(self._source, value, key)
        while (message := self._consumer.poll(ANSWER_SECONDS_MAX)) is not None:
            if (error := message.error()) is not None:
                raise KafkaException(error)
            if message.key() == key:
                took = time.perf_counter() - began
                self._producer.poll(0)
                return took
        raise BenchError(f"no answer from {self._source} after {ANSWER_SECONDS_MAX:.0f} s")


def _block(client: _Client, requests: Iterator[tuple[str, bytes]]) -> list[float]:
    return [client.round_trip_seconds(*next(requests)) for _ in range(BLOCK_REQUESTS)]


@contextmanager
def _client(kafka: KafkaAccess, *, source: str, sink: str) -> Iterator[_Client]:
    consumer = create_client(Consumer, raw.consumer_settings(kafka.connection, group="forebay-bench"))
    try:
        consumer.assign([TopicPartition(sink, partition, 0) for partition in range(PARTITIONS)])
        producer = create_client(Producer, raw.producer_settings(kafka.connection))
        yield _Client(producer, consumer, source=source)
    finally:
        consumer.close()
