"""Tables that fit the terminal: in a narrow one the least important columns are left out, and named on stderr.

Files and pipes get every column in full.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from forebay_producer.cli.common import say, stdout_console, table, to_json
from forebay_schemas.runtime.output import Output
from forebay_schemas.runtime.terminal import printable

CUT_WIDTH_MIN: Final = 16
"""Shorter texts would be unreadable."""

GAP: Final = 2
"""Cells between two columns."""

_BETWEEN: Final = "  "


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """``leave_out``: 0 keeps the column; otherwise the column with the highest value is left out first. ``may_be_cut``:
    its texts may be shortened before a column is left out. ``is_number``: aligned to the right."""

    name: str
    leave_out: int = 0
    may_be_cut: bool = False
    is_number: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Which columns are shown, by index, and how wide each of these is."""

    widths: dict[int, int]
    left_out: tuple[str, ...]


def fit(columns: Sequence[Column], rows: Sequence[Sequence[str]], *, width: int) -> Fit:
    """Fits a table into ``width`` cells. Pure."""
    natural = [
        max(cell_len(text) for text in (column.name, *(row[i] for row in rows))) for i, column in enumerate(columns)
    ]
    least = [
        min(wide, max(CUT_WIDTH_MIN, cell_len(column.name))) if column.may_be_cut else wide
        for column, wide in zip(columns, natural, strict=True)
    ]
    kept = set(range(len(columns)))

    def total(widths: Sequence[int]) -> int:
        return sum(widths[i] for i in kept) + GAP * (len(kept) - 1)

    while total(least) > width:
        droppable = [i for i in kept if columns[i].leave_out]
        if not droppable:
            break
        kept.remove(max(droppable, key=lambda i: columns[i].leave_out))
    widths = {i: least[i] for i in sorted(kept)}
    spare = width - total(least)
    for i in widths:
        more = min(max(0, spare), natural[i] - widths[i])
        widths[i] += more
        spare -= more
    if spare < 0:
        # No column is left to drop: the widest text is cut.
        widest = max(widths, key=lambda i: (not columns[i].is_number, widths[i]))
        widths[widest] = max(1, widths[widest] + spare)
    left_out = tuple(column.name for i, column in enumerate(columns) if i not in kept)
    return Fit(widths=widths, left_out=left_out)


def print_table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """Prints the rows; texts must be printable."""
    console = stdout_console()
    found = fit(columns, rows, width=console.width)
    numbers = frozenset(column.name for column in columns if column.is_number)
    shown = table(*(columns[i].name for i in found.widths), right=numbers)
    for row in rows:
        shown.add_row(*(Text(_cut(row[i], wide)) for i, wide in found.widths.items()))
    console.print(shown)
    sys.stdout.flush()
    if found.left_out:
        say(_left_out_text(found.left_out, console.width))


def _left_out_text(names: Sequence[str], width: int | None) -> str:
    return f"left out at {width} columns: {', '.join(names)}; a wider terminal or --output json has them"


def _cut(text: str, width: int) -> str:
    return text if cell_len(text) <= width else set_cell_size(text, width - 1) + "…"


class Rows:
    """Prints records as they come: JSON lines, or rows of a table whose column widths are given beforehand.

    ``leave_out``: the columns that go first where a terminal is too narrow, in that order. A width of 0 is that of the
    last column: it has what is left of the line.
    """

    def __init__(self, output: Output, *, widths: Mapping[str, int], leave_out: Sequence[str] = ()) -> None:
        self._output = output
        self._widths = dict(widths)
        self._header_due = output is Output.TABLE
        self._line_width: int | None = None
        self._left_out: tuple[str, ...] = ()
        if output is Output.TABLE and sys.stdout.isatty():
            self._line_width = stdout_console().width
            self._left_out = tuple(self._fit(leave_out, self._line_width))

    def add(self, record: Mapping[str, Any]) -> None:
        """Prints one record: a JSON object with all of it, or a row with the fields that are columns."""
        if self._output is Output.JSON:
            sys.stdout.write(to_json(record) + "\n")
            return
        if self._header_due:
            self._header_due = False
            if self._left_out:
                say(_left_out_text(self._left_out, self._line_width))
            self._write({name: name for name in self._widths})
        self._write({name: _cell(record[name]) for name in self._widths})

    def flush(self) -> None:
        """Shows what was added."""
        sys.stdout.flush()

    def _fit(self, leave_out: Sequence[str], line_width: int) -> Iterator[str]:
        for name in leave_out:
            taken = sum((wide or CUT_WIDTH_MIN) + len(_BETWEEN) for wide in self._widths.values()) - len(_BETWEEN)
            if taken <= line_width:
                return
            if self._widths.pop(name, None) is not None:
                yield name

    def _write(self, cells: Mapping[str, str]) -> None:
        line = _BETWEEN.join(cell.ljust(self._widths[name]) for name, cell in cells.items()).rstrip()
        if self._line_width is not None and list(self._widths.values())[-1] == 0:
            line = _cut(line, self._line_width)
        sys.stdout.write(line + "\n")


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.3f}"
    return printable(str(value))
