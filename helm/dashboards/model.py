"""What a dashboard is, and how it becomes Grafana's JSON (the classic model, which files are provisioned in). Pure."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

SCHEMA_VERSION: Final = 42
COLUMNS: Final = 24
"""Grafana's grid."""

RUNBOOKS_URL: Final = "${runbooks}"
"""A hidden constant of each dashboard, the folder of the runbooks; whoever ships them elsewhere sets it there."""

_DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_STAT_HEIGHT: Final = 4
_GRAPH_HEIGHT: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A PromQL expression; ``legend`` is in Grafana's words: `{{tier}}`."""

    expr: str
    legend: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A picture of some queries. Stats show the last value, graphs the course of time."""

    title: str
    description: str
    """What to look for."""
    queries: tuple[Query, ...]
    unit: str
    """One of Grafana's ids."""
    width: int
    kind: str = "timeseries"
    thresholds: tuple[tuple[float, str], ...] = ()
    """From which value on which color; below the first it is green."""
    stacked: bool = False
    log_scale: bool = False
    runbook: str | None = None
    """The alert whose runbook goes on from here."""

    @property
    def height(self) -> int:
        return _STAT_HEIGHT if self.kind == "stat" else _GRAPH_HEIGHT


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Panels under a heading, laid out from left to right."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """A choice above the dashboard, made of a label's values."""

    name: str
    label: str
    query: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """One page. ``name`` is the file's, and with a prefix the uid."""

    name: str
    title: str
    description: str
    variables: tuple[Variable, ...]
    rows: tuple[Row, ...]


# Of workers and exporters: a pool without workers has the one, one without an exporter the other.
_SEEN: Final = '{__name__=~"forebay_build_info|forebay_exporter_up"}'
CLUSTER: Final = Variable(name="cluster", label="Cluster", query=f"label_values({_SEEN}, cluster)")
NAMESPACE: Final = Variable(name="namespace", label="Namespace", query=f"label_values({_SEEN}, namespace)")
POOL: Final = Variable(name="pool", label="Pool", query=f"label_values({_SEEN}, pool)")
TIER: Final = Variable(
    name="tier", label="Tier", query='label_values({__name__=~"forebay_received_total|forebay_backlog_records"}, tier)'
)
WORKER: Final = Variable(
    name="worker", label="Worker", query='label_values(forebay_build_info{pool=~"$pool"}, instance)'
)


SELECTED: Final = 'cluster=~"$cluster", namespace=~"$namespace", pool=~"$pool"'
"""What the variables select, as PromQL's matchers. A label that a series has not matches "All"."""


def stat(title: str, expr: str, *, unit: str, description: str, width: int = 4, **more: Any) -> Panel:
    """A single value."""
    query = Query(expr=expr, legend="{{pool}}")
    return Panel(title=title, description=description, queries=(query,), unit=unit, width=width, kind="stat", **more)


def graph(title: str, *queries: tuple[str, str], unit: str, description: str, width: int = 12, **more: Any) -> Panel:
    """Lines over time, of pairs of expression and legend."""
    made = tuple(Query(expr=expr, legend=legend) for expr, legend in queries)
    return Panel(title=title, description=description, queries=made, unit=unit, width=width, **more)


