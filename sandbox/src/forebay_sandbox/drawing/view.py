"""The drawing demo's report in a terminal, as a rich table. Prints nothing."""

from __future__ import annotations

from rich.table import Table

from forebay_sandbox.demo.report import Percentiles
from forebay_sandbox.demo.view import new_report, seconds_cell
from forebay_sandbox.drawing.report import DrawingFigures, Kind


def report_table(figures: DrawingFigures) -> Table:
    """How long each kind of user waited."""
    table = new_report("Seconds from the order to the first stroke", caption=_caption(figures))
    for name in ("users", "P50", "P95", "P99"):
        table.add_column(name, justify="right", min_width=7)

    def row(label: str, count: int | None, waits: Percentiles | None) -> None:
        cells = (seconds_cell(waits, name) for name in ("p50", "p95", "p99"))
        table.add_row(label, "" if count is None else str(count), *cells)

    row("free, stayed in low", figures.counts[Kind.FREE], figures.waits[Kind.FREE])
    row("free, paid the fee while waiting", figures.counts[Kind.FEE], figures.waits[Kind.FEE])
    row("  before the fee, in low", None, figures.before_fee)
    row("  after it, in high", None, figures.after_fee)
    row("paid, in high from the start", figures.counts[Kind.PAID], figures.waits[Kind.PAID])
    return table


def _caption(figures: DrawingFigures) -> str:
    lines = [
        f"an image takes {figures.image_seconds:g} s more; {figures.total('completed')} of {figures.offered} completed",
        f"{figures.total('lost')} lost, {figures.duplicated} drawn twice",
    ]
    if figures.saved_p50_seconds is not None:
        lines.append(f"the fee saved {figures.saved_p50_seconds:.1f} s (median of those who paid it)")
    if figures.fees_too_late:
        lines.append(f"{figures.fees_too_late} more offered it when their image was being drawn already")
    return "\n".join(lines)
