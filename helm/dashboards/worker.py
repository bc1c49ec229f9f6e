"""The dashboard of workers and pacing: what holds requests up, and why the limit is what it is. Data only."""

from __future__ import annotations

from typing import Final

from dashboards.model import CLUSTER, NAMESPACE, POOL, SELECTED, TIER, WORKER, Dashboard, Row, graph, stat

_POOL: Final = SELECTED
_WORKER: Final = f'{_POOL}, instance=~"$worker"'
_TIER: Final = f'{_WORKER}, tier=~"$tier"'
_RATE: Final = "$__rate_interval"

WORKER_PACING: Final = Dashboard(
    name="worker-pacing",
    title="Forebay / Workers and pacing",
    description="What holds requests up in a worker, why its limit is what it is, and whether its partitions move on.",
    variables=(CLUSTER, NAMESPACE, POOL, TIER, WORKER),
    rows=(
        Row(
            title="Now",
            panels=(
                stat(
                    "Limit in use",
                    f"max by (pool) (forebay:limit_used:ratio{{{_POOL}}})",
                    unit="percentunit",
                    description="Requests in flight over the backend's limit. Near 100 % it is the bottleneck.",
                ),
                stat(
                    "Backends refusing",
                    f"count(max by (pool, backend) (forebay_breaker_open{{{_POOL}}}) == 1) or vector(0)",
                    unit="none",
                    description="Backends that serve nobody: the breaker is open and lets one probe through now and "
                    "then.",
                    thresholds=((1, "red"),),
                    runbook="ForebayNoCapacity",
                ),
                stat(
                    "Token over target",
                    f"max by (pool) (forebay_token_seconds{{{_WORKER}}} / forebay_token_target_seconds{{{_WORKER}}})",
                    unit="percentunit",
                    description="What an output token takes over what it may take. Above 110 % the limit is cut.",
                    thresholds=((1, "orange"), (1.1, "red")),
                    runbook="ForebayLimitAtFloor",
                ),
                stat(
                    "Sick GPUs",
                    f"sum(max by (pool, instance) (forebay_gpu_sick{{{_WORKER}}})) or vector(0)",
                    unit="none",
                    description="Workers whose GPU does nothing while requests run on it. 0 where no GPU is looked at.",
                    thresholds=((1, "red"),),
                    runbook="ForebayGpuSick",
                ),
                stat(
                    "Slowest partition",
                    f"max by (pool) (forebay_watermark_age_seconds{{{_WORKER}}})",
                    unit="s",
                    description="For how long the partition that stands still longest has had the same lowest "
                    "unfinished offset. In low it may be hours.",
                    thresholds=((600, "orange"),),
                    runbook="ForebayPartitionStuck",
                ),
                stat(
                    "Clock off by",
                    f"max by (pool) (abs(forebay_clock_skew_seconds{{{_WORKER}}}))",
                    unit="s",
                    description="Of the worker whose clock is furthest from the brokers'.",
                    thresholds=((1, "orange"),),
                    runbook="ForebayClockSkew",
                ),
            ),
        ),
        Row(
            title="Pacing",
            panels=(
                graph(
                    "Limit and requests in flight, by backend",
                    (f"max by (backend) (forebay_backend_limit_requests{{{_POOL}}})", "{{backend}} limit"),
                    (f"sum by (backend) (forebay_in_flight_requests{{{_POOL}}})", "{{backend}} in flight"),
                    (f"max by (backend) (forebay_limit_min_requests{{{_POOL}}})", "{{backend}} floor"),
                    unit="short",
                    description="The limit should be a saw with small teeth. On the floor: the engine is slow with few "
                    "requests already. In flight far below while requests wait: see what waits inside.",
                    runbook="ForebayLimitAtFloor",
                ),
                graph(
                    "Share of each worker",
                    (f"forebay_limit_requests{{{_WORKER}}}", "{{instance}} may"),
                    (f"forebay_in_flight_requests{{{_WORKER}}}", "{{instance}} in flight"),
                    unit="short",
                    description="Workers share a backend's limit by demand, highest tier first. One that keeps a share "
                    "without using it, or gets none while requests wait in it, is worth a look.",
                ),
                graph(
                    "What an output token takes",
                    (f"forebay_token_seconds{{{_WORKER}}}", "{{instance}}"),
                    (f"max by (pool) (forebay_token_target_seconds{{{_WORKER}}})", "{{pool}} target"),
                    unit="s",
                    description="The measure that the default policy steers by. It should stay near its target under "
                    "load and below it otherwise.",
                ),
                graph(
                    "Queue and service, P95",
                    (f'max by (tier) (forebay:queue_seconds:p95{{{_POOL}, tier=~"$tier"}})', "{{tier}} queue"),
                    (f'max by (tier) (forebay:service_seconds:p95{{{_POOL}, tier=~"$tier"}})', "{{tier}} service"),
                    unit="s",
                    description="Which part of the time is waiting and which is work: more capacity shortens the "
                    "first, a faster engine or shorter answers the second.",
                    log_scale=True,
                    runbook="ForebayEndToEndSlow",
                ),
            ),
        ),
        Row(
            title="Engine and GPU",
            panels=(
                graph(
                    "Engine: batch and its own queue",
                    (f"max by (pool) (forebay_engine_running_requests{{{_WORKER}}})", "{{pool}} running"),
                    (f"max by (pool) (forebay_engine_waiting_requests{{{_WORKER}}})", "{{pool}} waiting"),
                    unit="short",
                    description="Nothing should wait inside the engine for long: there nobody orders by urgency. "
                    "Running above our in flight: somebody else uses the engine.",
                    width=8,
                ),
                graph(
                    "KV cache and GPU",
                    (f"max by (pool) (forebay_engine_kv_used_ratio{{{_WORKER}}})", "{{pool}} KV cache"),
                    (f"max by (pool) (forebay_gpu_utilisation_ratio{{{_WORKER}}})", "{{pool}} GPU busy"),
                    (f"max by (pool) (forebay_gpu_memory_used_ratio{{{_WORKER}}})", "{{pool}} GPU memory"),
                    unit="percentunit",
                    description="A KV cache above 95 % cuts the limit. A busy GPU says nothing about saturation; an "
                    "idle one with requests in flight says that it is sick.",
                    width=8,
                    runbook="ForebayGpuSick",
                ),
                graph(
                    "Readings: their age",
                    (f"max by (instance, signal) (forebay_signal_age_seconds{{{_WORKER}}})", "{{instance}} {{signal}}"),
                    unit="s",
                    description="How old the last reading of engine and GPU is. Pacing goes on without them, but knows "
                    "less.",
                    width=8,
                ),
            ),
        ),
        Row(
            title="Waiting inside",
            panels=(
                graph(
                    "Lanes",
                    (f"sum by (tier) (forebay_lane_records{{{_TIER}}})", "{{tier}}"),
                    unit="short",
                    description="Requests taken from Kafka and not yet started. Lanes of lower tiers stay full in a "
                    "surge; what is not in a lane waits in Kafka.",
                    stacked=True,
                    width=8,
                ),
                graph(
                    "Predictions: how far off",
                    (f"max by (tier) (forebay_estimate_error_ratio{{{_TIER}}})", "{{tier}}"),
                    unit="percentunit",
                    description="Predicted against actual time of the last answers. Far off, requests are refused or "
                    "dropped without need, or too late.",
                    width=8,
                ),
                graph(
                    "Overload level",
                    (f"max by (instance) (forebay_overload_level{{{_WORKER}}})", "{{instance}}"),
                    unit="none",
                    description="1: low requests that would be late are shed, 2: mid ones too. High is never shed.",
                    width=8,
                    runbook="ForebayBacklogHigh",
                ),
            ),
        ),
        Row(
            title="Partitions and Kafka",
            panels=(
                graph(
                    "Partitions that stand still",
                    (f"max by (intake) (forebay_watermark_age_seconds{{{_WORKER}}})", "{{intake}} watermark"),
                    (f"max by (intake) (forebay_commit_lag_seconds{{{_WORKER}}})", "{{intake}} commit"),
                    unit="s",
                    description="A saw: each tooth is one slow request. A straight climb is one that does not end, or "
                    "a commit that is refused.",
                    width=8,
                    runbook="ForebayPartitionStuck",
                ),
                graph(
                    "Rebalances and hand-overs",
                    (
                        f"sum by (intake) (increase(forebay_rebalances_total{{{_WORKER}}}[{_RATE}]))",
                        "{{intake}} rebalances",
                    ),
                    (
                        f"sum by (direction) (increase(forebay_handed_over_total{{{_WORKER}}}[{_RATE}]))",
                        "handed over, {{direction}}",
                    ),
                    unit="short",
                    description="Peaks at a rollout or when the autoscaler acts. Rebalances all the time: workers "
                    "restart, or lose the group.",
                    width=8,
                ),
                graph(
                    "Not delivered, not committed",
                    (f"sum by (pool) (forebay_undelivered_records{{{_WORKER}}})", "{{pool}} outcomes on their way"),
                    (
                        f"sum by (pool) (rate(forebay_produce_failures_total{{{_WORKER}}}[{_RATE}]))",
                        "{{pool}} produce failures/s",
                    ),
                    (
                        f"sum by (pool) (rate(forebay_commit_failures_total{{{_WORKER}}}[{_RATE}]))",
                        "{{pool}} commit failures/s",
                    ),
                    unit="short",
                    description="Kafka's side. Outcomes that pile up stop dispatch after 3 s without a delivery.",
                    width=8,
                ),
            ),
        ),
        Row(
            title="Backend's failures, and the worker itself",
            panels=(
                graph(
                    "Failures of the backend",
                    (f"sum by (reason) (rate(forebay_backend_failures_total{{{_WORKER}}}[{_RATE}]))", "{{reason}}"),
                    (
                        f"sum by (pool) (rate(forebay_breaker_opened_total{{{_WORKER}}}[{_RATE}]))",
                        "{{pool}} breaker opens",
                    ),
                    unit="reqps",
                    description="Executions that failed by the backend's state: no request is charged while it serves "
                    "nobody.",
                    width=8,
                    runbook="ForebayNoCapacity",
                ),
                graph(
                    "Clocks",
                    (f"max by (instance) (forebay_clock_skew_seconds{{{_WORKER}}})", "{{instance}}"),
                    unit="s",
                    description="How far each worker's clock is ahead of the brokers'. All off by the same: it is the "
                    "brokers.",
                    width=8,
                    runbook="ForebayClockSkew",
                ),
                graph(
                    "CPU of each worker",
                    (
                        f'rate(process_cpu_seconds_total{{instance=~"$worker"}}[{_RATE}])'
                        f" and on (cluster, namespace, instance) forebay_build_info{{{_WORKER}}}",
                        "{{instance}}",
                    ),
                    unit="percentunit",
                    description="Of one core. A worker near 100 % is itself the bottleneck: add one.",
                    width=8,
                ),
                graph(
                    "Memory of each worker, and its limit",
                    (
                        'process_resident_memory_bytes{instance=~"$worker"}'
                        f" and on (cluster, namespace, instance) forebay_build_info{{{_WORKER}}}",
                        "{{instance}}",
                    ),
                    (
                        'max(kube_pod_container_resource_limits{resource="memory", container="worker"}'
                        f" and on (cluster, namespace, pod) forebay_build_info{{{_WORKER}}})",
                        "limit",
                    ),
                    unit="bytes",
                    description="Resident memory. A worker that reaches the limit is killed, and what it ran starts "
                    "again: give more memory or let less be in flight. The limit is kube-state-metrics'.",
                    width=8,
                ),
            ),
        ),
    ),
)