def as_json(dashboard: Dashboard) -> str:
    """The file's text: the same for the same dashboard, so that it can be compared."""
    document = {
        "uid": f"forebay-{dashboard.name}",
        "title": dashboard.title,
        "description": dashboard.description,
        "tags": ["forebay"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "graphTooltip": 1,
        "timezone": "browser",
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "annotations": {"list": [_alerts_as_annotations()]},
        "links": [
            {
                "type": "dashboards",
                "title": "Forebay",
                "tags": ["forebay"],
                "asDropdown": False,
                "includeVars": True,
                "keepTime": True,
            },
            {"type": "link", "title": "Runbooks", "url": f"{RUNBOOKS_URL}/README.md", "targetBlank": True},
        ],
        "templating": {"list": list(_variables(dashboard))},
        "panels": list(_panels(dashboard)),
    }
    return json.dumps(document, indent=2) + "\n"


def _alerts_as_annotations() -> dict[str, Any]:
    return {
        "name": "Alerts",
        "datasource": _DATASOURCE,
        "enable": True,
        "iconColor": "red",
        "expr": f'ALERTS{{alertname=~"Forebay.+", alertstate="firing", {SELECTED}}}',
        "titleFormat": "{{alertname}} {{pool}} {{tier}}",
        "step": "60s",
    }


def _variables(dashboard: Dashboard) -> Iterator[dict[str, Any]]:
    yield {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}
    for variable in dashboard.variables:
        yield {
            "name": variable.name,
            "label": variable.label,
            "type": "query",
            "datasource": _DATASOURCE,
            "query": {"query": variable.query, "refId": variable.name},
            "refresh": 2,
            "sort": 1,
            "multi": True,
            "includeAll": True,
            # What has no such label, a namespace say, is in "All" too.
            "allValue": ".*",
            "current": {"text": ["All"], "value": ["$__all"]},
        }
    yield {"name": "runbooks", "type": "constant", "hide": 2, "query": "docs/runbooks"}


def _panels(dashboard: Dashboard) -> Iterator[dict[str, Any]]:
    ids = itertools.count(1)
    top = 0
    for row in dashboard.rows:
        yield {
            "id": next(ids),
            "type": "row",
            "title": row.title,
            "collapsed": False,
            "gridPos": {"x": 0, "y": top, "w": COLUMNS, "h": 1},
            "panels": [],
        }
        top += 1
        left, tallest = 0, 0
        for panel in row.panels:
            if left + panel.width > COLUMNS:
                left, top, tallest = 0, top + tallest, 0
            yield _panel(panel, number=next(ids), left=left, top=top)
            left, tallest = left + panel.width, max(tallest, panel.height)
        top += tallest


def _panel(panel: Panel, *, number: int, left: int, top: int) -> dict[str, Any]:
    links = []
    if panel.runbook is not None:
        url = f"{RUNBOOKS_URL}/{panel.runbook}.md"
        links = [{"title": f"Runbook {panel.runbook}", "url": url, "targetBlank": True}]
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": _DATASOURCE,
        "gridPos": {"x": left, "y": top, "w": panel.width, "h": panel.height},
        "links": links,
        "targets": [
            {
                "refId": letter,
                "datasource": _DATASOURCE,
                "expr": query.expr,
                "legendFormat": query.legend,
                "range": True,
                "instant": False,
            }
            for letter, query in zip("ABCDEFGH", panel.queries, strict=False)
        ],
        "fieldConfig": {"defaults": _defaults(panel), "overrides": []},
        "options": _OPTIONS[panel.kind],
    }


_OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "stat": {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "colorMode": "value",
        "graphMode": "area",
        "justifyMode": "auto",
        "orientation": "auto",
        "textMode": "auto",
    },
    "timeseries": {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
}


def _defaults(panel: Panel) -> dict[str, Any]:
    steps: list[dict[str, object]] = [{"color": "green", "value": None}]
    steps += [{"color": color, "value": value} for value, color in panel.thresholds]
    defaults: dict[str, Any] = {
        "unit": panel.unit,
        "thresholds": {"mode": "absolute", "steps": steps},
        "color": {"mode": "thresholds" if panel.kind == "stat" else "palette-classic"},
    }
    if panel.kind == "timeseries":
        defaults["custom"] = {
            "drawStyle": "line",
            "lineWidth": 1,
            "fillOpacity": 40 if panel.stacked else 5,
            "showPoints": "never",
            "spanNulls": False,
            "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
            "scaleDistribution": {"type": "log", "log": 10} if panel.log_scale else {"type": "linear"},
            "thresholdsStyle": {"mode": "dashed" if panel.thresholds else "off"},
        }
        if not panel.log_scale:
            defaults["min"] = 0
    return defaults
