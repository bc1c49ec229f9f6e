"""The client library's metrics, for a Prometheus registry of the user's choice. Any thread may count."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from prometheus_client.core import Metric

from forebay_producer.admission.decision import RefusalReason
from forebay_producer.metrics import LIBRARY_METRICS, SUBMIT_FAILURE_REASONS
from forebay_schemas.contract.reasons import Status
from forebay_schemas.contract.tiers import TIERS, Tier
from forebay_schemas.runtime.metrics import Histogram, Sheet

_OTHER = "other"
REFUSAL_CODES = tuple(reason.value for reason in RefusalReason)
_FOLD_SAMPLES = 1000


@dataclass(slots=True, kw_only=True)
class _PoolCounts:
    submitted: dict[Tier, int] = field(default_factory=lambda: dict.fromkeys(TIERS, 0))
    submit_seconds: dict[Tier, Histogram] = field(default_factory=lambda: {tier: Histogram() for tier in TIERS})
    failures: dict[str, int] = field(default_factory=lambda: dict.fromkeys((*SUBMIT_FAILURE_REASONS, _OTHER), 0))
    outcomes: dict[Status, int] = field(default_factory=lambda: dict.fromkeys(Status, 0))
    admitted: dict[Tier, int] = field(default_factory=lambda: dict.fromkeys(TIERS, 0))
    refused: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REFUSAL_CODES, 0))
    timeouts: int = 0
    awaited: int = 0


class ProducerMetrics:
    """A collector for a prometheus-client registry: make one, register it, and give it to each producer.

    The library registers nothing by itself. One collector may serve several producers, of one or several pools.
    Counting costs about a microsecond a request.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pools: dict[str, _PoolCounts] = {}

    def add_pool(self, pool: str) -> None:
        """Adds a pool. Counting for a pool requires that it was added."""
        with self._lock:
            self._pools.setdefault(pool, _PoolCounts())

    def acknowledged(self, pool: str, tier: Tier, seconds: float) -> None:
        """Counts an acknowledged request. ``seconds``: from the Kafka client's queue to the acknowledgement."""
        with self._lock:
            counts = self._pools[pool]
            counts.submitted[tier] += 1
            counts.submit_seconds[tier].observe(seconds)
            if counts.submitted[tier] % _FOLD_SAMPLES == 0:
                counts.submit_seconds[tier].fold()

    def failed(self, pool: str, reason: str) -> None:
        """Counts a refused or unacknowledged request. ``reason``: that of the error."""
        with self._lock:
            failures = self._pools[pool].failures
            failures[reason if reason in failures else _OTHER] += 1

    def decided(self, pool: str, tier: Tier, refusal: str | None) -> None:
        """Counts a decision of admission. ``refusal``: the code of its reason; None for an admitted request."""
        with self._lock:
            counts = self._pools[pool]
            if refusal is None:
                counts.admitted[tier] += 1
            else:
                counts.refused[refusal] += 1

    def outcome(self, pool: str, status: Status) -> None:
        """Counts an outcome returned to a caller."""
        with self._lock:
            self._pools[pool].outcomes[status] += 1

    def timed_out(self, pool: str) -> None:
        """Counts a wait that ended without an outcome."""
        with self._lock:
            self._pools[pool].timeouts += 1

    @contextmanager
    def awaiting(self, pool: str) -> Iterator[None]:
        """Counts a waiting caller while the block runs."""
        self._await(pool, 1)
        try:
            yield
        finally:
            self._await(pool, -1)

    def describe(self) -> Iterable[Metric]:
        """The metric families, so that a registry refuses a second collector: share one among all producers."""
        return Sheet(LIBRARY_METRICS).families()

    def collect(self) -> Iterator[Metric]:
        sheet = Sheet(LIBRARY_METRICS)
        with self._lock:
            for pool, counts in self._pools.items():
                for tier in TIERS:
                    sheet.add(pool, "forebay_submitted_total", counts.submitted[tier], tier)
                    sheet.add(pool, "forebay_submit_seconds", counts.submit_seconds[tier], tier)
                for reason, number in counts.failures.items():
                    sheet.add(pool, "forebay_submit_failures_total", number, reason)
                for status, number in counts.outcomes.items():
                    sheet.add(pool, "forebay_outcomes_received_total", number, status)
                for tier in TIERS:
                    sheet.add(pool, "forebay_admitted_total", counts.admitted[tier], tier)
                for code, number in counts.refused.items():
                    sheet.add(pool, "forebay_admission_refusals_total", number, code)
                sheet.add(pool, "forebay_outcome_timeouts_total", counts.timeouts)
                sheet.add(pool, "forebay_outcome_waits", counts.awaited)
        yield from sheet.families()

    def _await(self, pool: str, change: int) -> None:
        with self._lock:
            self._pools[pool].awaited += change
