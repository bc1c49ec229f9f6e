"""`python -m dashboards`, run in this package's parent folder: writes the dashboards into the chart, and draws them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from dashboards.catalogue import write_dashboards
from forebay_schemas.errors import ForebayError


def write(
    *,
    chart: Annotated[Path, typer.Option(help="The chart's folder.")],
    pictures: Annotated[Path | None, typer.Option(help="Folder for pictures of them.", show_default="none")] = None,
    seconds: Annotated[float, typer.Option(help="How long requests arrive in the demo, 5 to 600.")] = 120.0,
    out: Annotated[Path, typer.Option(help="Folder for logs.")] = Path("build"),
) -> None:
    """Write the dashboards into the chart, and draw them with what a real Prometheus says of a demo."""
    for path in write_dashboards(chart / "dashboards"):
        typer.echo(path)
    if pictures is None:
        return
    # Here, because matplotlib takes half a second to import.
    from dashboards.run import draw_dashboards
    from forebay_sandbox.demo.traffic import Pulse

    pulse = Pulse.of(total_seconds=seconds, valley_per_second=10.0)
    for path in draw_dashboards(chart=chart, pulse=pulse, out=pictures, logs=out):
        typer.echo(path)


if __name__ == "__main__":
    try:
        typer.run(write)
    except ForebayError as error:
        typer.echo(f"dashboards: {error}", err=True)
        sys.exit(error.exit_code)
