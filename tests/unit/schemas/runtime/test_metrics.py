"""Descriptions and exposition of metrics: histograms that Prometheus understands, and nothing beyond the list."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from forebay_schemas.runtime.metrics import BUCKETS_SECONDS, Histogram, Sheet, counter, gauge, histogram

LIST = (
    counter("forebay_made_total", "Made", "tier"),
    gauge("forebay_waiting", "Waiting"),
    histogram("forebay_seconds", "Took", "tier"),
)


class _Once:
    def __init__(self, sheet: Sheet) -> None:
        self._sheet = sheet

    def collect(self) -> Iterable[Metric]:
        return self._sheet.families()


def page(sheet: Sheet) -> str:
    registry = CollectorRegistry()
    registry.register(_Once(sheet))
    return generate_latest(registry).decode()


def test_a_histogram_counts_up_to_each_bound() -> None:
    observed = Histogram()
    for seconds in (0.0, 0.005, 0.0051, 3.0, 600.0, 601.0):
        observed.observe(seconds)
    counts = dict(observed.cumulative())
    assert list(counts) == [*(str(float(bound)) for bound in BUCKETS_SECONDS), "+Inf"]
    assert (counts["0.005"], counts["0.01"], counts["2.0"], counts["3.0"]) == (2, 3, 3, 4)
    assert (counts["600.0"], counts["+Inf"]) == (5, 6)
    assert observed.total == pytest.approx(1204.0101)


def test_samples_come_in_the_lists_order_each_with_its_pool() -> None:
    sheet = Sheet(LIST)
    seconds = Histogram()
    seconds.observe(0.2)
    sheet.add("a", "forebay_seconds", seconds, "high")
    sheet.add("b", "forebay_waiting", 2)
    sheet.add("a", "forebay_waiting", None)
    sheet.add("a", "forebay_made_total", 7, "low")
    families = list(text_string_to_metric_families(page(sheet)))
    assert [family.name for family in families] == ["forebay_made", "forebay_waiting", "forebay_seconds"]
    made, waiting, took = families
    assert [(sample.labels, sample.value) for sample in made.samples] == [({"pool": "a", "tier": "low"}, 7)]
    assert [(sample.labels, sample.value) for sample in waiting.samples] == [({"pool": "b"}, 2)]
    assert {sample.name for sample in took.samples} == {
        f"forebay_seconds_{part}" for part in ("bucket", "count", "sum")
    }


@pytest.mark.parametrize(
    ("name", "value", "labels"),
    [
        ("forebay_made_total", 1, ()),
        ("forebay_waiting", 1, ("high",)),
        ("forebay_waiting", Histogram(), ()),
        ("forebay_seconds", 1, ("high",)),
        ("forebay_unknown", 1, ()),
    ],
)
def test_what_the_list_does_not_say_cannot_be_shown(
    name: str, value: float | Histogram, labels: tuple[str, ...]
) -> None:
    with pytest.raises((KeyError, ValueError)):
        Sheet(LIST).add("a", name, value, *labels)
