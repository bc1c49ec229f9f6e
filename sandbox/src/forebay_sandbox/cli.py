"""The command `forebay-sandbox`: its groups of commands, and errors as one line and an exit status."""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Annotated

import typer

from forebay_sandbox.demo.cli import add_demo_commands
from forebay_sandbox.engine.cli import add_engine_command
from forebay_sandbox.kafka import commands as kafka_cli
from forebay_sandbox.testing import tools_cli
from forebay_schemas.errors import ForebayError
from forebay_schemas.runtime.terminal import printable_lines

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Forebay's sandbox: a real local Kafka, a simulated inference engine, and the demo.",
)
app.add_typer(kafka_cli.app, name="kafka")
app.add_typer(tools_cli.app, name="tools")
add_engine_command(app)
add_demo_commands(app)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"forebay-sandbox {version('forebay-sandbox')}")
        raise typer.Exit


@app.callback()
def _options_of_all(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version, and end.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Runs the command line; exits with one of `ExitCode`."""
    try:
        app()
    except ForebayError as error:
        typer.echo(printable_lines(f"forebay-sandbox: {error}"), err=True)
        sys.exit(error.exit_code)
