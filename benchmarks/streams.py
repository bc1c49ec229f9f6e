"""Costs of streams beside an HTTP client that throws away what it reads, and the time until a first piece is there.

Runs child processes; the broker is there. CPU time is that of a whole process, from the process table.
"""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from confluent_kafka import Consumer, TopicPartition

from benchmarks.cluster import PARTITIONS, Cluster
from benchmarks.programs import RUN_SECONDS_MAX, BenchError, Program, streams_engine, streams_reader, streams_worker
from benchmarks.records import FAR_EXPIRE_AT
from forebay_schemas.contract.pieces import decode_piece
from forebay_schemas.contract.tiers import Tier
from forebay_schemas.contract.topics import Pool
from forebay_schemas.kafka.clients import create_client
from forebay_schemas.kafka.configs import reader_config

STREAMS: Final = 256
TOKENS_PER_SECOND: Final = 50
SETTLE_SECONDS: Final = 2.0
WATCHED_SECONDS: Final = 8.0
TOKENS: Final = 900
"""Of a stream: enough for all to begin, to settle and to be watched."""

FIRST_PIECES: Final = 100
LATENCY_TOKENS: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsCost:
    """``reader_cpu_share``, ``worker_cpu_share``: CPU seconds a second while all streams run. ``first_pieces_ms``: from
    the engine's sending the first token until a consumer has its piece, one stream at a time."""

    reader_cpu_share: float
    worker_cpu_share: float
    first_pieces_ms: list[float]

    @property
    def cpu_ratio(self) -> float:
        return self.worker_cpu_share / self.reader_cpu_share

    @property
    def first_piece_ms(self) -> float:
        return median(self.first_pieces_ms)


def measure_streams(cluster: Cluster, *, pool_name: str, logs: Path, say: Callable[[str], None]) -> StreamsCost:
    """Raises ``BenchError``."""
    pool, kafka = cluster.make_pool(pool_name), cluster.kafka
    with streams_engine(kafka, logs=logs) as url:
        with streams_reader(kafka, url=url, streams=STREAMS, tokens=TOKENS, logs=logs) as reader:
            reader_cpu_share = _cpu_share(reader, url)
        with streams_worker(kafka, pool=pool.name, backend_url=url, limit_requests=STREAMS, logs=logs) as worker:
            first_pieces_ms = _first_pieces_ms(cluster, pool)
            cluster.fill(pool.requests(Tier.HIGH), _requests("stream", STREAMS, TOKENS))
            worker_cpu_share = _cpu_share(worker, url)
    found = StreamsCost(
        reader_cpu_share=reader_cpu_share, worker_cpu_share=worker_cpu_share, first_pieces_ms=first_pieces_ms
    )
    say(
        f"streams: {1000 * worker_cpu_share:.0f} ms of CPU a second, the client alone {1000 * reader_cpu_share:.0f}; "
        f"first piece after {found.first_piece_ms:.1f} ms"
    )
    return found


def _requests(name: str, count: int, tokens: int) -> Iterator[tuple[str, bytes]]:
    for number in range(count):
        request_id = f"{name}-{number:06}"
        fields = {
            "request_id": request_id,
            "biz_type": "chat_completion",
            "expire_at": FAR_EXPIRE_AT,
            "payload": {"model": "m", "messages": [], "stream": True, "max_tokens": tokens},
            "reply": {"stream": True, "partition": number % PARTITIONS},
        }
        yield request_id, json.dumps(fields).encode()


def _cpu_share(program: Program, url: str) -> float:
    deadline = time.monotonic() + RUN_SECONDS_MAX
    while _active(url) < STREAMS:
        program.check_alive()
        if time.monotonic() > deadline:
            raise BenchError(f"{_active(url)} of {STREAMS} streams are open")
        time.sleep(0.1)
    time.sleep(SETTLE_SECONDS)
    began, cpu_seconds = time.monotonic(), program.cpu_seconds()
    time.sleep(WATCHED_SECONDS)
    share = (program.cpu_seconds() - cpu_seconds) / (time.monotonic() - began)
    if (active := _active(url)) < STREAMS:
        raise BenchError(f"{active} of {STREAMS} streams were still open at the end")
    return share


def _active(url: str) -> int:
    with urllib.request.urlopen(f"{url}/active", timeout=10) as answer:  # noqa: S310 - our own http URL
        return int(answer.read())


def _first_pieces_ms(cluster: Cluster, pool: Pool) -> list[float]:
    config = reader_config(cluster.kafka.connection, client_id="forebay-bench") | {"fetch.wait.max.ms": 500}
    consumer = create_client(Consumer, config)
    took: list[float] = []
    try:
        consumer.assign([TopicPartition(pool.streams, number, 0) for number in range(PARTITIONS)])
        for number, record in enumerate(_requests("first", FIRST_PIECES, LATENCY_TOKENS)):
            cluster.fill(pool.requests(Tier.HIGH), [record])
            found = _first_piece_ms(consumer, record[0])
            if number:  # with the first one the worker finds the topic
                took.append(found)
    finally:
        consumer.close()
    return took


def _first_piece_ms(consumer: Consumer, request_id: str) -> float:
    deadline = time.monotonic() + RUN_SECONDS_MAX
    found: float | None = None
    while time.monotonic() < deadline:
        message = consumer.poll(0.2)
        if message is None or message.error() is not None or message.key() != request_id.encode():
            continue
        now_ns = time.monotonic_ns()
        piece = decode_piece(message.value())
        for event in piece.events:
            delta = json.loads(bytes(event.data))["choices"][0]["delta"]
            if found is None and delta.get("content"):
                found = (now_ns - int(delta["content"])) / 1e6
        if piece.last:
            if found is None:
                raise BenchError(f"{request_id} has no text")
            return found
        if piece.error:
            raise BenchError(f"{request_id}: {piece.error}")
    raise BenchError(f"no piece of {request_id} has come")
