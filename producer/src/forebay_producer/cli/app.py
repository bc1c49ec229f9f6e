"""The command `forebay`: lists its commands. Each has a module of its own, which is imported when it is called."""

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
        "Submit requests, one a line. Prints where each one lies; reports bad lines and goes on with the others.",
    ),
    (
        "results",
        "results",
        "Show the outcomes of requests, the first one of each and of each of its replays, up to now.",
    ),
    (
        "backlog",
        "backlog",
        "Show for each tier the requests that are not finished, the age of the oldest, and the rates in and out.",
    ),
    ("cancel", "control", "End requests as cancelled, whether they wait or run."),
    ("expedite", "control", "Move requests that wait to the high tier; their deadlines stay as they are."),
    (
        "doctor",
        "doctor",
        "Check connection, credentials, topics and their settings, permissions, clock and registry, all in one go.",
    ),
    (
        "exporter",
        "exporter",
        "Show at /metrics what waits in pools, who works there, and how near each tier is to its deadlines.",
    ),
    (
        "plan",
        "plan",
        "Compute engines, workers, partitions and bounds from rates and deadlines; what waits how long; what breaks "
        "first.",
    ),
    ("topics", "topics", "Make a pool's topics, and show them."),
    ("dead-letters", "dead_letters.commands", "Find out what died and why, and replay it."),
)
"""Name, module of this package whose `add_to` adds it, and the first paragraph of its help, as a test compares."""

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
    help="Submit inference requests to Forebay, follow their outcomes, look after a pool's topics.",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"forebay {version('forebay-producer')}")
        raise typer.Exit


@app.callback()
def _options_of_all(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version, and end.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """The entry point. Exit codes: 0 ok, 1 failed, 2 usage, 3 cannot reach the broker, 4 partly done, 130 Ctrl-C."""
    called = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
    if called in MODULES:
        import_for_command(MODULES[called])
    # Letters, results and requests hold no cycles: with Python's thresholds the look for them is a fifth of what a scan
    # of dead letters costs (measured).
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    app(prog_name="forebay")
