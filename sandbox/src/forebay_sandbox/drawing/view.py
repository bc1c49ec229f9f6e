"""What the drawing demo shows in a terminal: the live table and the report. Makes rich renderables; prints nothing."""

from __future__ import annotations

from dataclasses import dataclass

from rich.table import Table

from forebay_sandbox.demo.report import Percentiles
from forebay_sandbox.demo.view import new_report, seconds_cell
from forebay_sandbox.drawing.report import DrawingFigures, Kind
from forebay_schemas.contract.tiers import Tier


@dataclass(frozen=True, slots=True, kw_only=True)
class UsersNow:
    """The users of a tier at this moment."""

    open: int
    """Came and wait, or watch how the image is drawn."""
    served: int
    longest_open_seconds: float
    """How long the one of them has been there who came first."""

    @property
    def came(self) -> int:
        return self.open + self.served


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawingNow:
    """The drawing service at this moment."""

    at_seconds: float
    users_total: int
    users: dict[Tier, UsersNow]
    fees: int


def live_table(now: DrawingNow) -> Table:
    """The table that is redrawn while the demo runs."""
    came = sum(users.came for users in now.users.values())
    table = Table(
        title=f"Forebay drawing service  {now.at_seconds:.0f} s, {came} of {now.users_total} users have come",
        title_justify="left",
        caption=f"{now.fees} free users have paid the fee",
        caption_justify="left",
    )
    table.add_column("users")
    for name in ("came", "waiting or watching", "longest", "served"):
        table.add_column(name, justify="right")
    for tier, users in now.users.items():
        cells = (str(users.came), str(users.open), f"{users.longest_open_seconds:.0f} s", str(users.served))
        table.add_row(_USERS[tier], *cells)
    return table


_USERS = {Tier.HIGH: "paid (high)", Tier.LOW: "free (low)"}


def live_line(now: DrawingNow) -> str:
    """The same for a stream that is no terminal."""
    users = "; ".join(
        f"{_USERS[tier]} {one.came} came {one.open} open {one.longest_open_seconds:.0f} s at most {one.served} served"
        for tier, one in now.users.items()
    )
    return f"{now.at_seconds:3.0f} s  {users}; {now.fees} paid the fee"


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
