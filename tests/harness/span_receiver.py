"""An OTLP/HTTP receiver that keeps the spans it is sent, or hangs instead. A server in a thread of its own."""

from __future__ import annotations

import asyncio
import gzip
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from harness.waiting import wait_until

_START_SECONDS_MAX = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A span as it came; ids in hexadecimal digits, ``parent`` empty for a root, times in epoch nanoseconds."""

    name: str
    kind: int
    trace_id: str
    span_id: str
    parent: str
    links: tuple[tuple[str, str], ...]
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Any]
    is_error: bool
    service: str
    resource: Mapping[str, Any]


class SpanReceiver:
    """Reads what exporters send."""

    def __init__(self) -> None:
        self.url = ""
        self.spans: list[Span] = []
        self.posts = 0
        self.hangs = False
        self.let_go = threading.Event()

    def environment(self, **more: str) -> dict[str, str]:
        """The OTEL_ variables of a process that is to export here, soon."""
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": self.url, "OTEL_BSP_SCHEDULE_DELAY": "100", **more}

    def of(self, trace_id: str, name: str = "", **attributes: Any) -> list[Span]:
        """The spans of a trace whose names begin so and that have these attributes (``.`` written ``_``), by start."""
        found = [
            span
            for span in tuple(self.spans)
            if span.trace_id == trace_id
            and span.name.startswith(name)
            and all(span.attributes.get(key.replace("__", ".")) == value for key, value in attributes.items())
        ]
        return sorted(found, key=lambda span: span.start_ns)

    def wait_for(self, trace_id: str, name: str, *, count: int = 1, **attributes: Any) -> list[Span]:
        """Waits until there are ``count`` such spans; returns them."""

        def enough() -> list[Span] | None:
            found = self.of(trace_id, name, **attributes)
            return found if len(found) >= count else None

        found = wait_until(f"{count} spans {name!r} {attributes} of {trace_id}; {self.names()}", enough)
        assert found is not None
        return found

    def names(self) -> list[str]:
        return [f"{span.trace_id[:6]} {span.name}" for span in self.spans]

    async def take(self, request: web.Request) -> web.Response:
        self.posts += 1
        if self.hangs:
            await asyncio.to_thread(self.let_go.wait)
        body = await request.read()
        if request.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        self.spans += _spans_in(ExportTraceServiceRequest.FromString(body))
        return web.Response(content_type="application/x-protobuf")


def _spans_in(message: Any) -> Iterator[Span]:
    for group in message.resource_spans:
        resource = _values(group.resource.attributes)
        for scope in group.scope_spans:
            for span in scope.spans:
                yield Span(
                    name=span.name,
                    kind=span.kind,
                    trace_id=span.trace_id.hex(),
                    span_id=span.span_id.hex(),
                    parent=span.parent_span_id.hex(),
                    links=tuple((link.trace_id.hex(), link.span_id.hex()) for link in span.links),
                    start_ns=span.start_time_unix_nano,
                    end_ns=span.end_time_unix_nano,
                    attributes=_values(span.attributes),
                    is_error=span.status.code == 2,
                    service=resource.get("service.name", ""),
                    resource=resource,
                )


def _values(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


@contextmanager
def receiving_spans() -> Iterator[SpanReceiver]:
    """A receiver on a free port, ended with the block."""
    receiver = SpanReceiver()
    started, ended = threading.Event(), threading.Event()

    async def serve() -> None:
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_post("/v1/traces", receiver.take)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        receiver.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        started.set()
        await asyncio.to_thread(ended.wait)
        await runner.cleanup()

    thread = threading.Thread(target=asyncio.run, args=(serve(),), name="span-receiver", daemon=True)
    thread.start()
    try:
        assert started.wait(_START_SECONDS_MAX)
        yield receiver
    finally:
        receiver.let_go.set()
        ended.set()
        thread.join(_START_SECONDS_MAX)
