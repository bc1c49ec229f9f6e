"""The exporter: a thread that reads the pools every few seconds, and an HTTP port that tells what was read last.

A broker that is away, a missing topic or a refusal never ends the process: the pool is not up, and named in /readyz.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

import structlog
from confluent_kafka import KafkaException
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)

from forebay_producer.exporter_figures import PoolFigures, figures_of
from forebay_producer.exporter_reader import GONE_SECONDS, Brokers, PoolReader
from forebay_producer.metrics import ExporterCollector
from forebay_schemas.clock import Clock
from forebay_schemas.errors import BrokerUnreachableError, ForebayError, UsageError
from forebay_schemas.kafka import KafkaConnection
from forebay_schemas.topics import Pool

REFRESH_SECONDS: Final = 3.0
LISTEN_SECONDS: Final = 3.0
"""A worker speaks once a second: before so long the first reading would miss some."""

STALE_SECONDS: Final = 60.0
"""Figures that are older are no longer told: an autoscaler must not go by them."""

STUCK_SECONDS: Final = 120.0
"""Of the reading thread, from where /livez says so: a broker that is away costs each pool ten seconds at most."""

_POLL_SECONDS: Final = 0.2
_JOIN_SECONDS: Final = 12.0
_REQUEST_SECONDS: Final = 10.0

log = structlog.get_logger("forebay.exporter")


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolState:
    """How a pool stands. ``trouble``: why the last reading failed, or why there is none yet; None when it is up.

    ``figures`` and ``read_at`` (monotonic seconds) are those of the last reading that succeeded.
    """

    trouble: str | None
    figures: PoolFigures | None = None
    read_at: float | None = None


class Exporter:
    """Reads the pools, in a thread of its own, until `stop`."""

    def __init__(self, connection: KafkaConnection, *, pools: Sequence[Pool], clock: Clock) -> None:
        """Raises ``UsageError`` for properties that the client does not take; the brokers are not asked yet."""
        self._clock = clock
        self._brokers = Brokers(connection, clock=clock)
        self._readers = [PoolReader(self._brokers, pool=pool) for pool in pools]
        self._states = {pool.name: PoolState(trouble="not read yet") for pool in pools}
        self._heartbeat = clock.monotonic()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="exporter", daemon=True)

    def start(self) -> None:
        """Begins to read."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread and lets go of the brokers; gives up on a thread that waits for them for too long."""
        self._stopping.set()
        self._thread.join(_JOIN_SECONDS)
        if not self._thread.is_alive():
            for reader in self._readers:
                reader.close()
            self._brokers.close()

    def states(self) -> Mapping[str, PoolState]:
        """Each pool by its name, as it was read last. From any thread."""
        return self._states.copy()

    def not_alive(self) -> list[str]:
        """What is wrong with this process. From any thread."""
        silent_seconds = self._clock.monotonic() - self._heartbeat
        return [f"nothing was read for {silent_seconds:.0f} s"] if silent_seconds > STUCK_SECONDS else []

    def not_ready(self) -> list[str]:
        """What is wrong with the pools. From any thread."""
        return [f"pool {name}: {state.trouble}" for name, state in self.states().items() if state.trouble is not None]

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._heartbeat = self._clock.monotonic()
            self._refresh()
            again_at = self._clock.monotonic() + REFRESH_SECONDS
            while self._clock.monotonic() < again_at and not self._stopping.is_set():
                self._brokers.followed.poll(_POLL_SECONDS)

    def _refresh(self) -> None:
        unreachable: str | None = None
        for reader in self._readers:
            if self._stopping.is_set():
                return
            if unreachable is None:
                unreachable = self._read(reader)
            else:
                # It would wait as long for the same brokers, to no other end.
                self._failed(reader.pool, unreachable)

    def _read(self, reader: PoolReader) -> str | None:
        """Reads a pool. Returns what is wrong with the brokers if they cannot be reached."""
        pool = reader.pool
        try:
            tiers, dead_lettered = reader.read()
        except BrokerUnreachableError as error:
            self._failed(pool, str(error))
            return str(error)
        except (ForebayError, KafkaException) as error:
            self._failed(pool, str(error))
            return None
        except Exception as error:  # whatever it was, the other pools are to be read, and this one again
            log.error("reading failed", pool=pool.name, error=str(error), exc_info=error)
            self._failed(pool, f"reading failed: {error!r}")
            return None
        followed = self._brokers.followed
        listened_seconds = followed.listened_seconds(pool)
        if listened_seconds < LISTEN_SECONDS:
            self._states[pool.name] = replace(self._states[pool.name], trouble="listening for the workers")
            return None
        before = self._states[pool.name]
        self._states[pool.name] = PoolState(
            trouble=None,
            figures=figures_of(
                tiers,
                dead_lettered=dead_lettered,
                workers=followed.workers(pool),
                heard_all=listened_seconds >= GONE_SECONDS,
                before=before.figures,
            ),
            read_at=self._clock.monotonic(),
        )
        if before.trouble is not None:
            log.info("pool is read", pool=pool.name)
        return None

    def _failed(self, pool: Pool, trouble: str) -> None:
        before = self._states[pool.name]
        if before.trouble != trouble:
            log.warning("pool cannot be read", pool=pool.name, error=trouble)
        self._states[pool.name] = replace(before, trouble=trouble)
        self._brokers.followed.start_over(pool)


class ExporterServer:
    """/metrics, /livez and /readyz of an exporter, each request on a thread of its own. Must be stopped."""

    def __init__(self, exporter: Exporter, *, clock: Clock, host: str, port: int) -> None:
        """Listens. Raises ``UsageError`` when it cannot."""
        registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        GCCollector(registry=registry)
        registry.register(ExporterCollector(exporter.states, clock=clock, stale_seconds=STALE_SECONDS))
        pages: dict[str, Callable[[], tuple[int, str, bytes]]] = {
            "/metrics": lambda: (200, CONTENT_TYPE_LATEST, generate_latest(registry)),
            "/livez": lambda: _checked(exporter.not_alive()),
            "/readyz": lambda: _checked(exporter.not_ready()),
        }
        try:
            self._server = _Server((host, port), _handler(pages))
        except OSError as error:
            raise UsageError(
                "FOREBAY_EXPORTER_PORT",
                f"cannot listen on {host}:{port} ({error.strerror})",
                fix="give a free port, or 0 to pick one",
            ) from None
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, name="exporter-http", daemon=True)

    def start(self) -> None:
        """Answers from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Closes the port."""
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # A client that is slow to leave must not hold up the end.
    block_on_close = False


def _handler(pages: Mapping[str, Callable[[], tuple[int, str, bytes]]]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = _REQUEST_SECONDS

        def do_GET(self) -> None:
            page = pages.get(self.path.partition("?")[0])
            code, content_type, body = page() if page is not None else (404, _TEXT, b"not found\n")
            self.send_response(code)
            self.send_header("content-type", content_type)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Probes and scrapes come every few seconds: nothing to log."""

    return Handler


_TEXT: Final = "text/plain; charset=utf-8"


def _checked(problems: list[str]) -> tuple[int, str, bytes]:
    return (503, _TEXT, ("\n".join(problems) + "\n").encode()) if problems else (200, _TEXT, b"ok\n")
