"""Exports the last reading of each pool to Prometheus. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client.core import Metric

from forebay_producer.exporter.exporter import PoolState
from forebay_producer.metrics import EXPORTER_METRICS
from forebay_schemas.clock import Clock
from forebay_schemas.kafka.certificates import METRIC as CERTIFICATE_ENDS
from forebay_schemas.runtime.metrics import Sheet


class ExporterCollector:
    """Exports the last reading of each pool. A reading older than ``stale_seconds`` is left out, except its age.

    ``certificate_ends``: from `certificate_ends`, for the connection of all pools.
    """

    def __init__(
        self,
        states: Callable[[], Mapping[str, PoolState]],
        *,
        clock: Clock,
        stale_seconds: float,
        certificate_ends: Mapping[str, float],
    ) -> None:
        self._states = states
        self._certificate_ends = certificate_ends
        self._clock = clock
        self._stale_seconds = stale_seconds

    def describe(self) -> Iterable[Metric]:
        """Nothing: registering must not call `collect`."""
        return ()

    def collect(self) -> Iterator[Metric]:
        sheet = Sheet(EXPORTER_METRICS)
        now = self._clock.monotonic()
        for pool, state in self._states().items():
            sheet.add(pool, "forebay_exporter_up", state.trouble is None)
            for certificate, ends_at in self._certificate_ends.items():
                sheet.add(pool, CERTIFICATE_ENDS, ends_at, certificate)
            if state.read_at is not None:
                sheet.add(pool, "forebay_exporter_age_seconds", now - state.read_at)
                if now - state.read_at <= self._stale_seconds:
                    _add_figures(sheet, pool, state)
        yield from sheet.families()


def _add_figures(sheet: Sheet, pool: str, state: PoolState) -> None:
    figures = state.figures
    assert figures is not None
    for tier, of_tier in figures.tiers.items():
        for name, value in (
            ("forebay_backlog_records", of_tier.backlog_records),
            ("forebay_retry_backlog_records", of_tier.retry_backlog_records),
            ("forebay_oldest_age_seconds", of_tier.oldest_age_seconds),
            ("forebay_oldest_age_ratio", of_tier.oldest_age_ratio),
            ("forebay_enqueued_total", of_tier.enqueued),
            ("forebay_dequeued_total", of_tier.dequeued),
            ("forebay_partitions", of_tier.partitions),
            ("forebay_backlog_wait_seconds", of_tier.wait_seconds),
            ("forebay_allowed_wait_seconds", figures.times.wait_seconds(tier)),
            ("forebay_tier_deadline_seconds", figures.times.ttl_seconds(tier)),
            ("forebay_deadline_risk_ratio", of_tier.risk),
        ):
            sheet.add(pool, name, value, tier)
    sheet.add(pool, "forebay_dead_lettered_total", figures.dead_lettered)
    sheet.add(pool, "forebay_workers", figures.workers)
    sheet.add(pool, "forebay_differing_workers", len(figures.agreement.differing) if figures.agreement else 0)
    sheet.add(pool, "forebay_pool_limit_requests", figures.limit_requests)
    sheet.add(pool, "forebay_pool_rate", figures.rate)
