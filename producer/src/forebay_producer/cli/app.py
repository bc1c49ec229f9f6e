"""The command `forebay`: puts its commands together. Each has a module of its own."""

from __future__ import annotations

import gc
from importlib.metadata import version
from typing import Annotated

import typer

from forebay_producer.cli import backlog as cli_backlog
from forebay_producer.cli import control as cli_control
from forebay_producer.cli import doctor as cli_doctor
from forebay_producer.cli import exporter as cli_exporter
from forebay_producer.cli import plan as cli_plan
from forebay_producer.cli import results as cli_results
from forebay_producer.cli import submit as cli_submit
from forebay_producer.cli import topics as cli_topics
from forebay_producer.cli.dead_letters import commands as cli_dead_letters

app = typer.Typer(
    name="forebay",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Submit inference requests to Forebay, follow their outcomes, look after a pool's topics.",
)
app.add_typer(cli_topics.app, name="topics")
cli_submit.add_to(app)
cli_results.add_to(app)
cli_backlog.add_to(app)
cli_control.add_to(app)
cli_doctor.add_to(app)
cli_exporter.add_to(app)
cli_plan.add_to(app)
app.add_typer(cli_dead_letters.app, name="dead-letters")


def _show_version(wanted: bool) -> None:
    if wanted:
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
    # Letters, results and requests hold no cycles: with Python's thresholds the look for them is a fifth of what a scan
    # of dead letters costs (measured).
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    app(prog_name="forebay")
