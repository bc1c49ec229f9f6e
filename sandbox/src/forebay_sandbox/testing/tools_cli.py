"""`forebay-sandbox tools list|fetch`. Paths on stdout, progress on stderr."""

from __future__ import annotations

import json
import time
from typing import Annotated

import typer

from forebay_sandbox.kafka.commands import OutputOption
from forebay_sandbox.testing import tools
from forebay_sandbox.testing.tool_catalogue import TOOLS
from forebay_schemas.runtime.output import Output

app = typer.Typer(no_args_is_help=True, help="Programs of others that the tests run: helm, Prometheus, Kubernetes.")


@app.command("list")
def list_tools(*, output: OutputOption = Output.TABLE) -> None:
    """Say which are at hand, where, and how the others would be fetched. Fetches nothing."""
    found = {name: tools.at_hand(name) for name in TOOLS}
    if output is Output.JSON:
        typer.echo(json.dumps({name: None if path is None else str(path) for name, path in found.items()}))
        return
    for name, path in found.items():
        typer.echo(f"{name:24} {path or f'missing: {tools.how(name)}'}")


@app.command()
def fetch(names: Annotated[list[str], typer.Argument(metavar="NAME...", help="See `tools list`.")]) -> None:
    """Make the programs ready and print their paths, one a line. Does nothing for those that are at hand."""
    for name in names:
        if tools.at_hand(name) is None:
            typer.echo(f"fetching {name}: {tools.how(name)}", err=True)
            began = time.monotonic()
            tools.tool(name)
            typer.echo(f"{name} is there after {time.monotonic() - began:.0f} s", err=True)
        typer.echo(tools.tool(name))
