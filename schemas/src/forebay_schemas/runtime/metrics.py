"""Metrics of all deployables: descriptions, a cheap histogram, the sheet of a scrape. Pure: registers nothing, listens
to nothing.

A Counter of prometheus-client costs 0.9 microseconds a call and a Histogram 1.9 (measured): too much, three times a
request. So counts are plain integers, exported on a scrape.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

BUCKETS_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 3, 5, 10, 30, 60, 120, 300, 600)
"""Include the default waits and deadlines of the tiers: 3 s, 5 s, 30 s."""

POOL_LABEL: Final = "pool"
"""The first label of every metric."""

_BOUNDS: Final = (*(str(float(bound)) for bound in BUCKETS_SECONDS), "+Inf")


class Kind(Enum):
    """A metric's type, as Prometheus calls it."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Described:
    """A metric: its full name, its kind, its labels after `POOL_LABEL`, and its meaning."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    meaning: str


def counter(name: str, meaning: str, *labels: str) -> Described:
    """A number that only grows; ``name`` ends in ``_total``."""
    return Described(name, Kind.COUNTER, labels, meaning)


def gauge(name: str, meaning: str, *labels: str) -> Described:
    """A number at the moment of a scrape."""
    return Described(name, Kind.GAUGE, labels, meaning)


def histogram(name: str, meaning: str, *labels: str) -> Described:
    """Durations in seconds, in `BUCKETS_SECONDS`."""
    return Described(name, Kind.HISTOGRAM, labels, meaning)


class Histogram:
    """A histogram for the busiest thread. Noting a sample is a list's append (a tenth of the time of counting it at
    once); samples are counted in batches.

    Used by one thread, or under a lock. Call `fold` now and then: samples are kept until then.
    """

    __slots__ = ("_at_or_below", "_pending", "count", "observe", "total")

    def __init__(self) -> None:
        self._pending: list[float] = []
        self._at_or_below = [0] * len(BUCKETS_SECONDS)
        self.count = 0
        """Folded samples."""
        self.total = 0.0
        """Their sum in seconds."""
        self.observe: Callable[[float], None] = self._pending.append
        """Notes a sample, in seconds."""

    def fold(self) -> None:
        """Counts the noted samples."""
        if not self._pending:
            return
        samples = sorted(self._pending)
        self._pending.clear()
        self.count += len(samples)
        self.total += sum(samples)
        for index, bound in enumerate(BUCKETS_SECONDS):
            self._at_or_below[index] += bisect_right(samples, bound)

    def cumulative(self) -> list[tuple[str, float]]:
        """Prometheus' form, of all samples: (upper bound, number at or below it)."""
        self.fold()
        return list(zip(_BOUNDS, map(float, (*self._at_or_below, self.count)), strict=True))


class Sheet:
    """One scrape: samples are added in any order and shown in the order of the list, those without samples too.

    One that the list lacks, or with other labels, raises ``KeyError`` or ``ValueError``: the list is what the documents
    are compared with.
    """

    def __init__(self, described: Iterable[Described]) -> None:
        self._described: dict[str, Described] = {}
        self._families: dict[str, CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily] = {}
        for each in described:
            labels = (POOL_LABEL, *each.labels)
            self._described[each.name] = each
            if each.kind is Kind.COUNTER:
                self._families[each.name] = CounterMetricFamily(each.name, each.meaning, labels=labels)
            elif each.kind is Kind.GAUGE:
                self._families[each.name] = GaugeMetricFamily(each.name, each.meaning, labels=labels)
            else:
                self._families[each.name] = HistogramMetricFamily(each.name, each.meaning, labels=labels)

    def add(self, pool: str, name: str, value: float | Histogram | None, *labels: str) -> None:
        """Adds a sample; ``labels`` in the order of the list. None: unknown, no sample."""
        if len(labels) != len(self._described[name].labels):
            raise ValueError(f"{name} has the labels {self._described[name].labels}, not {labels}")
        family = self._families[name]
        if isinstance(value, Histogram):
            if not isinstance(family, HistogramMetricFamily):
                raise ValueError(f"{name} is no histogram")
            family.add_metric((pool, *labels), value.cumulative(), value.total)
        elif isinstance(family, HistogramMetricFamily):
            raise ValueError(f"{name} is a histogram")
        elif value is not None:
            family.add_metric((pool, *labels), value)

    def families(self) -> Iterator[Metric]:
        """The families, for a prometheus-client collector."""
        yield from self._families.values()
