"""From submit to result with one request in flight, through a worker and through a raw echo. Runs child processes.

Three series in turns: a raw client through the echo, the same client through the worker (what differs is the program
in the middle: the promises speak of these two), and Forebay's own client through the worker.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from benchmarks import raw
from benchmarks.cluster import PARTITIONS, Cluster
from benchmarks.programs import BenchError, Program, raw_program, worker_program
from benchmarks.records import envelopes
from forebay_producer.client.client import Producer as ForebayProducer
from forebay_producer.settings import ProducerSettings
from forebay_sandbox.kafka.access import KafkaAccess
from forebay_schemas.contract.tiers import Tier
from forebay_schemas.kafka.clients import create_client
from forebay_schemas.kafka.transient import TRANSIENT

BLOCK_REQUESTS = 200
WARM_UP_BLOCKS = 2
CLIENT_WARM_UP_REQUESTS = 20
LIMIT_REQUESTS = 64
ANSWER_SECONDS_MAX = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One way's round trips in seconds, block by block.

    A percentile is the median of the blocks' own: what disturbs the machine for a moment spoils one block, not all.
    """

    blocks: list[list[float]] = field(default_factory=list)

    def percentile_ms(self, percent: float) -> float:
        return median(percentile(block, percent) for block in self.blocks) * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """The three ways, warm-up left out."""

    raw: Series
    worker: Series
    client: Series

    @property
    def p50_extra_ms(self) -> float:
        return self.worker.percentile_ms(50) - self.raw.percentile_ms(50)

    @property
    def p99_ratio(self) -> float:
        return self.worker.percentile_ms(99) / self.raw.percentile_ms(99)


def percentile(values: list[float], percent: float) -> float:
    """The smallest of ``values`` that at least ``percent`` of them do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def measure_latency(
    cluster: Cluster, *, pool_name: str, blocks: int, logs: Path, say: Callable[[str], None]
) -> Latency:
    """``blocks`` times 200 round trips each way, after two blocks each to warm up."""
    pool = cluster.make_pool(pool_name)
    source, sink = cluster.make_like_results(pool, "echo-in"), cluster.make_like_results(pool, "echo-out")
    requests = envelopes((blocks + WARM_UP_BLOCKS) * (3 * BLOCK_REQUESTS + CLIENT_WARM_UP_REQUESTS))
    found = Latency(raw=Series(), worker=Series(), client=Series())
    kafka = cluster.kafka
    with (
        raw_program("echo", kafka, source=source, sink=sink, group=f"{pool.name}.echo", logs=logs) as echo,
        worker_program(kafka, pool=pool.name, handler="noop", limit_requests=LIMIT_REQUESTS, logs=logs) as worker,
        _client(kafka, source=source, sink=sink, through=echo) as through_raw,
        _client(kafka, source=pool.requests(Tier.MID), sink=pool.results, through=worker) as through_worker,
    ):
        for number in range(1 - WARM_UP_BLOCKS, blocks + 1):
            block = (
                _block(through_raw, requests),
                _block(through_worker, requests),
                _client_block(kafka, pool.name, requests),
            )
            if number < 1:
                say("latency: warming up")
                continue
            for series, seconds in zip((found.raw, found.worker, found.client), block, strict=True):
                series.blocks.append(seconds)
            raw_ms, worker_ms, client_ms = (percentile(seconds, 50) * 1000 for seconds in block)
            say(
                f"latency: block {number} of {blocks}: p50 {raw_ms:.2f} ms raw, {worker_ms:.2f} ms worker, "
                f"{client_ms:.2f} ms Forebay's client and worker"
            )
    return found


class _Client:
    """Sends a record to ``source`` and waits for the one with its key in ``sink``, which is ``through``'s to write."""

    def __init__(self, producer: Producer, consumer: Consumer, *, source: str, through: Program) -> None:
        self._producer = producer
        self._consumer = consumer
        self._source = source
        self._through = through

    def round_trip_seconds(self, request_id: str, value: bytes) -> float:
        key = request_id.encode()
        began = time.perf_counter()
        self._producer.produce(self._source, value, key)
        while (message := self._consumer.poll(ANSWER_SECONDS_MAX)) is not None:
            if (error := message.error()) is not None:
                if error.code() not in TRANSIENT:
                    raise KafkaException(error)
            elif message.key() == key:
                took = time.perf_counter() - began
                self._producer.poll(0)
                return took
        self._through.check_alive()
        raise BenchError(f"no answer from {self._source} after {ANSWER_SECONDS_MAX:.0f} s")


def _block(client: _Client, requests: Iterator[tuple[str, bytes]]) -> list[float]:
    return [client.round_trip_seconds(*next(requests)) for _ in range(BLOCK_REQUESTS)]


def _client_block(kafka: KafkaAccess, pool: str, requests: Iterator[tuple[str, bytes]]) -> list[float]:
    # Made for the block and closed with it: it follows the results, and would take its share of the other ways' time.
    settings = ProducerSettings(bootstrap_servers=kafka.bootstrap_servers, pool=pool)
    seconds = []
    with ForebayProducer(settings=settings) as producer:
        for _ in range(CLIENT_WARM_UP_REQUESTS + BLOCK_REQUESTS):
            request_id, value = next(requests)
            fields = json.loads(value)
            began = time.perf_counter()
            producer.submit(fields)
            producer.outcome(request_id, timeout_seconds=ANSWER_SECONDS_MAX)
            seconds.append(time.perf_counter() - began)
    return seconds[CLIENT_WARM_UP_REQUESTS:]


@contextmanager
def _client(kafka: KafkaAccess, *, source: str, sink: str, through: Program) -> Iterator[_Client]:
    consumer = create_client(Consumer, raw.consumer_settings(kafka.connection, group="forebay-bench"))
    try:
        consumer.assign([TopicPartition(sink, partition, 0) for partition in range(PARTITIONS)])
        producer = create_client(Producer, raw.producer_settings(kafka.connection))
        yield _Client(producer, consumer, source=source, through=through)
    finally:
        consumer.close()
