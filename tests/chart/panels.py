"""What the files of the chart's dashboards hold: their panels, and the expressions of these. Reads files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from chart.rendered import CHART

FILES = sorted((CHART / "dashboards").glob("*.json"))


def load(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return document


def panels_of(path: Path) -> list[dict[str, Any]]:
    """Its panels but the headings."""
    return [panel for panel in load(path)["panels"] if panel["type"] != "row"]


def expressions_in(path: Path) -> Iterator[str]:
    """Expressions of panels and of annotations."""
    for panel in panels_of(path):
        yield from (target["expr"] for target in panel["targets"])
    yield from (each["expr"] for each in load(path)["annotations"]["list"])


def with_all_chosen(expr: str, *, rate_interval: str) -> str:
    """A dashboard's expression as Grafana sends it when each variable is at All."""
    return re.sub(r"\$\{?(?!__)\w+\}?", ".*", expr.replace("$__rate_interval", rate_interval))
