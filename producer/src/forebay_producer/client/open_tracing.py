"""Chooses the tracing of sent records, once, when a client or a command starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay_schemas.runtime.tracing import TracesSwitch, open_traces

if TYPE_CHECKING:
    pass
from forebay_producer.client.tracing import NO_TRACING, SendTracing


def make_tracing(switch: TracesSwitch, *, service: str) -> SendTracing:
    """Tracing as the application, the setting or the OTEL_ variables configure it. Raises ``UsageError``."""
    traces = open_traces(switch, service=service, package="forebay-producer", attributes={}, shared=False)
    if traces is None:
        return NO_TRACING
    from forebay_producer.client.spans import SendSpans  # imports OpenTelemetry

    return SendSpans(traces)
