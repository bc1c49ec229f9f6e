"""`forebay exporter`: Prometheus metrics of pools, with or without running workers."""

from __future__ import annotations

import signal
import threading
from typing import Annotated

import typer

from forebay_producer.cli.common import Session, command, say
from forebay_producer.exporter.exporter import Exporter
from forebay_producer.exporter.server import ExporterServer
from forebay_schemas.clock import SystemClock
from forebay_schemas.contract.topics import Pool

_CLOCK = SystemClock()


def add_to(app: typer.Typer) -> None:
    """Adds the command."""
    command(app, "exporter", output=None)(exporter)


def exporter(
    session: Session,
    *,
    pool: Annotated[list[str] | None, typer.Option(help="A pool to read; may be repeated. [FOREBAY_POOL]")] = None,
    exporter_host: Annotated[
        str | None, typer.Option("--host", help="The address to listen on. [FOREBAY_EXPORTER_HOST]")
    ] = None,
    exporter_port: Annotated[
        int | None, typer.Option("--port", min=0, max=65535, help="Its port; 0 = pick one. [FOREBAY_EXPORTER_PORT]")
    ] = None,
) -> None:
    """Serve Prometheus metrics of pools: the backlog, the workers, and how close each tier is to its deadlines.

    Runs until SIGTERM or Ctrl-C. A pool that cannot be read is named at /readyz.
    """
    settings = session.settings
    pools = [Pool(name) for name in dict.fromkeys(pool)] if pool else [session.pool]
    host = settings.exporter_host if exporter_host is None else exporter_host
    port = settings.exporter_port if exporter_port is None else exporter_port
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    times = {each: settings.pool_times(each.name) for each in pools}
    reading = Exporter(session.connection, pools=times, clock=_CLOCK)
    server = ExporterServer(reading, clock=_CLOCK, host=host, port=port)
    reading.start()
    server.start()
    say(f"exporting {', '.join(each.name for each in pools)} at http://{host}:{server.port}/metrics")
    stopping.wait()
    server.stop()
    reading.stop()
