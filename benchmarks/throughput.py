"""Records a second that one worker process finishes with a handler that does nothing, beside the raw loop.

Both read the same preloaded topic, in turns. The measure is the broker's time from the first result to the last
(LogAppendTime), so process start-up is left out and so is our own watching. Runs child processes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from confluent_kafka import Message

from benchmarks.cluster import Cluster
from benchmarks.programs import RUN_SECONDS_MAX, BenchError, Program, raw_program, worker_program
from benchmarks.records import envelopes
from forebay_schemas.contract.reasons import Status
from forebay_schemas.contract.results import decode_result
from forebay_schemas.contract.tiers import Tier

LIMIT_REQUESTS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One pass over the topic. ``committed_seconds`` runs from the first result to the commit of the last record,
    as seen from outside, every 20 ms."""

    per_second: float
    committed_seconds: float
    cpu_microseconds_per_record: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """Both sides' runs in the order in which they were made, a raw one before each of the worker's."""

    raw: list[Run]
    worker: list[Run]

    @property
    def raw_per_second(self) -> float:
        return median(run.per_second for run in self.raw)

    @property
    def per_second(self) -> float:
        return median(run.per_second for run in self.worker)

    @property
    def ratio(self) -> float:
        return self.per_second / self.raw_per_second


def measure_throughput(
    cluster: Cluster, *, pool_name: str, records: int, rounds: int, logs: Path, say: Callable[[str], None]
) -> Throughput:
    """Fills a topic and lets both sides take it ``rounds`` times. Raises ``BenchError`` for a lost or doubled one."""
    pool = cluster.make_pool(pool_name)
    source = pool.requests(Tier.MID)
    raw_sink = cluster.make_like_results(pool, "raw-results")
    say(f"throughput: writing {records:,} records of 800 bytes")
    cluster.fill(source, envelopes(records))
    kafka = cluster.kafka
    found = Throughput(raw=[], worker=[])
    for number in range(1, rounds + 1):
        group = f"{pool.name}.raw-{number}"
        program = raw_program("loop", kafka, source=source, sink=raw_sink, group=group, logs=logs)
        run = _measure(cluster, program, source=source, sink=raw_sink, group=group, records=records)
        found.raw.append(run)
        say(f"throughput: raw loop {number} of {rounds}: {run.per_second:,.0f}/s")
        group = pool.group(Tier.MID)
        program = worker_program(kafka, pool=pool.name, handler="noop", limit_requests=LIMIT_REQUESTS, logs=logs)
        run = _measure(cluster, program, source=source, sink=pool.results, group=group, records=records, judge=_judge)
        found.worker.append(run)
        say(f"throughput: worker {number} of {rounds}: {run.per_second:,.0f}/s")
        cluster.forget_group(group)
    return found


def _judge(results: list[Message]) -> None:
    decoded = [decode_result(value) for message in results if (value := message.value()) is not None]
    wrong = [one for one in decoded if one.status is not Status.COMPLETED]
    if wrong:
        raise BenchError(f"{len(wrong)} requests were not completed, one of them {wrong[0].reason}: {wrong[0].error}")


def _measure(
    cluster: Cluster,
    starting: AbstractContextManager[Program],
    *,
    source: str,
    sink: str,
    group: str,
    records: int,
    judge: Callable[[list[Message]], None] = lambda _results: None,
) -> Run:
    with cluster.watch(group) as watch:
        cluster.empty(sink, watch=watch)
        deadline = time.monotonic() + RUN_SECONDS_MAX
        with starting as program:
            _wait(lambda: watch.waiting(sink) > 0, program, deadline, what="a first result")
            began, cpu_before = time.monotonic(), program.cpu_seconds()
            _wait(lambda: watch.committed(source) >= records, program, deadline, what="the last commit")
            committed_seconds, cpu_seconds = time.monotonic() - began, program.cpu_seconds() - cpu_before
    results = cluster.kafka.read_all(sink)
    distinct = len({message.key() for message in results})
    if distinct != records or len(results) != records:
        raise BenchError(f"{records} records gave {len(results)} results for {distinct} of them")
    judge(results)
    times_ms = [message.timestamp()[1] for message in results]
    return Run(
        per_second=records * 1000 / max(1, max(times_ms) - min(times_ms)),
        committed_seconds=committed_seconds,
        cpu_microseconds_per_record=cpu_seconds / records * 1e6,
    )


def _wait(done: Callable[[], bool], program: Program, deadline: float, *, what: str) -> None:
    while not done():
        program.check_alive()
        if time.monotonic() > deadline:
            raise BenchError(f"waited {RUN_SECONDS_MAX:.0f} s for {what}")
        time.sleep(0.02)
