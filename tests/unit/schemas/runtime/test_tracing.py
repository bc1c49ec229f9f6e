"""Recording of spans: by the switch, the OTEL_ variables and the installed packages. One test starts a process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from structlog.testing import capture_logs

from forebay_schemas.errors import UsageError
from forebay_schemas.runtime.tracing import Traces, TracesSwitch, open_traces, wants_traces

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}


@pytest.mark.parametrize(
    ("switch", "environ", "wanted"),
    [
        ("auto", {}, False),
        ("auto", {"OTEL_EXPORTER_OTLP_ENDPOINT": " "}, False),
        ("auto", {"OTEL_SERVICE_NAME": "mine"}, False),
        ("auto", ENDPOINT, True),
        ("auto", {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:4318/v1/traces"}, True),
        ("auto", {**ENDPOINT, "OTEL_SDK_DISABLED": "true"}, False),
        ("auto", {**ENDPOINT, "OTEL_SDK_DISABLED": "false"}, True),
        ("auto", {**ENDPOINT, "OTEL_TRACES_EXPORTER": "none"}, False),
        ("auto", {**ENDPOINT, "OTEL_TRACES_EXPORTER": "otlp"}, True),
        ("on", {}, True),
        ("on", {"OTEL_SDK_DISABLED": "True"}, False),
        ("off", ENDPOINT, False),
    ],
)
def test_who_names_an_endpoint_wants_traces(switch: TracesSwitch, environ: dict[str, str], wanted: bool) -> None:
    assert wants_traces(switch, environ) is wanted


IMPORTING = """
import sys
import forebay_worker.lifecycle.worker, forebay_producer.cli.app
from forebay_producer import Producer
Producer(bootstrap_servers="127.0.0.1:1").close()
sys.exit(" ".join(name for name in sys.modules if name.startswith("opentelemetry")))
"""


def test_nothing_is_imported_unless_it_is_wanted() -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "FOREBAY_"))}
    environ = kept | ENDPOINT | {"FOREBAY_TRACES": "off"}
    done = subprocess.run([sys.executable, "-c", IMPORTING], env=environ, capture_output=True, timeout=120, check=False)
    assert done.stderr.decode() == "\n"


def opened(switch: TracesSwitch, environ: Mapping[str, str]) -> Traces | None:
    return open_traces(
        switch, service="s", package="forebay-worker", attributes={"a": "b"}, shared=False, environ=environ
    )


def test_without_the_extra_auto_goes_on_and_on_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with capture_logs() as lines:
        assert opened("auto", ENDPOINT) is None
    [line] = lines
    assert (line["log_level"], line["event"]) == ("warning", "no spans are recorded")
    with pytest.raises(UsageError, match=r"^FOREBAY_TRACES: cannot be served.*pip install 'forebay-worker\[otel\]'"):
        opened("on", {})


def test_a_protocol_that_is_not_spoken_is_named() -> None:
    grpc = {**ENDPOINT, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
    assert opened("auto", grpc) is None
    with pytest.raises(UsageError, match=r"^OTEL_EXPORTER_OTLP_PROTOCOL: is grpc; give http/protobuf"):
        opened("on", grpc)


def test_a_variable_that_cannot_be_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "0")
    with pytest.raises(UsageError, match=r"^OTEL_: variables cannot be followed: max_queue_size"):
        opened("on", {})


def test_what_the_application_has_set_up_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = TracerProvider(shutdown_on_exit=False)
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: theirs)
    traces = opened("auto", {})
    assert traces is not None
    assert resource_of(traces) is theirs.resource.attributes
    traces.close()
    assert resource_of(traces) is theirs.resource.attributes
    assert opened("off", {}) is None


@pytest.mark.parametrize(
    ("environ", "name", "added"),
    [
        ({}, "s", "b"),
        ({"OTEL_SERVICE_NAME": "mine"}, "mine", "b"),
        ({"OTEL_RESOURCE_ATTRIBUTES": "service.name=theirs,a=c"}, "theirs", "c"),
    ],
)
def test_the_service_is_named_by_us_unless_the_environment_names_it(
    environ: dict[str, str], name: str, added: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in environ.items():
        monkeypatch.setenv(variable, value)
    traces = opened("on", {})
    assert traces is not None
    with closing(traces):
        resource = resource_of(traces)
    assert (resource["service.name"], resource["a"]) == (name, added)


def resource_of(traces: Traces) -> Any:
    span: Any = traces.tracer("forebay-worker").start_span("x")
    return span.resource.attributes
