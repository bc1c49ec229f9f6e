"""The chart's dashboards: Grafana's structure, and that a real Prometheus' parser takes every expression."""

from __future__ import annotations

import json
import re
import subprocess
from itertools import combinations
from pathlib import Path

import pytest
import yaml

from chart.panels import FILES, expressions_in, load, panels_of, with_all_chosen
from chart.rendered import CHART, ROOT
from dashboards.catalogue import DASHBOARDS, write_dashboards
from dashboards.model import COLUMNS, POOL, SCHEMA_VERSION, Dashboard, Row, as_json, graph, stat

UNITS = {"s", "short", "none", "percentunit", "reqps", "bytes"}

every_dashboard = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)


def test_the_files_are_what_the_package_would_write(tmp_path: Path) -> None:
    written = write_dashboards(tmp_path)
    assert [path.name for path in FILES] == sorted(path.name for path in written)
    for path in written:
        assert (CHART / "dashboards" / path.name).read_text() == path.read_text(), "write them again: make dashboards"


@every_dashboard
def test_a_dashboard_has_a_name_a_data_source_to_choose_and_pools(path: Path) -> None:
    document = load(path)
    assert document["uid"] == f"forebay-{path.stem}"
    assert document["schemaVersion"] == SCHEMA_VERSION
    assert document["tags"] == ["forebay"]
    names = [variable["name"] for variable in document["templating"]["list"]]
    assert names[:4] == ["datasource", "cluster", "namespace", "pool"]
    assert len(set(names)) == len(names)
    known = {*names, "__rate_interval", "__all"}
    assert set(re.findall(r"\$\{?(\w+)", path.read_text(encoding="utf-8"))) <= known


@every_dashboard
def test_all_that_is_shown_is_of_the_chosen_clusters_namespaces_and_pools(path: Path) -> None:
    """The marks of alerts too: another namespace's pool of the same name has its own."""
    chosen = 'cluster=~"$cluster", namespace=~"$namespace", pool=~"$pool"'
    assert [expr for expr in expressions_in(path) if chosen not in expr] == []


@every_dashboard
def test_a_pool_can_be_chosen_that_has_no_workers_or_no_exporter(path: Path) -> None:
    for variable in load(path)["templating"]["list"]:
        if variable["type"] == "query" and variable["name"] != "worker":
            metrics = set(re.findall(r"forebay_\w+", variable["query"]["query"]))
            assert metrics & {"forebay_exporter_up", "forebay_backlog_records"}, variable["name"]
            assert metrics & {"forebay_build_info", "forebay_received_total"}, variable["name"]


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


def test_uids_differ() -> None:
    assert len({load(path)["uid"] for path in FILES}) == len(FILES) == len(DASHBOARDS) == 3


@every_dashboard
def test_panels_lie_in_the_grid_side_by_side(path: Path) -> None:
    panels = load(path)["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [panel["gridPos"] for panel in panels]
    assert all(one["x"] >= 0 and one["x"] + one["w"] <= COLUMNS for one in places)
    for one, other in combinations(places, 2):
        apart = (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
        assert apart, f"{one} lies over {other}"


@every_dashboard
def test_a_panel_says_what_it_shows_in_which_unit_and_what_to_look_for(path: Path) -> None:
    panels = panels_of(path)
    assert len({panel["title"] for panel in panels}) == len(panels)
    for panel in panels:
        title = panel["title"]
        assert panel["type"] in {"timeseries", "stat"}, title
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}, title
        assert len(panel["description"]) > 40, title
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS, title
        assert [target["refId"] for target in panel["targets"]] == list("ABCD"[: len(panel["targets"])]), title
        assert all(target["legendFormat"] for target in panel["targets"]), title
        assert all("$pool" in target["expr"] or "$worker" in target["expr"] for target in panel["targets"]), title


@every_dashboard
def test_a_real_parser_takes_every_expression(promtool: Path, tmp_path: Path, path: Path) -> None:
    taken = [
        {"record": f"forebay:panel:{number}", "expr": with_all_chosen(expr, rate_interval="1m")}
        for number, expr in enumerate(expressions_in(path))
    ]
    page = tmp_path / "rules.yaml"
    page.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": taken}]}), encoding="utf-8")
    ran = subprocess.run([promtool, "check", "rules", page], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@every_dashboard
def test_the_page_says_what_to_look_for_in_each_panel(path: Path) -> None:
    page = (ROOT / "docs" / "dashboards.md").read_text(encoding="utf-8")
    rows = "\n".join(f"| {panel['title']} | {panel['description']} |" for panel in panels_of(path))
    assert rows in page, f"docs/dashboards.md should hold these rows:\n{rows}"
