"""Compares the deadlines and waits of the pool's other workers with this one's. The event loop's thread; times are
monotonic seconds that the caller passes in."""

from __future__ import annotations

from typing import Any

import structlog

from forebay_schemas.contract.coordination import GONE_SECONDS, Capacity
from forebay_schemas.contract.tier_agreement import difference
from forebay_schemas.contract.tiers import TierTimes

log = structlog.get_logger("forebay.sharing")


class TierPeers:
    """Receives every worker of the pool, whatever its backend. Warns once of each that has other values."""

    def __init__(self, *, worker: str, times: TierTimes) -> None:
        self._worker = worker
        self._times = times
        self._differing: dict[str, tuple[float, str]] = {}
        self._told: dict[str, str] = {}

    def receive(self, capacity: Capacity, *, now: float, age_seconds: float) -> None:
        """Receives a record that a broker accepted ``age_seconds`` ago."""
        if capacity.worker == self._worker or age_seconds >= GONE_SECONDS:
            return
        said = difference(self._times, capacity.times)
        if not said or (capacity.draining and not capacity.in_flight):
            self._differing.pop(capacity.worker, None)
            return
        self._differing[capacity.worker] = (now - max(0.0, age_seconds), said)
        if self._told.get(capacity.worker) != said:
            self._forget_gone(now)
            self._told = {worker: what for worker, what in self._told.items() if worker in self._differing}
            self._told[capacity.worker] = said
            log.warning(
                "another worker of the pool has other deadlines or waits",
                worker=capacity.worker,
                differs=said,
                fix="give all workers of the pool the same FOREBAY_TIER_TTL_MS and FOREBAY_TIER_WAIT_MS",
            )

    def status(self, now: float) -> dict[str, Any]:
        """For /status: this worker's values, and the differing values of others."""
        self._forget_gone(now)
        return {
            "ttl_ms": dict(self._times.ttl_ms),
            "wait_ms": dict(self._times.wait_ms),
            "differing": [{"worker": worker, "difference": said} for worker, (_, said) in self._sorted()],
        }

    def _sorted(self) -> list[tuple[str, tuple[float, str]]]:
        return sorted(self._differing.items())

    def _forget_gone(self, now: float) -> None:
        self._differing = {worker: known for worker, known in self._differing.items() if now - known[0] < GONE_SECONDS}
