"""docs/metrics.md lists the metrics of each deployable. Where it does not, the failure shows the table."""

from __future__ import annotations

from pathlib import Path

import pytest

from forebay_producer import metrics as producer_metrics
from forebay_schemas.runtime.metrics import Described
from forebay_worker.ops import metrics as worker_metrics

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"

LISTS = {
    "The worker": worker_metrics.METRICS,
    "The exporter": producer_metrics.EXPORTER_METRICS,
    "The client library": producer_metrics.LIBRARY_METRICS,
}


def rows_of(described: tuple[Described, ...]) -> list[str]:
    """A row of the table for each."""
    return [
        f"| `{each.name}` | {each.kind.value} | {', '.join(f'`{label}`' for label in each.labels) or 'none'} |"
        f" {each.meaning} |"
        for each in described
    ]


def section(title: str) -> list[str]:
    text = PAGE.read_text(encoding="utf-8")
    assert f"\n## {title}\n" in text
    return text.partition(f"\n## {title}\n")[2].partition("\n## ")[0].splitlines()


@pytest.mark.parametrize("title", LISTS)
def test_the_page_lists_every_metric_and_no_other(title: str) -> None:
    wanted = rows_of(LISTS[title])
    found = [line for line in section(title) if line.startswith("| `forebay_")]
    assert found == wanted, f"docs/metrics.md, {title}, should list:\n" + "\n".join(wanted)


@pytest.mark.parametrize("described", LISTS.values(), ids=list(LISTS))
def test_metrics_are_named_as_prometheus_wants_them(described: tuple[Described, ...]) -> None:
    names = [each.name for each in described]
    assert len(names) == len(set(names))
    for each in described:
        assert each.name.startswith("forebay_")
        assert each.name.endswith("_total") == (each.kind.value == "counter")
        assert not {"pool", "tenant", "model", "request_id", "le"} & set(each.labels)
