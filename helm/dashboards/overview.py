"""The dashboard that one opens first: are the promises kept, and what is to come. Data only."""

from __future__ import annotations

from typing import Final

from dashboards.model import CLUSTER, NAMESPACE, POOL, SELECTED, TIER, Dashboard, Row, graph, stat

_POOL: Final = SELECTED
_TIER: Final = f'{_POOL}, tier=~"$tier"'
_HIGH: Final = f'{_POOL}, tier="high"'

OVERVIEW: Final = Dashboard(
    name="overview",
    title="Forebay / Overview",
    description="Whether requests end in time, what waits, and what there is to serve it.",
    variables=(CLUSTER, NAMESPACE, POOL, TIER),
    rows=(
        Row(
            title="Now",
            panels=(
                stat(
                    "High P95, wait over tolerated",
                    f"max by (pool) (forebay:queue_seconds:p95{{{_HIGH}}}"
                    f" / forebay:tolerated_wait_seconds:max{{{_HIGH}}})",
                    unit="percentunit",
                    description="What 95 of 100 high requests wait at most before they run, over the wait that their "
                    "tier tolerates. Red is what wakes somebody up after five minutes.",
                    thresholds=((0.7, "orange"), (1, "red")),
                    runbook="ForebayEndToEndSlow",
                ),
                stat(
                    "Missed deadlines",
                    f"max by (pool) (forebay:missed_deadlines:ratio_rate5m{{{_TIER}}})",
                    unit="percentunit",
                    description="Of the worst tier: the share of requests that expired or were shed in the last 5 "
                    "minutes. Above 5 % it is an alert.",
                    thresholds=((0.01, "orange"), (0.05, "red")),
                    runbook="ForebayEndToEndSlow",
                ),
                stat(
                    "Deadline risk",
                    f"max by (pool) (forebay:deadline_risk:ratio{{{_TIER}}})",
                    unit="percentunit",
                    description="Of the worst tier: the wait that is to be expected over the wait that it tolerates. "
                    "The autoscaler acts on it; at 100 % new requests are refused.",
                    thresholds=((0.7, "orange"), (1, "red")),
                    runbook="ForebayBacklogHigh",
                ),
                stat(
                    "Waiting or running",
                    f"sum by (pool) (forebay:backlog_records:max{{{_TIER}}})",
                    unit="short",
                    description="Requests in Kafka that are not finished. The number alone is neither good nor bad: "
                    "deadline risk says what it means.",
                ),
                stat(
                    "Workers",
                    f"max by (pool) (forebay_workers{{{_POOL}}})",
                    unit="none",
                    description="Workers heard of in the last 15 s. 0 is right only for a pool with nothing to do.",
                    runbook="ForebayNoCapacity",
                ),
                stat(
                    "Alerts",
                    f'count(ALERTS{{alertname=~"Forebay.+", alertstate="firing", {_POOL}}}) or vector(0)',
                    unit="none",
                    description="Alerts of Forebay that fire now; the red marks in the graphs say since when.",
                    thresholds=((1, "red"),),
                ),
            ),
        ),
        Row(
            title="Promises",
            panels=(
                graph(
                    "End to end, P95 by tier",
                    (f"max by (pool, tier) (forebay:end_to_end_seconds:p95{{{_TIER}}})", "{{pool}} {{tier}}"),
                    unit="s",
                    description="From the first enqueue to the durable outcome. How long that may be is up to the "
                    "requests' deadlines: a chat may take a minute, low hours. The scale is logarithmic.",
                    log_scale=True,
                    runbook="ForebayEndToEndSlow",
                ),
                graph(
                    "High, end to end",
                    (f"max by (pool) (forebay:end_to_end_seconds:p50{{{_HIGH}}})", "{{pool}} P50"),
                    (f"max by (pool) (forebay:end_to_end_seconds:p95{{{_HIGH}}})", "{{pool}} P95"),
                    (f"max by (pool) (forebay:end_to_end_seconds:p99{{{_HIGH}}})", "{{pool}} P99"),
                    unit="s",
                    description="If P50 rises with P95 everything is slower: engine or queue. If P95 rises alone some "
                    "requests are: long ones, retries, one bad worker.",
                    runbook="ForebayEndToEndSlow",
                ),
                graph(
                    "Outcomes",
                    (f"sum by (pool, status) (forebay:outcomes:rate5m{{{_TIER}}})", "{{pool}} {{status}}"),
                    unit="reqps",
                    description="How requests end, per second. Whatever is not completed should be a thin band.",
                    stacked=True,
                ),
                graph(
                    "Missed deadlines and failures",
                    (f"max by (pool, tier) (forebay:missed_deadlines:ratio_rate5m{{{_TIER}}})", "{{tier}} missed"),
                    (f"max by (pool, tier) (forebay:failures:ratio_rate5m{{{_TIER}}})", "{{tier}} failed"),
                    unit="percentunit",
                    description="Missed: too slow, so look at backlog and engine. Failed: wrong, so look at the dead "
                    "letters.",
                    thresholds=((0.05, "red"),),
                ),
            ),
        ),
        Row(
            title="Backlog",
            panels=(
                graph(
                    "Enqueued and dequeued",
                    (f"sum by (pool) (forebay:enqueued:rate5m{{{_TIER}}})", "{{pool}} enqueued"),
                    (f"sum by (pool) (forebay:dequeued:rate5m{{{_TIER}}})", "{{pool}} dequeued"),
                    unit="reqps",
                    description="What comes and what goes. In a surge enqueued jumps and dequeued stays at the "
                    "engine's pace; afterwards dequeued stays above until the backlog is gone.",
                ),
                graph(
                    "Backlog by tier",
                    (f"sum by (tier) (forebay:backlog_records:max{{{_TIER}}})", "{{tier}}"),
                    (
                        f"sum by (tier) (max by (pool, tier) (forebay_retry_backlog_records{{{_TIER}}}))",
                        "{{tier}} retries",
                    ),
                    unit="short",
                    description="A surge should pile up in low. A backlog in high means that even the most urgent do "
                    "not get through.",
                    stacked=True,
                    runbook="ForebayBacklogHigh",
                ),
                graph(
                    "Deadline risk by tier",
                    (f"max by (pool, tier) (forebay:deadline_risk:ratio{{{_TIER}}})", "{{pool}} {{tier}}"),
                    unit="percentunit",
                    description="Expected wait over tolerated wait. From 70 % on an alert, at 100 % refusals. If it "
                    "stays up while workers are added, the engine is the bottleneck.",
                    thresholds=((0.7, "orange"), (1, "red")),
                    runbook="ForebayBacklogHigh",
                ),
                graph(
                    "Oldest request against its deadline",
                    (f"max by (pool, tier) (forebay:oldest_age:ratio{{{_TIER}}})", "{{pool}} {{tier}}"),
                    unit="percentunit",
                    description="A line that climbs steadily while the backlog does not is one request, or one "
                    "partition, that is stuck.",
                    thresholds=((0.7, "red"),),
                    runbook="ForebayOldestAgeNearDeadline",
                ),
            ),
        ),
        Row(
            title="Capacity",
            panels=(
                graph(
                    "Workers over time",
                    (f"max by (pool) (forebay_workers{{{_POOL}}})", "{{pool}}"),
                    unit="none",
                    description="Follows deadline risk if an autoscaler looks after the pool. More workers than "
                    "partitions, or than the engine's limit can be shared among, change nothing.",
                    width=8,
                    runbook="ForebayNoCapacity",
                ),
                graph(
                    "In flight, and the limit",
                    (f"sum by (pool) (forebay_in_flight_requests{{{_POOL}}})", "{{pool}} in flight"),
                    (f"max by (pool) (forebay_pool_limit_requests{{{_POOL}}})", "{{pool}} limit"),
                    unit="short",
                    description="In flight at the limit: the engine is the bottleneck. Below it while requests wait: "
                    "something else is; see the dashboard of workers and pacing.",
                    width=8,
                    runbook="ForebayLimitAtFloor",
                ),
                graph(
                    "Served at most",
                    (f"max by (pool) (forebay_pool_rate{{{_POOL}}})", "{{pool}} can serve"),
                    (f"sum by (pool) (forebay:enqueued:rate5m{{{_POOL}}})", "{{pool}} enqueued"),
                    unit="reqps",
                    description="What the workers can serve at their limits, beside what comes. Where what comes is "
                    "above for hours, engines have to be added.",
                    width=8,
                ),
            ),
        ),
    ),
)
