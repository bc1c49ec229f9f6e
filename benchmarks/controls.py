"""Extra time of a worker's start with a million cancels in the control topic. Runs a child process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.cluster import PARTITIONS, Cluster, Watch
from benchmarks.programs import RUN_SECONDS_MAX, BenchError, worker_program
from benchmarks.records import envelopes
from forebay_schemas.contract.control import Control, ControlAction, control_key, encode_control
from forebay_schemas.contract.tiers import Tier
from forebay_schemas.contract.topics import Pool

SKIPPED = "coordination not read in time"
"""The worker's log event for a partition that it opens while the coordination topic is not read to its end."""

_LOOK_SECONDS = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlStart:
    """Seconds from the start of the process to the first result, ``without`` and ``with_cancels`` in the topic.

    ``skipped``: partitions that were opened before all cancels were read. ``most_mb``: resident memory of the worker
    that read them, in 10^6 bytes.
    """

    cancels: int
    without: float
    with_cancels: float
    skipped: int
    most_mb: float

    @property
    def extra_seconds(self) -> float:
        return self.with_cancels - self.without


def measure_controls(
    cluster: Cluster, *, pool_name: str, cancels: int, logs: Path, say: Callable[[str], None]
) -> ControlStart:
    """Starts a worker before an empty control topic and before a full one. Raises ``BenchError`` without a result."""
    pool = cluster.make_pool(pool_name)
    with cluster.watch(f"forebay.{pool.name}.bench") as watch:
        _start(cluster, pool, watch, number=1, logs=logs)  # what is compiled and cached then is not of every start
        without, _, _ = _start(cluster, pool, watch, number=2, logs=logs)
        say(f"controls: first result {without:.1f} s after the start; writing {cancels:,} cancels")
        cluster.fill(pool.control, _cancels(pool, cancels))
        with_cancels, skipped, most_mb = _start(cluster, pool, watch, number=3, logs=logs)
    say(f"controls: first result {with_cancels:.1f} s after the start, {most_mb:.0f} MB")
    return ControlStart(cancels=cancels, without=without, with_cancels=with_cancels, skipped=skipped, most_mb=most_mb)


def _start(cluster: Cluster, pool: Pool, watch: Watch, *, number: int, logs: Path) -> tuple[float, int, float]:
    """The ``number``-th start on this pool: seconds, partitions opened too early, and resident MB."""
    cluster.fill(pool.requests(Tier.MID), envelopes(1, seed=number))
    most_bytes = 0
    began = time.monotonic()
    with worker_program(cluster.kafka, pool=pool.name, handler="noop", limit_requests=1, logs=logs) as worker:
        while watch.waiting(pool.results) < number:
            worker.check_alive()
            most_bytes = max(most_bytes, worker.resident_bytes())
            if time.monotonic() - began > RUN_SECONDS_MAX:
                raise BenchError(f"a worker had no result {RUN_SECONDS_MAX:.0f} s after its start")
            time.sleep(_LOOK_SECONDS)
        seconds = time.monotonic() - began
        skipped = sum(SKIPPED in line for line in worker.lines())
    return seconds, skipped, most_bytes / 1e6


def _cancels(pool: Pool, count: int) -> Iterator[tuple[str, bytes]]:
    """Cancels as a client writes them, of requests that ended long ago."""
    for number in range(count):
        control = Control(
            action=ControlAction.CANCEL,
            request_id=f"{number:032x}",
            topic=pool.requests(Tier.MID),
            partition=number % PARTITIONS,
            offset=0,
            at=0,
            by="bench@bench",
        )
        yield control_key(control.action, control.request_id).decode(), encode_control(control)
