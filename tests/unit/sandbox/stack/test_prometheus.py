"""Rules in quick time, dashboards' expressions with everything chosen, and values in their units."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from dashboards.model import COLUMNS, POOL, Dashboard, Row, as_json, graph, stat
from dashboards.picture import Span, draw, formatted
from forebay_sandbox.stack.prometheus import LocalPrometheus, Series, in_quick_time, jobs_of, with_values


@pytest.mark.parametrize(
    ("rule", "wanted"),
    [
        ("rate(forebay_enqueued_total[5m])", "rate(forebay_enqueued_total[10000ms])"),
        ("max_over_time(forebay_exporter_up[1h])", "max_over_time(forebay_exporter_up[120000ms])"),
        ("avg_over_time(forebay:late:rate5m[3d])", "avg_over_time(forebay:late:rate5m[8640000ms])"),
        ("        for: 5m", "        for: 10000ms"),
        ("        keep_firing_for: 5m", "        keep_firing_for: 10000ms"),
        ("      - record: forebay:outcomes:rate5m", "      - record: forebay:outcomes:rate5m"),
        ("forebay:deadline_risk:ratio > 0.7", "forebay:deadline_risk:ratio > 0.7"),
        ("description: wait for 5m", "description: wait for 5m"),
    ],
)
def test_quick_time_shortens_windows_and_for_and_nothing_else(rule: str, wanted: str) -> None:
    assert in_quick_time(rule, factor=30) == wanted


@pytest.mark.parametrize(
    ("expr", "wanted"),
    [
        ('up{pool=~"$pool"}', 'up{pool=~".*"}'),
        ('rate(x{pool=~"${pool}"}[$__rate_interval])', 'rate(x{pool=~".*"}[15s])'),
        ("sum(x)", "sum(x)"),
    ],
)
def test_a_dashboards_variables_stand_for_everything(expr: str, wanted: str) -> None:
    assert with_values(expr, rate_interval="15s") == wanted


def test_a_stack_is_scraped_as_workers_and_exporter() -> None:
    jobs = jobs_of(workers=["http://127.0.0.1:1", "http://127.0.0.1:2"], exporter="http://127.0.0.1:3")
    assert jobs == {"forebay-worker": ["127.0.0.1:1", "127.0.0.1:2"], "forebay-exporter": ["127.0.0.1:3"]}


@pytest.mark.parametrize(
    ("value", "unit", "wanted"),
    [
        (0.7, "percentunit", "70%"),
        (314_572_800, "bytes", "300 MiB"),
        (1_610_612_736, "bytes", "1.5 GiB"),
        (0.0, "s", "0 s"),
        (0.0000123, "s", "12.3 µs"),
        (0.25, "s", "250 ms"),
        (2.5, "s", "2.5 s"),
        (600, "s", "10 min"),
        (86400, "s", "24 h"),
        (12.34, "reqps", "12.3 req/s"),
        (4_000, "short", "4 K"),
        (4_000, "none", "4000"),
        (float("inf"), "s", "inf"),
    ],
)
def test_values_are_written_in_their_unit(value: float, unit: str, wanted: str) -> None:
    assert formatted(value, unit=unit) == wanted


def test_panels_fill_a_row_from_the_left_and_go_on_below() -> None:
    a_stat = [stat(str(number), "up", unit="none", description="") for number in range(7)]
    a_graph = graph("graph", ("up", "{{pool}}"), unit="none", description="", runbook="ForebayNoCapacity")
    page = Dashboard(
        name="page", title="", description="", variables=(POOL,), rows=(Row(title="row", panels=(*a_stat, a_graph)),)
    )
    heading, *panels = json.loads(as_json(page))["panels"]
    assert heading["gridPos"] == {"x": 0, "y": 0, "w": COLUMNS, "h": 1}
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]
    assert places == [(0, 1), (4, 1), (8, 1), (12, 1), (16, 1), (20, 1), (0, 5), (4, 5)]
    assert panels[-1]["links"][0]["url"] == "${runbooks}/ForebayNoCapacity.md"


class Recorded(LocalPrometheus):
    """Knows a line with a gap, one that is always 0, one that is infinite, and nothing of `absent`."""

    def __init__(self) -> None:
        super().__init__(url="http://127.0.0.1:1")

    def query_range(self, expr: str, *, start: float, end: float, step_seconds: float) -> list[Series]:
        if "absent" in expr:
            return []
        seconds = [start + number * step_seconds for number in range(int((end - start) / step_seconds) + 1)]
        lines = {
            "gap": [(at, at - start) for at in seconds if at - start > 3],
            "zero": [(at, 0.0) for at in seconds],
            "infinite": [(at, math.inf) for at in seconds],
        }
        return [Series(labels={"pool": name}, points=points) for name, points in lines.items()]


@pytest.mark.parametrize("more", [{}, {"stacked": True}, {"log_scale": True}, {"thresholds": ((1, "red"),)}])
def test_a_picture_is_drawn_whatever_the_values_are(tmp_path: Path, more: dict[str, Any]) -> None:
    panels = (
        stat("a stat", "up", unit="s", description=""),
        stat("an empty stat", "absent", unit="s", description=""),
        graph("a graph", ("up", "{{pool}} and a legend of many letters"), unit="s", description="", **more),
        graph("an empty graph", ("absent", "{{pool}}"), unit="s", description="", **more),
    )
    rows = (Row(title="row", panels=panels),)
    page = Dashboard(name="page", title="title", description="", variables=(POOL,), rows=rows)
    span = Span(start=100, end=110, step_seconds=1, rate_interval="15s")
    draw(json.loads(as_json(page)), Recorded(), span, path=tmp_path / "page.png")
    assert (tmp_path / "page.png").read_bytes().startswith(b"\x89PNG")
