"""The command `forebay`: the list of its commands. Each command's module is imported when the command is called."""

from __future__ import annotations

import gc
import sys
from importlib import import_module
from typing import Annotated, Final

import typer

from forebay_schemas.runtime.entry import import_for_command
from forebay_schemas.runtime.lazy_commands import LazyCommand, LazyGroup

_COMMANDS: Final = (
    (
        "submit",
        "submit",
        "Submit requests, one per line. Prints the position of each in Kafka; reports invalid lines and continues.",
    ),
    (
        "results",
        "results",
        "Show the outcomes of requests up to now: the first outcome of each request and of each replay.",
    ),
    (
        "backlog",
        "backlog",
        "Show for each tier the unfinished requests, the age of the oldest, and the rates in and out.",
    ),
    ("cancel", "control", "Cancel requests, waiting or running."),
    ("expedite", "control", "Move waiting requests to the high tier. Their deadlines stay."),
    (
        "doctor",
        "doctor",
        "Check connection, credentials, topics and their settings, permissions, clock and registry.",
    ),
    (
        "exporter",
        "exporter",
        "Serve Prometheus metrics of pools: the backlog, the workers, and how close each tier is to its deadlines.",
    ),
    (
        "plan",
        "plan",
        "Compute engines, workers, partitions and bounds from rates and deadlines; the waits; the first bottleneck.",
    ),
    ("topics", "topics", "Create the topics of a pool or a front, and show them."),
    ("dead-letters", "dead_letters.commands", "List dead letters and their causes; replay, discard or export them."),
)
"""Name, module in this package whose `add_to` adds it, first paragraph of its help. A test compares the last."""

MODULES: Final = {name: f"forebay_producer.cli.{module}" for name, module, _ in _COMMANDS}
"""The module of each command."""


def _lazy(name: str, summary: str) -> LazyCommand:
    def add(app: typer.Typer) -> None:
        import_module(MODULES[name]).add_to(app)

    return LazyCommand(summary=summary, add=add)


class _Commands(LazyGroup):
    lazy = {name: _lazy(name, summary) for name, _, summary in _COMMANDS}  # noqa: RUF012 - never changed


app = typer.Typer(
    name="forebay",
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Submit inference requests to Forebay, read their outcomes, manage a pool's topics and dead letters.",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"forebay {version('forebay-producer')}")
        raise typer.Exit


@app.callback()
def _options_of_all(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """The entry point. Exit codes: 0 ok, 1 failed, 2 usage, 3 broker unreachable, 4 partly done, 130 Ctrl-C."""
    called = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
    if called in MODULES:
        import_for_command(MODULES[called])
    # Letters, results and requests hold no reference cycles. With Python's default thresholds garbage collection is a
    # fifth of the cost of a scan of dead letters (measured).
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    app(prog_name="forebay")
