"""What the demo shows in a terminal: the live table, the report's tables and the plot in block characters.

Makes rich renderables from values; prints nothing itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from forebay_sandbox.demo.ledger import Series
from forebay_sandbox.demo.report import Figures, Percentiles
from forebay_schemas.contract.tiers import TIERS, Tier

_BLOCKS: Final = " ▁▂▃▄▅▆▇█"
COLUMNS_MAX: Final = 100
_COLORS: Final = {Tier.HIGH: "red", Tier.MID: "yellow", Tier.LOW: "cyan"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """A demo at this moment. ``rows``: by name, the cells by the name of their column; the same columns in each."""

    at_seconds: float
    title: str
    rows: Mapping[str, Mapping[str, int | str]]
    notes: tuple[str, ...]


def live_table(board: Board) -> Table:
    """The table that is redrawn while a demo runs."""
    title = f"{board.title}  {board.at_seconds:.0f} s"
    table = Table(title=title, title_justify="left", caption="\n".join(board.notes), caption_justify="left")
    table.add_column("")
    for column in next(iter(board.rows.values())):
        table.add_column(column, justify="right", min_width=9)
    for name, cells in board.rows.items():
        table.add_row(Text(name, style=_COLORS[Tier(name)] if name in TIERS else ""), *map(str, cells.values()))
    return table


def live_line(board: Board) -> str:
    """The same for a stream that is no terminal."""
    rows = (
        f"{name} " + " ".join(f"{cell} {column}" for column, cell in cells.items())
        for name, cells in board.rows.items()
    )
    return f"{board.at_seconds:3.0f} s  {'; '.join((*rows, *board.notes))}"


def new_report(title: str, *, caption: str) -> Table:
    """An empty table for a report; its first column, for what the rows are, is there."""
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        caption=caption,
        caption_justify="left",
        box=SIMPLE_HEAD,
        padding=0,
        pad_edge=False,
        show_edge=False,
    )
    table.add_column("", no_wrap=True)
    return table


def report_table(figures: Figures) -> Table:
    """The figures, those of the direct calls beside them."""
    table = new_report(
        "Through Forebay, and straight at an identical engine",
        caption="seconds of the completed requests; end to end from when each was due",
    )
    for name in (*TIERS, "all"):
        table.add_column(f"{name}\nForebay", justify="right", style="bold")
        table.add_column("\ndirect", justify="right", style="dim")

    def count(label: str, ours: str | None, direct: str | None) -> None:
        cells: list[str] = []
        for tier in TIERS:
            cells.append("" if ours is None else str(getattr(figures.tiers[tier], ours)))
            cells.append("" if direct is None else str(getattr(figures.direct[tier], direct)))
        cells.append("" if ours is None else str(figures.total(ours)))
        cells.append("" if direct is None else str(figures.direct_total(direct)))
        table.add_row(label, *cells)

    count("accepted/sent", "accepted", "sent")
    count("completed", "completed", "completed")
    count("timed out", "expired", "timed_out")
    count("refused", None, "refused")
    count("failed", "failed", "failed")
    count("lost", "lost", None)
    table.add_row("executed twice", *[""] * 6, str(figures.duplicated))
    table.add_section()
    for name in ("p50", "p95", "p99"):
        waited = [(seconds_cell(figures.tiers[tier].queue, name), "") for tier in TIERS]
        table.add_row(f"waited {name.upper()}", *itertools.chain.from_iterable(waited))
    table.add_section()
    for name in ("p50", "p95", "p99"):
        both = [(figures.tiers[tier].end_to_end, figures.direct[tier].end_to_end) for tier in TIERS]
        cells = [seconds_cell(one, name) for one in itertools.chain.from_iterable(both)]
        table.add_row(f"end to end {name.upper()}", *cells)
    return table


def seconds_cell(percentiles: Percentiles | None, name: str) -> str:
    """One of the percentiles, for a report."""
    return "-" if percentiles is None else f"{getattr(percentiles, name):.2f}"


def bars(values: Sequence[float], *, rows: int, top: float) -> list[str]:
    """A bar of block characters for each value, ``rows`` lines high, first line on top; ``top`` fills all lines."""
    eighths = [round(8 * rows * min(value, top) / top) if top > 0 else 0 for value in values]
    # What is not nothing must not look like it.
    eighths = [max(1, height) if value > 0 else 0 for height, value in zip(eighths, values, strict=True)]
    return [
        "".join(_BLOCKS[min(8, max(0, height - 8 * (rows - 1 - row)))] for height in eighths) for row in range(rows)
    ]


def plot(series: Series, *, columns: int) -> Text:
    """Arrivals over dispatches on one scale, below them the backlog by tier, limit and engine, and last what the engine
    refused without Forebay."""
    unserved = [a + b for a, b in zip(series.direct_refused, series.direct_timed_out, strict=True)]
    per_column = -(-series.seconds // min(columns, COLUMNS_MAX))
    arrivals, dispatches, refused, limit, in_flight, busy = (
        _averaged(values, per_column)
        for values in (
            series.arrivals,
            series.dispatches,
            unserved,
            series.limit,
            series.in_flight,
            [100 * share for share in series.engine_busy],
        )
    )
    backlog = {tier: _averaged(series.backlog[tier], per_column) for tier in TIERS}
    top = max([*arrivals, *dispatches, *refused, 1])
    text = Text()
    allowed = max([*limit, *in_flight, 1])
    for title, values, rows, full, style in (
        ("arrivals/s", arrivals, 8, top, "blue"),
        ("dispatches/s through Forebay: the peak is shaved", dispatches, 8, top, "green"),
        *(
            (f"backlog, {tier}: waiting in Kafka and the workers", backlog[tier], rows, max([*backlog[tier], 1]), style)
            for (tier, style), rows in zip(_COLORS.items(), (1, 2, 4), strict=True)
        ),
        ("limit: requests that the workers allow in flight", limit, 4, allowed, "magenta"),
        ("in flight", in_flight, 4, allowed, "green"),
        ("engine busy, % of the time", busy, 3, 100, "white"),
        ("without Forebay: requests/s refused or timed out", refused, 4, top, "red"),
    ):
        text.append(f"{full:6.0f} ┤ {title}\n", style="bold")
        for line in bars(values, rows=rows, top=full):
            text.append("       │")
            text.append(line + "\n", style=style)
    text.append("     0 └" + "".join("┬" if i % 10 == 0 else "─" for i in range(len(arrivals))) + "\n")
    labels = "".join(f"{i * per_column:<10d}" for i in range(0, len(arrivals), 10))
    text.append(f"        {labels.rstrip()} s\n")
    return text


def _averaged(values: Sequence[float], per_column: int) -> list[float]:
    groups = [values[start : start + per_column] for start in range(0, len(values), per_column)]
    return [sum(group) / len(group) for group in groups]
