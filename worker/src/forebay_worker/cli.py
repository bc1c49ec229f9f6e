"""The command `forebay-worker`."""

from __future__ import annotations

import gc
import logging
import sys
import time
from pathlib import Path
from typing import Annotated, Final

import typer

from forebay_schemas.errors import ForebayError
from forebay_schemas.runtime.entry import import_for_command
from forebay_schemas.runtime.lazy_commands import LazyCommand, LazyGroup
from forebay_schemas.runtime.output import Output
from forebay_schemas.runtime.terminal import printable_json, printable_lines

WATCH_SECONDS = 1.0
CLEAR = "\x1b[H\x1b[2J"
"""The terminal, from its upper left corner on."""


MODULES: Final = {
    "run": "forebay_worker.lifecycle.worker",
    "status": "forebay_worker.ops.client",
    "doctor": "forebay_worker.doctor.examine",
    "calibrate": "forebay_worker.calibrate.command",
}
"""The main imports of each command, done before it begins: Ctrl-C must not be lost within an import."""


def _add_calibrate(app: typer.Typer) -> None:
    from forebay_worker.calibrate.command import calibrate

    app.command()(calibrate)


class _Commands(LazyGroup):
    lazy = {  # noqa: RUF012 - never changed
        "calibrate": LazyCommand(
            summary="Measures a backend's capacity in steps of load, and recommends settings. It loads the backend "
            "to its limit.",
            add=_add_calibrate,
        )
    }


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Takes inference requests from Kafka at the pace the backend sustains.",
)


@app.command()
def run(
    config: Annotated[
        Path | None, typer.Option(help="A TOML file of settings; flags and FOREBAY_ variables override it")
    ] = None,
    bootstrap_servers: Annotated[str | None, typer.Option(help="Kafka brokers, host:port, comma-separated")] = None,
    pool: Annotated[str | None, typer.Option(help="The pool to serve")] = None,
    kafka_properties: Annotated[Path | None, typer.Option(help="A file of librdkafka properties")] = None,
    backend_url: Annotated[str | None, typer.Option(help="The OpenAI-compatible backend")] = None,
    handler: Annotated[str | None, typer.Option(help="module:function instead of a backend")] = None,
    limit_max: Annotated[int | None, typer.Option(help="The most requests in flight")] = None,
    drain_seconds: Annotated[float | None, typer.Option(help="How long running requests may finish at the end")] = None,
    worker_id: Annotated[str | None, typer.Option(help="This worker's name in results and logs")] = None,
    ops_port: Annotated[int | None, typer.Option(help="Port of /livez /readyz /metrics /status; 0 = pick one")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error")] = None,
) -> None:
    """Serves a pool until SIGTERM, then drains. Every other setting is a FOREBAY_ variable or a line of --config."""
    from forebay_schemas.runtime.allocator import give_back_large_blocks
    from forebay_schemas.runtime.log import configure_logging
    from forebay_worker.lifecycle.worker import run_worker
    from forebay_worker.settings import load_worker_settings

    flags = {
        "bootstrap_servers": bootstrap_servers,
        "pool": pool,
        "kafka_properties": kafka_properties,
        "backend_url": backend_url,
        "handler": handler,
        "limit_max": limit_max,
        "drain_seconds": drain_seconds,
        "worker_id": worker_id,
        "ops_port": ops_port,
        "log_level": log_level,
    }
    settings = load_worker_settings(flags=flags, config=config)
    configure_logging(level=settings.log_level, service="forebay-worker")
    give_back_large_blocks()
    # Objects made at start-up stay for good, and requests hold no cycles. Searching them for garbage costs 1 to 4
    # microseconds a request with the default thresholds (measured).
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    run_worker(settings)


@app.command()
def status(
    url: Annotated[str, typer.Option(help="The worker's operations port")] = "http://127.0.0.1:8081",
    output: Annotated[Output, typer.Option(help="How to print")] = Output.TABLE,
    watch: Annotated[bool, typer.Option("--watch", help="Repeat every second, until Ctrl-C")] = False,
) -> None:
    """Shows what a running worker does and why: what limits it, the last limit changes, signals, tiers, estimates."""
    from forebay_worker.ops.client import fetch_status
    from forebay_worker.ops.text import status_text

    while True:
        body, document = fetch_status(url)
        if watch and output is Output.TABLE and sys.stdout.isatty():
            typer.echo(CLEAR, nl=False)
        typer.echo(printable_json(body.decode()) if output is Output.JSON else status_text(document))
        if not watch:
            return
        if output is Output.TABLE and not sys.stdout.isatty():
            typer.echo()
        time.sleep(WATCH_SECONDS)


@app.command()
def doctor(
    config: Annotated[
        Path | None, typer.Option(help="A TOML file of settings; flags and FOREBAY_ variables override it")
    ] = None,
    bootstrap_servers: Annotated[str | None, typer.Option(help="Kafka brokers, host:port, comma-separated")] = None,
    pool: Annotated[str | None, typer.Option(help="The pool to serve")] = None,
    kafka_properties: Annotated[Path | None, typer.Option(help="A file of librdkafka properties")] = None,
    backend_url: Annotated[str | None, typer.Option(help="The OpenAI-compatible backend")] = None,
    handler: Annotated[str | None, typer.Option(help="module:function instead of a backend")] = None,
    model: Annotated[
        str | None, typer.Option(help="The model to ask the backend for; the first that it lists unless given")
    ] = None,
    output: Annotated[Output, typer.Option(help="How to print")] = Output.TABLE,
) -> None:
    """Checks settings, Kafka, backend and GPU for a worker that would run here, in one go; needs no running worker.

    Exits 1 when a check failed, 3 when no broker can be reached; warnings exit 0.
    """
    import asyncio

    from forebay_schemas.doctor.findings import exit_code, findings_json, findings_text, summary
    from forebay_schemas.runtime.log import configure_logging
    from forebay_worker.doctor.examine import examine
    from forebay_worker.settings import load_worker_settings

    flags = {
        "bootstrap_servers": bootstrap_servers,
        "pool": pool,
        "kafka_properties": kafka_properties,
        "backend_url": backend_url,
        "handler": handler,
    }
    settings = load_worker_settings(flags=flags, config=config)
    configure_logging(level=settings.log_level, service="forebay-worker")
    if settings.log_level != "debug":
        # An error that librdkafka retries again and again appears once, in the findings.
        logging.getLogger("forebay.librdkafka").setLevel(logging.CRITICAL)
    findings = asyncio.run(examine(settings, model=model))
    typer.echo(findings_json(findings) if output is Output.JSON else findings_text(findings))
    typer.echo(summary(findings), err=True)
    raise typer.Exit(exit_code(findings))


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"forebay-worker {version('forebay-worker')}")
        raise typer.Exit


@app.callback()
def _options_of_all(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version, and end.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """The entry point: a user's error ends in one line and an exit code, never in a traceback."""
    called = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
    if called in MODULES:
        import_for_command(MODULES[called])
    try:
        app(standalone_mode=True)
    except ForebayError as error:
        print(f"error: {printable_lines(str(error))}", file=sys.stderr)  # noqa: T201 - this is the command's answer
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
