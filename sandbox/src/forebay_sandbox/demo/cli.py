"""The commands `demo`, `up`, `down`, `incident`, `dashboards` and `prometheus`. Progress goes to stderr."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from forebay_schemas.errors import ExitCode, UsageError

OUT_FOLDER = Path("build")
CHART_FOLDER = Path("helm/forebay")


def add_demo_commands(app: typer.Typer) -> None:
    """Add `demo`, `up`, `down`, `incident`, `dashboards` and `prometheus` to the sandbox's commands."""
    app.command(name="demo")(_demo)
    app.command(name="up")(_up)
    app.command(name="down")(_down)
    app.command(name="incident")(_incident)
    app.command(name="dashboards")(_dashboards)
    app.command(name="prometheus")(_prometheus)


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
        from forebay_sandbox.drawing.drawing import IMAGE_SECONDS, run_drawing

        _refuse({"--seconds": seconds, "--rate": rate}, scenario)
        result = run_drawing(image_seconds=IMAGE_SECONDS if image_seconds is None else image_seconds, out=out)
    else:
        from forebay_sandbox.demo.demo import run_demo
        from forebay_sandbox.demo.traffic import Pulse

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
            raise UsageError(option, f"does not apply to --scenario {scenario}", fix="leave it out")


def _up() -> None:
    """Start Kafka, an engine and two workers unless they run already, and leave them running."""
    from forebay_sandbox.stack import service as stack_service

    status, started = stack_service.up(
        folder=stack_service.DEFAULT_FOLDER, warn=lambda text: typer.echo(text, err=True)
    )
    typer.echo(f"the stack {'is up' if started else 'runs already'}; logs: {status.log_dir}", err=True)
    typer.echo(stack_service.next_steps(status))


def _down() -> None:
    """Stop what `up` started. What lies in Kafka stays."""
    from forebay_sandbox.stack import service as stack_service

    stopped = stack_service.down(folder=stack_service.DEFAULT_FOLDER)
    where = stack_service.DEFAULT_FOLDER.resolve()
    typer.echo("stopped" if stopped else f"was not running; looked in {where}", err=True)


def _prometheus(
    *,
    chart: Annotated[Path, typer.Option(help="The chart's folder; its rules are evaluated.")] = CHART_FOLDER,
    faster: Annotated[float, typer.Option(min=1, max=100, help="Divides the rules' windows and `for` by this.")] = 1.0,
) -> None:
    """Run Prometheus beside the stack that `up` started, until Ctrl-C. It evaluates the rules each second."""
    import tempfile
    import time

    from forebay_sandbox.stack import service as stack_service
    from forebay_sandbox.stack.prometheus import in_quick_time, jobs_of, running_prometheus
    from forebay_sandbox.testing import tools

    status, _ = stack_service.running(folder=stack_service.DEFAULT_FOLDER)
    rules = in_quick_time((chart / "rules" / "forebay.yaml").read_text(encoding="utf-8"), factor=faster)
    jobs = jobs_of(workers=status.worker_urls, exporter=status.exporter_url)
    with (
        tempfile.TemporaryDirectory(prefix="forebay-prometheus-") as folder,
        running_prometheus(binary=tools.tool("prometheus"), jobs=jobs, rules=rules, folder=Path(folder)) as prometheus,
    ):
        typer.echo(f"Prometheus is up; end it with Ctrl-C. Alerts: {prometheus.url}/alerts")
        typer.echo(f"  export PROMETHEUS={prometheus.url}")
        try:
            while True:
                time.sleep(1)
        except KeyboardInterrupt:
            typer.echo("ended", err=True)


def _dashboards(
    *,
    chart: Annotated[Path, typer.Option(help="The chart's folder.")] = CHART_FOLDER,
) -> None:
    """Write the Grafana dashboards into the chart, from their sources in Python."""
    # The sources are beside the chart, outside this package.
    command = [sys.executable, "-m", "dashboards", str(chart / "dashboards")]
    ran = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(chart.parent)}, check=False)
    raise typer.Exit(ran.returncode)


def _incident(
    *,
    letters: Annotated[int, typer.Option(min=10, max=1_000_000, help="How many dead letters.")] = 4_000,
    mend: Annotated[bool, typer.Option("--mend", help="End it: the engine serves everybody again.")] = False,
) -> None:
    """Make dead letters of three causes in the stack that `up` started, to practise on: see docs/on-call.md.

    One of the causes is the engine, which stays broken until --mend.
    """
    from forebay_sandbox.stack import incident
    from forebay_sandbox.stack import service as stack_service

    status, kafka = stack_service.running(folder=stack_service.DEFAULT_FOLDER)
    if mend:
        incident.mend(status.engine_url)
        typer.echo("the engine serves everybody again", err=True)
        return
    counts = incident.break_out(status.engine_url, kafka, pool_name=status.pool, letters=letters)
    typer.echo(f"{sum(counts.values()):,} requests have died of three causes; it is 3 a.m.", err=True)
