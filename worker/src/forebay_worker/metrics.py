"""Every metric of the worker, with its meaning. Counting is plain integers; `Collector` shows them to Prometheus.

A Counter of prometheus-client costs 0.9 microseconds a call and a Histogram 1.9 (measured): too much three times a
request. All counting is done by the event loop's thread; the intakes' own figures are read by value.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from forebay_schemas.control import ControlAction, ControlOutcome
from forebay_schemas.reasons import Reason
from forebay_schemas.tiers import TIERS, Tier
from forebay_worker.signals.readings import EngineReading, GpuReading
from forebay_worker.work import Work

BUCKETS_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class Histogram:
    """A histogram that costs a bisection and two additions."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_SECONDS) + 1)
        self.total = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(BUCKETS_SECONDS, seconds)] += 1
        self.total += seconds

    def cumulative(self) -> list[tuple[str, float]]:
        """Prometheus' form: (upper bound, how many at or below it)."""
        bounds = [str(float(bound)) for bound in BUCKETS_SECONDS] + ["+Inf"]
        pairs, seen = [], 0
        for bound, count in zip(bounds, self.counts, strict=True):
            seen += count
            pairs.append((bound, float(seen)))
        return pairs


def _per_tier() -> dict[Tier, int]:
    return dict.fromkeys(TIERS, 0)


def _histograms() -> dict[Tier, Histogram]:
    return {tier: Histogram() for tier in TIERS}


def _controls() -> dict[tuple[ControlAction, ControlOutcome], int]:
    cancel = dict.fromkeys((ControlOutcome.CANCELLED, ControlOutcome.FINISHED), 0)
    expedite = dict.fromkeys((each for each in ControlOutcome if each is not ControlOutcome.CANCELLED), 0)
    return {
        (action, outcome): number
        for action, outcomes in ((ControlAction.CANCEL, cancel), (ControlAction.EXPEDITE, expedite))
        for outcome, number in outcomes.items()
    }


