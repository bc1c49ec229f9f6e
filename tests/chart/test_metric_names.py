"""Rules and dashboards name only metrics, labels and recorded series that there are."""

from __future__ import annotations

import re
from collections.abc import Iterator

import yaml

from chart.panels import FILES, expressions_in, load
from chart.rendered import CHART, ROOT

RULES = CHART / "rules" / "forebay.yaml"

# Prometheus gives these to whatever it scrapes, or its external labels do.
LABELS_OF_TARGETS = {"cluster", "namespace", "pod", "instance", "job"}


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
    for path in FILES:
        variables = (each["query"]["query"] for each in load(path)["templating"]["list"] if each["type"] == "query")
        yield from ((path.stem, expr) for expr in (*expressions_in(path), *variables))


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
