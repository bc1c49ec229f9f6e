"""Every metric of the worker, in one list, and the collector that shows them. Each also carries the label ``pool``.

Labels have few values: tiers, intakes, reasons, the one backend. Never a tenant, a model or a request: clients choose
those, and /status shows the important ones.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from importlib.metadata import version
from typing import Any, Final

from prometheus_client.core import Metric

from forebay_schemas.contract.reasons import Reason
from forebay_schemas.contract.tiers import TIERS
from forebay_schemas.kafka.certificates import LABEL as CERTIFICATE_LABEL
from forebay_schemas.kafka.certificates import MEANING as CERTIFICATE_ENDS_MEANING
from forebay_schemas.kafka.certificates import METRIC as CERTIFICATE_ENDS
from forebay_schemas.runtime.metrics import Histogram, Sheet, counter, gauge, histogram
from forebay_worker.dispatch.blame import Cause
from forebay_worker.ops.gauges import Gauges
from forebay_worker.ops.loop_watch import LoopWatch
from forebay_worker.telemetry.stats import Stats

LOOP_METRICS: Final = (
    gauge(
        "forebay_event_loop_held_seconds",
        "How long code has held the worker's event loop so far; 0 while the loop turns",
    ),
    counter(
        "forebay_event_loop_holds_total",
        "Times that code held the event loop for a second or longer, such as a handler that blocks",
    ),
)
"""Metrics that are shown even while the event loop is held."""

_LOOP_OWNED: Final = (
    counter("forebay_received_total", "Records taken from Kafka", "tier"),
    counter("forebay_started_total", "Executions started", "tier"),
    counter("forebay_retries_total", "Failed executions that are retried", "tier"),
    counter("forebay_duplicates_total", "Records skipped because their request has its outcome already", "tier"),
    counter("forebay_copies_total", "Records finished with another of their request that waited or ran here", "tier"),
    counter("forebay_outcomes_total", "Requests that ended", "tier", "status", "reason"),
    counter("forebay_controls_total", "Answers to cancels and expedites", "action", "outcome"),
    counter(
        "forebay_backend_failures_total",
        "Executions that failed by the backend's state: refused, reset, 429, 502, 503, 529, or the same for all",
        "reason",
    ),
    counter("forebay_dead_letters_total", "Records sent to the dead letters", "reason"),
    counter("forebay_produce_failures_total", "Outcome records whose delivery failed and was retried"),
    histogram("forebay_queue_seconds", "From the first enqueue to the start of the execution", "tier"),
    histogram("forebay_service_seconds", "Length of an execution", "tier"),
    histogram(
        "forebay_end_to_end_seconds",
        "From the first enqueue until the outcome is durable, of requests that completed, failed or expired",
        "tier",
    ),
    histogram(
        "forebay_first_token_seconds",
        "From the start of an execution to the first text of its answer, of streams that completed",
        "tier",
    ),
    counter("forebay_stream_pieces_total", "Pieces of streamed answers sent"),
    counter(
        "forebay_stream_pieces_dropped_total", "Pieces not sent or not delivered: their readers wait for the result"
    ),
    gauge("forebay_limit_requests", "Requests that this worker may have in flight", "backend"),
    gauge(
        "forebay_backend_limit_requests",
        "Requests that all workers of this backend together may have in flight, as computed by this one",
        "backend",
    ),
    gauge("forebay_backend_workers", "Workers that share the backend, this one among them", "backend"),
    gauge("forebay_limit_min_requests", "The policy's minimum; none with a fixed limit", "backend"),
    gauge("forebay_limit_max_requests", "The policy's maximum", "backend"),
    counter("forebay_limit_changes_total", "Changes of the policy's limit", "backend"),
    gauge("forebay_in_flight_requests", "Requests that this worker has in flight", "backend"),
    gauge("forebay_in_flight_bytes", "Estimated memory of requests in flight", "backend"),
    gauge(
        "forebay_in_flight_bytes_max", "Memory that requests in flight may take; at this size no more start", "backend"
    ),
    gauge(
        "forebay_token_seconds",
        "Recent time of an output token, less the prompt's share; none before the first answer",
        "backend",
    ),
    gauge(
        "forebay_token_target_seconds",
        "Target time of an output token now; none with a policy without such a target",
        "backend",
    ),
    gauge(
        "forebay_knee_requests", "Requests in flight below which the backend would waste much of its time", "backend"
    ),
    gauge(
        "forebay_prefill_backlog_seconds",
        "Prompts that wait for prefill in the backend, in seconds of its work",
        "backend",
    ),
    gauge("forebay_breaker_open", "1 while the backend serves nobody", "backend"),
    counter("forebay_breaker_opened_total", "Times that the breaker opened", "backend"),
    gauge(
        "forebay_breaker_cause",
        "1 while the backend serves nobody for this cause: unavailable, credentials, redirect, not_found or error",
        "backend",
        "cause",
    ),
    gauge(
        "forebay_signal_up",
        "1 while the signal's readings are fresh; none for a signal that does not exist here",
        "signal",
    ),
    gauge("forebay_signal_age_seconds", "Age of the last reading; NaN before the first", "signal"),
    gauge("forebay_engine_running_requests", "Requests in the engine's batch"),
    gauge("forebay_engine_waiting_requests", "Requests in the engine's own queue"),
    gauge("forebay_engine_kv_used_ratio", "Share of its KV cache in use, 0 to 1"),
    gauge("forebay_gpu_utilisation_ratio", "Share of time that the GPUs are busy, 0 to 1"),
    gauge("forebay_gpu_sm_utilisation_ratio", "Share of their SMs at work, 0 to 1"),
    gauge("forebay_gpu_memory_used_ratio", "Memory in use of the fullest GPU, 0 to 1"),
    gauge("forebay_gpu_sick", "1 while utilisation has been 0 for 5 s with requests in flight"),
    gauge("forebay_undelivered_records", "Outcome records in flight to Kafka"),
    gauge("forebay_clock_skew_seconds", "How far this machine's clock is ahead of the brokers'; none while unknown"),
    gauge(CERTIFICATE_ENDS, CERTIFICATE_ENDS_MEANING, CERTIFICATE_LABEL),
    gauge("forebay_overload_level", "0; 1 while late low requests are shed; 2 while late mid ones are too"),
    counter("forebay_overload_steps_total", "Changes of the overload level", "direction"),
    gauge("forebay_handed_over_requests", "Requests that run here for partitions that other workers own now"),
    counter(
        "forebay_handed_over_total",
        "Requests still running when their partition was released (given), or elsewhere when assigned (taken)",
        "direction",
    ),
    counter(
        "forebay_settled_total",
        "Requests of a dead worker that did not run again, because their outcome was on the results topic",
        "tier",
    ),
    counter(
        "forebay_results_looks_total",
        "Scans of the results after a worker's death; one that is given up may cause repeated executions",
        "outcome",
    ),
    counter("forebay_results_look_seconds_total", "Total time of these scans, for which requests wait"),
    gauge("forebay_lane_records", "Requests taken from Kafka and not yet started", "tier"),
    gauge("forebay_lane_bytes", "Estimated memory of the requests in the lane", "tier"),
    gauge("forebay_lane_tenants", "Tenants with requests in the lane", "tier"),
    gauge("forebay_lane_top_tenant_ratio", "The largest tenant's share of the lane's requests, 0 to 1", "tier"),
    gauge(
        "forebay_lane_work_seconds",
        "Work of the lane's requests, in seconds of the backend at its limit; NaN before twenty answers",
        "tier",
    ),
    gauge(
        "forebay_estimated_wait_seconds",
        "Time until a new request would start, behind those that wait in its tier and above; NaN before twenty answers",
        "tier",
    ),
    gauge(
        "forebay_estimate_error_ratio",
        "Mean error of predicted execution times, as a share of the actual ones, over the last 200; NaN before",
        "tier",
    ),
    gauge("forebay_tier_deadline_seconds", "The deadline that this worker gives to requests without one", "tier"),
    gauge(
        "forebay_allowed_wait_seconds",
        "How long a request may wait before its start, by this worker's settings",
        "tier",
    ),
    gauge("forebay_held_records", "Received records that must not start yet", "intake"),
    gauge("forebay_assigned_partitions", "Partitions that this worker owns", "intake"),
    gauge("forebay_unfinished_records", "Received records whose offset cannot be committed yet", "intake"),
    gauge(
        "forebay_watermark_age_seconds",
        "Longest time that a partition's lowest unfinished offset has not moved; 0 without any",
        "intake",
    ),
    gauge(
        "forebay_commit_lag_seconds",
        "Age of the oldest finished offset that no commit names; 0 without any",
        "intake",
    ),
    counter("forebay_commits_total", "Commits that the broker confirmed", "intake"),
    counter("forebay_commit_failures_total", "Partitions whose commit failed; commits are retried", "intake"),
    counter("forebay_rebalances_total", "Assignments and revocations of partitions", "intake"),
    counter(
        "forebay_remade_partitions_total",
        "Partitions tracked anew, because their topic was recreated or lost the end of its log",
        "intake",
    ),
    gauge(
        "forebay_build_info", "Always 1; the versions and the worker's name are labels", "version", "python", "worker"
    ),
)

METRICS: Final = (*_LOOP_OWNED, *LOOP_METRICS)

_Add = Callable[..., None]

_BY_TIER: Final = {
    "forebay_lane_records": "lane_records",
    "forebay_lane_bytes": "lane_bytes",
    "forebay_lane_tenants": "lane_tenants",
    "forebay_lane_top_tenant_ratio": "top_tenant_share",
    "forebay_lane_work_seconds": "lane_work_seconds",
    "forebay_estimated_wait_seconds": "estimated_wait_seconds",
    "forebay_estimate_error_ratio": "estimate_error_ratio",
    "forebay_tier_deadline_seconds": "deadline_seconds",
    "forebay_allowed_wait_seconds": "allowed_wait_seconds",
    "forebay_settled_total": "settled",
}

_BY_INTAKE: Final = {
    "forebay_held_records": "held_records",
    "forebay_assigned_partitions": "assigned_partitions",
    "forebay_unfinished_records": "unfinished_records",
    "forebay_watermark_age_seconds": "watermark_age_seconds",
    "forebay_commit_lag_seconds": "commit_lag_seconds",
    "forebay_commits_total": "commits",
    "forebay_commit_failures_total": "commit_failures",
    "forebay_rebalances_total": "rebalances",
    "forebay_remade_partitions_total": "remade_partitions",
}

_BY_BACKEND: Final = {
    "forebay_limit_requests": "limit_requests",
    "forebay_backend_limit_requests": "backend_limit_requests",
    "forebay_backend_workers": "backend_workers",
    "forebay_limit_min_requests": "limit_min_requests",
    "forebay_limit_max_requests": "limit_max_requests",
    "forebay_limit_changes_total": "limit_changes",
    "forebay_in_flight_requests": "in_flight",
    "forebay_in_flight_bytes": "in_flight_bytes",
    "forebay_in_flight_bytes_max": "in_flight_bytes_max",
    "forebay_token_seconds": "token_seconds",
    "forebay_token_target_seconds": "token_target_seconds",
    "forebay_knee_requests": "knee_requests",
    "forebay_prefill_backlog_seconds": "prefill_backlog_seconds",
    "forebay_breaker_open": "breaker_open",
    "forebay_breaker_opened_total": "breaker_opened",
}

_OF_ENGINE: Final = {
    "forebay_engine_running_requests": "running_requests",
    "forebay_engine_waiting_requests": "waiting_requests",
    "forebay_engine_kv_used_ratio": "kv_used_share",
}

_OF_GPU: Final = {
    "forebay_gpu_utilisation_ratio": "utilisation",
    "forebay_gpu_sm_utilisation_ratio": "sm_utilisation",
    "forebay_gpu_memory_used_ratio": "memory_used_share",
}


class Collector:
    """Shows `Stats` and `Gauges` to a prometheus-client registry. ``backend``: the one that this worker serves;
    ``certificate_ends``: as `certificate_ends` gives them."""

    def __init__(
        self,
        *,
        pool: str,
        worker_id: str,
        backend: str,
        stats: Stats,
        gauges: Callable[[], Gauges],
        certificate_ends: Mapping[str, float],
    ) -> None:
        self._pool = pool
        self._backend = backend
        self._stats = stats
        self._gauges = gauges
        self._certificate_ends = certificate_ends
        self._build = (version("forebay-worker"), platform.python_version(), worker_id)

    def describe(self) -> Iterable[Metric]:
        """Nothing: registering must not call `collect`, since the worker does not run yet."""
        return ()

    def collect(self) -> Iterator[Metric]:
        self._stats.fold()
        sheet = Sheet(_LOOP_OWNED)
        add = partial(sheet.add, self._pool)
        _add_counts(add, self._stats)
        now = self._gauges()
        for name, attribute in _BY_BACKEND.items():
            add(name, getattr(now, attribute), self._backend)
        for cause in Cause:
            add("forebay_breaker_cause", now.breaker_cause is cause, self._backend, cause)
        _add_signals(add, now)
        _add_rest(add, now)
        for certificate, ends_at in self._certificate_ends.items():
            add(CERTIFICATE_ENDS, ends_at, certificate)
        add("forebay_build_info", 1, *self._build)
        yield from sheet.families()


class LoopCollector:
    """Shows how the event loop turns; not on that loop."""

    def __init__(self, *, pool: str, watch: LoopWatch, clock: Callable[[], float]) -> None:
        self._pool = pool
        self._watch = watch
        self._clock = clock

    def describe(self) -> Iterable[Metric]:
        """Nothing, as with `Collector`."""
        return ()

    def collect(self) -> Iterator[Metric]:
        sheet = Sheet(LOOP_METRICS)
        sheet.add(self._pool, "forebay_event_loop_held_seconds", self._watch.held_seconds(self._clock()))
        sheet.add(self._pool, "forebay_event_loop_holds_total", self._watch.holds_total)
        yield from sheet.families()


def _add_counts(add: _Add, stats: Stats) -> None:
    per_tier: Mapping[str, Mapping[Any, int | Histogram]] = {
        "forebay_received_total": stats.received,
        "forebay_retries_total": stats.retries,
        "forebay_duplicates_total": stats.duplicates,
        "forebay_copies_total": stats.copies,
        "forebay_queue_seconds": stats.queue_seconds,
        "forebay_service_seconds": stats.service_seconds,
        "forebay_end_to_end_seconds": stats.end_to_end_seconds,
        "forebay_first_token_seconds": stats.first_token_seconds,
    }
    for name, values in per_tier.items():
        for tier in TIERS:
            add(name, values[tier], tier)
    for tier in TIERS:
        add("forebay_started_total", stats.queue_seconds[tier].count, tier)
        for reason in Reason:
            # Causes that have not occurred too: a series that begins at 1 shows no growth.
            add("forebay_outcomes_total", stats.outcomes.get((tier, reason), 0), tier, reason.status, reason.code)
    for (action, outcome), number in sorted(stats.controls.items()):
        add("forebay_controls_total", number, action, outcome)
    for name, counts in (
        ("forebay_backend_failures_total", stats.backend_failures),
        ("forebay_dead_letters_total", stats.dead_letters),
    ):
        for reason, number in counts.items():
            add(name, number, reason.code)
    add("forebay_produce_failures_total", stats.produce_failures)
    add("forebay_stream_pieces_total", stats.pieces)
    add("forebay_stream_pieces_dropped_total", stats.pieces_dropped)


def _add_signals(add: _Add, now: Gauges) -> None:
    for signal, source in now.signals.items():
        if source["state"] == "off":
            # The source does not exist here: a 0 would mean that it failed.
            continue
        add("forebay_signal_up", source["state"] == "ok", signal)
        add("forebay_signal_age_seconds", _or_nan(source["age_seconds"]), signal)
    for names, reading in ((_OF_ENGINE, now.engine), (_OF_GPU, now.gpu)):
        for name, attribute in names.items():
            add(name, None if reading is None else getattr(reading, attribute))
    add("forebay_gpu_sick", now.gpu_sick)


def _add_rest(add: _Add, now: Gauges) -> None:
    add("forebay_undelivered_records", now.undelivered)
    add("forebay_clock_skew_seconds", None if now.clock_skew_ms is None else now.clock_skew_ms / 1000)
    add("forebay_overload_level", now.overload_level)
    for direction, number in now.overload_steps.items():
        add("forebay_overload_steps_total", number, direction)
    add("forebay_handed_over_requests", now.handed_over_running)
    add("forebay_handed_over_total", now.handed_over_given, "given")
    add("forebay_handed_over_total", now.handed_over_taken, "taken")
    for outcome, number in now.results_looks.items():
        add("forebay_results_looks_total", number, outcome)
    add("forebay_results_look_seconds_total", now.results_look_seconds)
    for tier, of_tier in now.tiers.items():
        for name, attribute in _BY_TIER.items():
            add(name, _or_nan(getattr(of_tier, attribute)), tier)
    for intake, of_intake in now.intakes.items():
        for name, attribute in _BY_INTAKE.items():
            add(name, getattr(of_intake, attribute), intake)


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value
