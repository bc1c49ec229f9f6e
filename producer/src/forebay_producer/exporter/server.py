"""The exporter's HTTP port: /metrics, /livez and /readyz, each request on its own thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

import structlog
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)

from forebay_producer.exporter.collector import ExporterCollector
from forebay_producer.exporter.exporter import Exporter
from forebay_schemas.clock import Clock
from forebay_schemas.runtime.bind_errors import cannot_listen

STALE_SECONDS: Final = 60.0
"""Older figures are not exported: an autoscaler must not act on them."""

_REQUEST_SECONDS: Final = 10.0

log = structlog.get_logger("forebay.exporter")


class ExporterServer:
    """/metrics, /livez and /readyz of an exporter. Must be stopped."""

    def __init__(self, exporter: Exporter, *, clock: Clock, host: str, port: int) -> None:
        """Listens. Raises ``UsageError`` naming the host or the port when it cannot."""
        registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        GCCollector(registry=registry)
        registry.register(
            ExporterCollector(
                exporter.states,
                clock=clock,
                stale_seconds=STALE_SECONDS,
                certificate_ends=exporter.certificate_ends,
            )
        )
        pages: dict[str, Callable[[], tuple[int, str, bytes]]] = {
            "/metrics": lambda: (200, CONTENT_TYPE_LATEST, generate_latest(registry)),
            "/livez": lambda: _checked(exporter.not_alive()),
            "/readyz": lambda: _checked(exporter.not_ready()),
        }
        try:
            self._server = _Server((host, port), _handler(pages))
        except (OSError, UnicodeError) as error:
            raise cannot_listen(error, host=host, port=port, setting="FOREBAY_EXPORTER") from None
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, name="exporter-http", daemon=True)

    def start(self) -> None:
        """Starts serving."""
        self._thread.start()

    def stop(self) -> None:
        """Closes the port."""
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # A slow client must not delay the end.
    block_on_close = False


def _handler(pages: Mapping[str, Callable[[], tuple[int, str, bytes]]]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = _REQUEST_SECONDS

        def do_GET(self) -> None:
            page = pages.get(self.path.partition("?")[0])
            try:
                code, content_type, body = page() if page is not None else (404, _TEXT, b"not found\n")
            except Exception as error:  # an answer says more than a closed connection
                log.error("page failed", page=self.path, error=str(error), exc_info=error)
                code, content_type, body = 500, _TEXT, f"{error!r}\n".encode()
            self.send_response(code)
            self.send_header("content-type", content_type)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Not logged: probes and scrapes arrive every few seconds."""

    return Handler


_TEXT: Final = "text/plain; charset=utf-8"


def _checked(problems: list[str]) -> tuple[int, str, bytes]:
    return (503, _TEXT, ("\n".join(problems) + "\n").encode()) if problems else (200, _TEXT, b"ok\n")
