"""Tracing as the settings and the OTEL_ variables ask for it. Starts OpenTelemetry's exporter."""

from __future__ import annotations

from forebay_schemas.clock import Clock
from forebay_schemas.runtime.tracing import open_traces
from forebay_worker.settings import WorkerSettings
from forebay_worker.telemetry.tracing import NO_TRACING, Tracing


def make_tracing(settings: WorkerSettings, clock: Clock) -> Tracing:
    """What the settings and the OTEL_ variables ask for. Raises ``UsageError``."""
    traces = open_traces(
        settings.traces,
        service="forebay-worker",
        package="forebay-worker",
        attributes={"service.instance.id": settings.worker_id, "forebay.pool": settings.pool},
        shared=True,
    )
    if traces is None:
        return NO_TRACING
    from forebay_worker.telemetry.spans import Spans  # imports OpenTelemetry

    return Spans(traces, clock=clock, pool=settings.pool_topics(), backend_url=settings.backend_url)
