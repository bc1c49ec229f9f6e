"""Columns of a table that a terminal shows, and their widths."""

from __future__ import annotations

import pytest
from rich.cells import cell_len

from forebay_producer.cli.tables import CUT_WIDTH_MIN, GAP, Column, fit

COLUMNS = (
    Column(name="reason"),
    Column(name="open", is_number=True),
    Column(name="first_seen", leave_out=2),
    Column(name="last_seen", leave_out=1),
    Column(name="sample_ids", leave_out=3),
)
ROW = ("backend_overloaded", "4,000", "2026-01-31T09:00:00Z", "2026-01-31T09:00:00Z", "x" * 110)


@pytest.mark.parametrize(
    ("width", "left_out"),
    [
        (1000, ()),
        (18 + 5 + 20 + 20 + 110 + 4 * GAP, ()),
        (18 + 5 + 20 + 20 + 110 + 4 * GAP - 1, ("sample_ids",)),
        (80, ("sample_ids",)),
        (60, ("first_seen", "sample_ids")),
        (30, ("first_seen", "last_seen", "sample_ids")),
    ],
)
def test_the_least_important_columns_go_first(width: int, left_out: tuple[str, ...]) -> None:
    found = fit(COLUMNS, [ROW], width=width)
    assert found.left_out == left_out
    assert sum(found.widths.values()) + GAP * (len(found.widths) - 1) <= width


def test_what_always_stays_is_cut_where_nothing_else_can_go() -> None:
    found = fit(COLUMNS, [ROW], width=20)
    assert found.widths == {0: 20 - GAP - 5, 1: 5}, "the count in full, the name cut"


def test_a_text_that_may_be_cut_is_before_a_column_goes() -> None:
    columns = (Column(name="topic"), Column(name="settings", may_be_cut=True, leave_out=1))
    rows = [("t" * 30, "s" * 200)]
    assert fit(columns, rows, width=80).widths == {0: 30, 1: 50 - GAP}
    assert fit(columns, rows, width=30 + GAP + CUT_WIDTH_MIN).left_out == ()
    assert fit(columns, rows, width=30 + GAP + CUT_WIDTH_MIN - 1).left_out == ("settings",)


def test_wide_letters_count_as_two_cells() -> None:
    name = "\u524a\u5cf0\u586b\u8c37" * 3
    assert fit((Column(name="tenant"),), [(name,)], width=80).widths == {0: cell_len(name)}
