"""Resident memory of a worker that stands at its limit while many records wait in all three tiers. Runs a child."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.cluster import Cluster
from benchmarks.programs import worker_program
from benchmarks.records import envelopes
from forebay_schemas.contract.tiers import TIERS

LIMIT_REQUESTS = 64
SAMPLE_SECONDS = 0.25
FLAT_SECONDS = 15.0
FLAT_GROWTH_MB_MAX = 3.0
WATCH_SECONDS_MAX = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Samples of resident memory in MB (10^6 bytes), one each ``SAMPLE_SECONDS``."""

    samples_mb: list[float]

    @property
    def most_mb(self) -> float:
        return max(self.samples_mb)

    @property
    def growth_mb(self) -> float:
        """The second half's maximum beyond the first half's, of the last 15 s. Negative: it shrank."""
        last = self.samples_mb[-_FLAT_SAMPLES:]
        half = len(last) // 2
        return max(last[half:]) - max(last[:half])

    @property
    def flat(self) -> bool:
        return len(self.samples_mb) >= _FLAT_SAMPLES and self.growth_mb <= FLAT_GROWTH_MB_MAX


_FLAT_SAMPLES = int(FLAT_SECONDS / SAMPLE_SECONDS)


def measure_memory(cluster: Cluster, *, pool_name: str, records: int, logs: Path, say: Callable[[str], None]) -> Memory:
    """Fills the three tiers in equal parts and watches a worker until its memory is flat, a minute at most."""
    pool = cluster.make_pool(pool_name)
    say(f"memory: writing {records:,} records")
    for tier in TIERS:
        cluster.fill(pool.requests(tier), envelopes(-(-records // len(TIERS))))
    found = Memory(samples_mb=[])
    kafka = cluster.kafka
    with worker_program(kafka, pool=pool.name, handler="sleepy", limit_requests=LIMIT_REQUESTS, logs=logs) as worker:
        deadline = time.monotonic() + WATCH_SECONDS_MAX
        while not found.flat and time.monotonic() < deadline:
            worker.check_alive()
            found.samples_mb.append(worker.resident_bytes() / 1e6)
            if len(found.samples_mb) % 20 == 1:
                say(f"memory: {found.samples_mb[-1]:.0f} MB")
            time.sleep(SAMPLE_SECONDS)
    return found
