"""Rules and dashboards name only metrics, labels and recorded series that there are."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
RULES = ROOT / "helm" / "forebay" / "rules" / "forebay.yaml"
DASHBOARDS = sorted((ROOT / "helm" / "forebay" / "dashboards").glob("*.json"))

# Prometheus gives these to whatever it scrapes, or its external labels do.
LABELS_OF_TARGETS = {"cluster", "namespace", "pod", "instance", "job"}


def expressions_in(path: Path) -> Iterator[str]:
    """Expressions of panels, of annotations, and of variables."""
    document = json.loads(path.read_text(encoding="utf-8"))
    for panel in document["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))
    yield from (each["expr"] for each in document["annotations"]["list"])
    variables = document["templating"]["list"]
    yield from (each["query"]["query"] for each in variables if each["type"] == "query")


def documented() -> dict[str, set[str]]:
    """The metrics of docs/metrics.md, as Prometheus names their series, and their labels."""
    metrics: dict[str, set[str]] = {}
    for line in (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8").splitlines():
        if row := re.match(r"\| `(forebay_\w+)` \| (\w+) \| ([^|]+) \|", line):
            # The tables leave out the label that all have.
            name, kind, labels = row[1], row[2], {"pool", *re.findall(r"`(\w+)`", row[3])}
            names = [f"{name}_bucket", f"{name}_count", f"{name}_sum"] if kind == "histogram" else [name]
            metrics |= {each: metrics.get(each, set()) | labels for each in names}
    return metrics


def all_expressions() -> Iterator[tuple[str, str]]:
    for group in yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]:
        yield from ((rule.get("alert") or rule["record"], rule["expr"]) for rule in group["rules"])
    for path in DASHBOARDS:
        yield from ((path.stem, expr) for expr in expressions_in(path))


def test_every_metric_of_rules_and_dashboards_is_one_that_is_documented() -> None:
    metrics = documented()
    assert len(metrics) > 40
    unknown = {
        f"{name} in {where}"
        for where, expr in all_expressions()
        for name in re.findall(r"\bforebay_\w+", expr)
        if name not in metrics
    }
    assert unknown == set()


def test_every_recorded_series_that_is_used_is_recorded() -> None:
    records = {
        rule["record"]
        for group in yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
        for rule in group["rules"]
        if "record" in rule
    }
    used = {name for _, expr in all_expressions() for name in re.findall(r"forebay:\w+:\w+", expr)}
    assert used == records


def test_labels_that_select_are_labels_of_their_metric() -> None:
    metrics = documented()
    wrong = {
        f"{label} of {name} in {where}"
        for where, expr in all_expressions()
        for name, selector in re.findall(r"\b(forebay_\w+)\{([^}]*)\}", expr)
        for label in re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector)
        if name in metrics and label not in metrics[name] | LABELS_OF_TARGETS
    }
    assert wrong == set()
