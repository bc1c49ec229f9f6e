"""Whether and where to export spans: the OpenTelemetry set-up shared by producer and worker. Reads the OTEL_ variables.
Imports OpenTelemetry only if it is needed; OpenTelemetry's own thread exports."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final, Literal

import structlog

from forebay_schemas.errors import UsageError

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer, TracerProvider

    from forebay_schemas.runtime.otel_context import RootDecisions

TracesSwitch = Literal["auto", "on", "off"]

FLUSH_SECONDS_MAX: Final = 2.0
"""How long a process waits at its end for the export of its last spans; an endpoint that hangs costs no more."""

_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_PROTOCOL: Final = "http/protobuf"

log = structlog.get_logger("forebay.tracing")


def wants_traces(switch: TracesSwitch, environ: Mapping[str, str]) -> bool:
    """Whether this process exports its own spans: configured to, or given an endpoint. OpenTelemetry's off switches
    apply."""
    if switch == "off" or _said(environ, "OTEL_SDK_DISABLED") == "true":
        return False
    if _said(environ, "OTEL_TRACES_EXPORTER") == "none":
        return False
    return switch == "on" or any(_said(environ, name) for name in _ENDPOINTS)


def _said(environ: Mapping[str, str], name: str) -> str:
    return environ.get(name, "").strip().lower()


class Traces:
    """The source of tracers. Close it: spans not exported by then are lost."""

    def __init__(self, provider: TracerProvider, *, is_ours: bool, decisions: RootDecisions | None = None) -> None:
        """``decisions``: of our own provider."""
        self._provider = provider
        self._is_ours = is_ours
        self.decisions = decisions

    def tracer(self, package: str) -> Tracer:
        """A tracer for the spans of one of our packages, e.g. ``forebay-worker``."""
        return self._provider.get_tracer(package.replace("-", "_"), version(package))

    def close(self) -> None:
        """Exports the remaining spans, for at most `FLUSH_SECONDS_MAX`. Leaves a foreign provider alone."""
        shutdown = getattr(self._provider, "shutdown", None)
        if not self._is_ours or shutdown is None:
            return
        # It has no timeout, and may wait for an endpoint that hangs. A daemon does not keep the process alive.
        thread = threading.Thread(target=shutdown, name="traces-flush", daemon=True)
        thread.start()
        thread.join(FLUSH_SECONDS_MAX)
        if thread.is_alive():
            log.warning("the last spans are not exported: the endpoint does not answer", seconds=FLUSH_SECONDS_MAX)


def open_traces(
    switch: TracesSwitch,
    *,
    service: str,
    package: str,
    attributes: Mapping[str, str],
    shared: bool,
    environ: Mapping[str, str] = os.environ,
) -> Traces | None:
    """Where spans go to; None when none are recorded.

    What the application has set up goes first. ``service`` is the service's name unless OTEL_SERVICE_NAME says it,
    ``attributes`` are added to it. ``shared``: whether all code of the process is to use what is set up here.

    Raises ``UsageError`` when ``switch`` is on and it cannot be done, or an OTEL_ variable has a value that cannot be;
    with auto, what cannot be done is logged and left.
    """
    if switch == "off":
        return None
    provider = _of_the_application()
    if provider is not None:
        return Traces(provider, is_ours=False)
    if not wants_traces(switch, environ):
        return None
    try:
        protocol = next((said for name in _PROTOCOLS if (said := _said(environ, name))), _PROTOCOL)
        if protocol != _PROTOCOL:
            raise UsageError(
                _PROTOCOLS[1], f"is {protocol}", fix=f"give {_PROTOCOL} and an endpoint that takes it, port 4318 mostly"
            )
        return _make_ours(service, package, attributes, shared=shared)
    except ImportError:
        problem = UsageError(
            "FOREBAY_TRACES",
            "cannot be served: OpenTelemetry is not installed",
            fix=f"pip install '{package}[otel]', or set FOREBAY_TRACES=off",
        )
    except UsageError as error:
        problem = error
    if switch == "on":
        raise problem
    log.warning("no spans are recorded", error=str(problem))
    return None


def _of_the_application() -> TracerProvider | None:
    # Only code that imported it can have set one, and an import takes time.
    api: Any = sys.modules.get("opentelemetry.trace")
    if api is None:
        return None
    provider: TracerProvider = api.get_tracer_provider()
    return None if isinstance(provider, api.ProxyTracerProvider) else provider


def _make_ours(service: str, package: str, attributes: Mapping[str, str], *, shared: bool) -> Traces:
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    from forebay_schemas.runtime.otel_context import PresetIds, RootDecisions

    ours = {"service.name": service, "service.version": version(package), **attributes}
    told = OTELResourceDetector().detect().attributes  # by OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES
    resource = Resource.create({name: value for name, value in ours.items() if name not in told})
    ids = PresetIds()
    try:
        provider = TracerProvider(resource=resource, shutdown_on_exit=False, id_generator=ids)
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    except ValueError as error:
        raise UsageError("OTEL_", f"variables cannot be followed: {error}", fix="correct that one") from None
    if shared:
        trace.set_tracer_provider(provider)
    return Traces(provider, is_ours=True, decisions=RootDecisions(provider.sampler, ids))
