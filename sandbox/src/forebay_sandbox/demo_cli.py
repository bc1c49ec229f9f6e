"""The commands `demo`, `up`, `down` and `incident`. Progress and report on stderr, the figures on stdout."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from forebay_schemas.errors import ExitCode, UsageError

OUT_FOLDER = Path("build")


def add_demo_commands(app: typer.Typer) -> None:
    """Add `demo`, `up`, `down` and `incident` to the sandbox's commands."""
    app.command(name="demo")(_demo)
    app.command(name="up")(_up)
    app.command(name="down")(_down)
    app.command(name="incident")(_incident)


class Scenario(StrEnum):
    """What the demo shows."""

    PULSE = "pulse"
    DRAWING = "drawing"


def _demo(
    *,
    scenario: Annotated[Scenario, typer.Option(help="A pulse of chats, or a drawing service.")] = Scenario.PULSE,
    seconds: Annotated[
        float | None, typer.Option(help="pulse: how long requests arrive, 5 to 600.", show_default="60")
    ] = None,
    rate: Annotated[
        float | None, typer.Option(help="pulse: requests per second; four times that in the pulse.", show_default="10")
    ] = None,
    image_seconds: Annotated[
        float | None, typer.Option(help="drawing: what an image takes, 0.2 to 60.", show_default="15")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for picture, figures and logs.")] = OUT_FOLDER,
) -> None:
    """Show Forebay at work, with a Kafka and workers of its own on this machine; report what came of it.

    pulse: requests go through Forebay and, beside it, straight at an engine. drawing: free users of a drawing service
    wait, and some of them pay a fee meanwhile, to be served sooner.
    """
    if scenario is Scenario.DRAWING:
        from forebay_sandbox.drawing import IMAGE_SECONDS, run_drawing

        _refuse({"--seconds": seconds, "--rate": rate}, scenario)
        result = run_drawing(image_seconds=IMAGE_SECONDS if image_seconds is None else image_seconds, out=out)
    else:
        from forebay_sandbox.demo import run_demo
        from forebay_sandbox.demo_traffic import Pulse

        _refuse({"--image-seconds": image_seconds}, scenario)
        pulse = Pulse.of(
            total_seconds=60.0 if seconds is None else seconds, valley_per_second=10.0 if rate is None else rate
        )
        result = run_demo(pulse=pulse, out=out)
    typer.echo(json.dumps(result.figures))
    if result.broken:
        raise typer.Exit(ExitCode.FAILED)


def _refuse(options: dict[str, float | None], scenario: Scenario) -> None:
    for option, value in options.items():
        if value is not None:
            raise UsageError(option, f"says nothing to --scenario {scenario}", fix="leave it out")


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
    where = stack_service.DEFAULT_FOLDER.resolve()
    typer.echo("stopped" if stopped else f"was not running; looked in {where}", err=True)


def _incident(
    *,
    letters: Annotated[int, typer.Option(min=10, max=1_000_000, help="How many dead letters.")] = 4_000,
    mend: Annotated[bool, typer.Option("--mend", help="End it: the engine serves everybody again.")] = False,
) -> None:
    """Make dead letters of three causes in the stack that `up` started, to practise on: see docs/on-call.md.

    One of the causes is the engine, which stays broken until --mend.
    """
    from forebay_sandbox import incident, stack_service

    status, kafka = stack_service.running(folder=stack_service.DEFAULT_FOLDER)
    if mend:
        incident.mend(status)
        typer.echo("the engine serves everybody again", err=True)
        return
    counts = incident.break_out(status, kafka, letters=letters)
    typer.echo(f"{sum(counts.values()):,} requests have died of three causes; it is 3 a.m.", err=True)
