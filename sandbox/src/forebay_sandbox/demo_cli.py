"""The commands `forebay-sandbox demo`, `up` and `down`. Progress and report on stderr, the figures on stdout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from forebay_schemas.errors import ExitCode

OUT_FOLDER = Path("build")


def add_demo_commands(app: typer.Typer) -> None:
    """Add `demo`, `up` and `down` to the sandbox's commands."""
    app.command(name="demo")(_demo)
    app.command(name="up")(_up)
    app.command(name="down")(_down)


def _demo(
    *,
    seconds: Annotated[float, typer.Option(help="How long requests arrive, 5 to 600.")] = 60.0,
    rate: Annotated[float, typer.Option(help="Requests per second; four times that in the pulse.")] = 10.0,
    out: Annotated[Path, typer.Option(help="Folder for demo.png, demo.json and the logs.")] = OUT_FOLDER,
) -> None:
    """Send a pulse of requests through Forebay and, beside it, straight at an engine; report what came of them.

    Starts Kafka, two engines and two workers on this machine and ends them again.
    """
    from forebay_sandbox.demo import run_demo
    from forebay_sandbox.demo_traffic import Pulse

    pulse = Pulse.of(total_seconds=seconds, valley_per_second=rate)
    result = run_demo(pulse=pulse, out=out)
    typer.echo(json.dumps(result.figures))
    if result.broken:
        raise typer.Exit(ExitCode.FAILED)


def _up() -> None:
    """Start Kafka, an engine and two workers unless they run already, and leave them running."""
    from forebay_sandbox import stack_service

    status, started = stack_service.up(
        folder=stack_service.DEFAULT_FOLDER, warn=lambda text: typer.echo(text, err=True)
    )
    typer.echo(f"the stack {'is up' if started else 'runs already'}; logs: {status.log_dir}", err=True)
    typer.echo(stack_service.next_steps(status))


def _down() -> None:
    """Stop what `up` started. What lies in Kafka stays."""
    from forebay_sandbox import stack_service

    stopped = stack_service.down(folder=stack_service.DEFAULT_FOLDER)
    typer.echo("stopped" if stopped else "was not running", err=True)