@dataclass(slots=True, kw_only=True)
class Stats:
    """What the event loop's thread counts."""

    received: dict[Tier, int] = field(default_factory=_per_tier)
    started: dict[Tier, int] = field(default_factory=_per_tier)
    retries: dict[Tier, int] = field(default_factory=_per_tier)
    duplicates: dict[Tier, int] = field(default_factory=_per_tier)
    outcomes: dict[tuple[Tier, Reason], int] = field(default_factory=dict)
    controls: dict[tuple[ControlAction, ControlOutcome], int] = field(default_factory=_controls)
    queue_seconds: dict[Tier, Histogram] = field(default_factory=_histograms)
    service_seconds: dict[Tier, Histogram] = field(default_factory=_histograms)
    backend_failures: int = 0
    dead_letters: int = 0
    produce_failures: int = 0

    def dispatched(self, work: Work, now_ms: int) -> None:
        """A request was started."""
        self.started[work.tier] += 1
        self.queue_seconds[work.tier].observe(max(0, now_ms - work.first_enqueued_at) / 1000)

    def ended(self, work: Work, reason: Reason, service_seconds: float | None) -> None:
        """A request's outcome is known."""
        key = (work.tier, reason)
        self.outcomes[key] = self.outcomes.get(key, 0) + 1
        if service_seconds is not None:
            self.service_seconds[work.tier].observe(service_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class IntakeGauges:
    """How an intake stands at the moment of a scrape."""

    held_records: int
    assigned_partitions: int
    unfinished_records: int
    commits: int
    commit_failures: int
    rebalances: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauges:
    """How the worker stands at the moment of a scrape. ``signals``: as `SignalPoller.sources` tells of them."""

    limit_requests: int
    limit_changes: int
    in_flight: int
    token_seconds: float | None
    token_target_seconds: float | None
    knee_requests: float
    prefill_backlog_seconds: float
    signals: Mapping[str, Mapping[str, Any]]
    engine: EngineReading | None
    gpu: GpuReading | None
    breaker_open: bool
    breaker_opened: int
    undelivered: int
    clock_skew_ms: float | None
    overload_level: int
    overload_steps: Mapping[str, int]
    estimated_waits: Mapping[Tier, float]
    lane_work_seconds: Mapping[Tier, float]
    handed_over_running: int
    lane_records: dict[Tier, int]
    lane_bytes: dict[Tier, int]
    intakes: dict[str, IntakeGauges]


class Collector:
    """Shows `Stats` and `Gauges` to a prometheus-client registry."""

    def __init__(self, *, stats: Stats, gauges: Callable[[], Gauges]) -> None:
        self._stats = stats
        self._gauges = gauges

    def describe(self) -> Iterable[Metric]:
        """Nothing: registering must not call `collect`, the worker does not run yet."""
        return ()

    def collect(self) -> Iterator[Metric]:
        yield from self._counters()
        yield from self._histograms()
        now = self._gauges()
        yield from _pacing(now)
        yield from _signals(now)
        yield from _rest(now)

    def _counters(self) -> Iterator[Metric]:
        stats = self._stats
        received = CounterMetricFamily("forebay_received", "Records taken from Kafka", labels=["tier"])
        started = CounterMetricFamily("forebay_started", "Executions started", labels=["tier"])
        retries = CounterMetricFamily("forebay_retries", "Failed executions that are tried again", labels=["tier"])
        duplicates = CounterMetricFamily(
            "forebay_duplicates", "Records skipped because their request has its outcome already", labels=["tier"]
        )
        for tier in TIERS:
            received.add_metric([tier], stats.received[tier])
            started.add_metric([tier], stats.started[tier])
            retries.add_metric([tier], stats.retries[tier])
            duplicates.add_metric([tier], stats.duplicates[tier])
        outcomes = CounterMetricFamily("forebay_outcomes", "Requests that ended", labels=["tier", "status", "reason"])
        for (tier, reason), number in sorted(stats.outcomes.items(), key=lambda item: (item[0][0], item[0][1].code)):
            outcomes.add_metric([tier, reason.status, reason.code], number)
        controls = CounterMetricFamily(
            "forebay_controls", "Answers to cancels and expedites", labels=["action", "outcome"]
        )
        for (action, outcome), number in sorted(stats.controls.copy().items()):
            controls.add_metric([action, outcome], number)
        yield from (received, started, retries, duplicates, outcomes, controls)
        yield CounterMetricFamily(
            "forebay_backend_failures",
            "Executions that failed by the backend's state: refused, reset, 429, 502, 503, 529",
            value=stats.backend_failures,
        )
        yield CounterMetricFamily("forebay_dead_letters", "Records sent to the dead letters", value=stats.dead_letters)
        yield CounterMetricFamily(
            "forebay_produce_failures",
            "Outcome records whose delivery failed and was tried again",
            value=stats.produce_failures,
        )

    def _histograms(self) -> Iterator[Metric]:
        for name, meaning, histograms in (
            (
                "forebay_queue_seconds",
                "From the first enqueue to the start of the execution",
                self._stats.queue_seconds,
            ),
            ("forebay_service_seconds", "Length of an execution", self._stats.service_seconds),
        ):
            family = HistogramMetricFamily(name, meaning, labels=["tier"])
            for tier in TIERS:
                family.add_metric([tier], histograms[tier].cumulative(), histograms[tier].total)
            yield family


def _optional(name: str, meaning: str, value: float | None) -> GaugeMetricFamily:
    """A gauge without a sample while the value is not known."""
    gauge = GaugeMetricFamily(name, meaning)
    if value is not None:
        gauge.add_metric([], value)
    return gauge


def _pacing(now: Gauges) -> Iterator[Metric]:
    yield GaugeMetricFamily("forebay_limit_requests", "How many requests may be in flight", value=now.limit_requests)
    yield CounterMetricFamily("forebay_limit_changes", "Changes of that limit", value=now.limit_changes)
    yield GaugeMetricFamily("forebay_in_flight_requests", "How many requests are in flight", value=now.in_flight)
    yield _optional(
        "forebay_token_seconds",
        "What an output token takes lately, the prompt's share taken off; none before the first answer",
        now.token_seconds,
    )
    yield _optional(
        "forebay_token_target_seconds",
        "What it may take now; none with a policy that has no such target",
        now.token_target_seconds,
    )
    yield GaugeMetricFamily(
        "forebay_knee_requests",
        "With fewer in flight the backend would waste much of its time",
        value=now.knee_requests,
    )
    yield GaugeMetricFamily(
        "forebay_prefill_backlog_seconds",
        "Prompts that wait for their prefill in the backend, in its seconds of work",
        value=now.prefill_backlog_seconds,
    )


def _signals(now: Gauges) -> Iterator[Metric]:
    up = GaugeMetricFamily("forebay_signal_up", "1 while its readings are fresh", labels=["signal"])
    age = GaugeMetricFamily(
        "forebay_signal_age_seconds", "Age of the last reading; NaN before the first", labels=["signal"]
    )
    for signal, source in now.signals.items():
        up.add_metric([signal], source["state"] == "ok")
        seconds = source["age_seconds"]
        age.add_metric([signal], math.nan if seconds is None else seconds)
    yield up
    yield age
    for name, meaning, reading, attribute in (
        ("forebay_engine_running_requests", "Requests in the engine's batch", now.engine, "running_requests"),
        ("forebay_engine_waiting_requests", "Requests in the engine's own queue", now.engine, "waiting_requests"),
        ("forebay_engine_kv_used_ratio", "Share of its KV cache in use, 0 to 1", now.engine, "kv_used_share"),
        ("forebay_gpu_utilisation_ratio", "Share of time that the GPUs are busy, 0 to 1", now.gpu, "utilisation"),
        ("forebay_gpu_sm_utilisation_ratio", "Share of their SMs at work, 0 to 1", now.gpu, "sm_utilisation"),
        ("forebay_gpu_memory_used_ratio", "Memory in use of the fullest GPU, 0 to 1", now.gpu, "memory_used_share"),
    ):
        yield _optional(name, meaning, None if reading is None else getattr(reading, attribute))


def _rest(now: Gauges) -> Iterator[Metric]:
    yield GaugeMetricFamily("forebay_breaker_open", "1 while the backend serves nobody", value=now.breaker_open)
    yield CounterMetricFamily("forebay_breaker_opened", "How often the breaker opened", value=now.breaker_opened)
    yield GaugeMetricFamily(
        "forebay_undelivered_records", "Outcome records on their way to Kafka", value=now.undelivered
    )
    yield _optional(
        "forebay_clock_skew_seconds",
        "How far this machine's clock is ahead of the brokers'; none while unknown",
        None if now.clock_skew_ms is None else now.clock_skew_ms / 1000,
    )
    yield GaugeMetricFamily(
        "forebay_overload_level",
        "0, or what is shed when it would be late: 1 low requests, 2 mid ones too",
        value=now.overload_level,
    )
    steps = CounterMetricFamily("forebay_overload_steps", "Changes of that level", labels=["direction"])
    for direction, number in now.overload_steps.items():
        steps.add_metric([direction], number)
    yield steps
    yield GaugeMetricFamily(
        "forebay_handed_over_requests",
        "Requests that run here for partitions that others own now",
        value=now.handed_over_running,
    )
    unknown = dict.fromkeys(TIERS, math.nan)
    for name, meaning, values in (
        ("forebay_lane_records", "Requests taken from Kafka and not yet started", now.lane_records),
        ("forebay_lane_bytes", "Memory they take, estimated", now.lane_bytes),
        (
            "forebay_lane_work_seconds",
            "Their work, in seconds of the backend at its limit; NaN before twenty answers",
            now.lane_work_seconds or unknown,
        ),
        (
            "forebay_estimated_wait_seconds",
            "Until a new request would start, for what waits in its tier and above; NaN before twenty answers",
            now.estimated_waits or unknown,
        ),
    ):
        gauge = GaugeMetricFamily(name, meaning, labels=["tier"])
        for tier, value in values.items():
            gauge.add_metric([tier], value)
        yield gauge
    gauges = (
        ("held_records", "forebay_held_records", "Records received that must not start yet"),
        ("assigned_partitions", "forebay_assigned_partitions", "Partitions this worker owns"),
        (
            "unfinished_records",
            "forebay_unfinished_records",
            "Records received whose offset is not yet committable",
        ),
    )
    counters = (
        ("commits", "forebay_commits", "Commits that the broker confirmed"),
        ("commit_failures", "forebay_commit_failures", "Partitions whose commit failed; it is made again"),
        ("rebalances", "forebay_rebalances", "Times that partitions came or went"),
    )
    for attribute, name, meaning in gauges:
        gauge = GaugeMetricFamily(name, meaning, labels=["intake"])
        for intake, of_intake in now.intakes.items():
            gauge.add_metric([intake], getattr(of_intake, attribute))
        yield gauge
    for attribute, name, meaning in counters:
        counter = CounterMetricFamily(name, meaning, labels=["intake"])
        for intake, of_intake in now.intakes.items():
            counter.add_metric([intake], getattr(of_intake, attribute))
        yield counter
