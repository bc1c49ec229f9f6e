"""The dashboard of requests that died, are tried again, or did not end well. Data only."""

from __future__ import annotations

from typing import Final

from dashboards.model import CLUSTER, NAMESPACE, POOL, SELECTED, TIER, Dashboard, Row, graph, stat

_POOL: Final = SELECTED
_TIER: Final = f'{_POOL}, tier=~"$tier"'
_RATE: Final = "$__rate_interval"
_ALERT: Final = "ForebayDeadLettersGrowing"

DEAD_LETTERS: Final = Dashboard(
    name="dead-letters",
    title="Forebay / Dead letters",
    description="What requests die of, how many, and what is tried again. What to do about them: docs/on-call.md.",
    variables=(CLUSTER, NAMESPACE, POOL, TIER),
    rows=(
        Row(
            title="Now",
            panels=(
                stat(
                    "Died in 10 minutes",
                    f"sum by (pool) (forebay:dead_lettered:increase10m{{{_POOL}}})",
                    unit="short",
                    description="From 10 on, and 1 % of all that ended, it is an alert.",
                    width=6,
                    thresholds=((1, "orange"), (10, "red")),
                    runbook=_ALERT,
                ),
                stat(
                    "Share that died",
                    f"max by (pool) (forebay:dead_lettered:ratio_increase10m{{{_POOL}}})",
                    unit="percentunit",
                    description="Dead letters over all that ended, in 10 minutes. Above 20 % it wakes somebody up.",
                    width=6,
                    thresholds=((0.01, "orange"), (0.2, "red")),
                    runbook=_ALERT,
                ),
                stat(
                    "Ever written",
                    f"max by (pool) (forebay_dead_lettered_total{{{_POOL}}})",
                    unit="short",
                    description="Records that the dead-letter topic ever got, replayed and discarded ones included. "
                    "`forebay dead-letters list` says how many are open.",
                    width=6,
                ),
                stat(
                    "Retries waiting",
                    f"sum by (pool) (max by (pool, tier) (forebay_retry_backlog_records{{{_TIER}}}))",
                    unit="short",
                    description="Failed once or more, to be tried again within 30 s. A wall of retries is the next "
                    "wall of dead letters.",
                    width=6,
                ),
            ),
        ),
        Row(
            title="Of what",
            panels=(
                graph(
                    "Dead letters by reason",
                    (f"sum by (reason) (forebay:dead_letters:rate5m{{{_POOL}}}) > 0", "{{reason}}"),
                    unit="reqps",
                    description="One reason alone has one cause: a sender's release (undecodable, backend_rejected, "
                    "unknown_biz_type) or the engine (backend_error, backend_timeout). See docs/reasons.md.",
                    stacked=True,
                    runbook=_ALERT,
                ),
                graph(
                    "All that was not completed, by reason",
                    (
                        f'sum by (reason) (rate(forebay_outcomes_total{{{_TIER}, status!="completed"}}[{_RATE}])) > 0',
                        "{{reason}}",
                    ),
                    unit="reqps",
                    description="Expired and shed requests too, which are reported and not kept. Those need capacity, "
                    "not a replay.",
                    stacked=True,
                ),
            ),
        ),
        Row(
            title="How much",
            panels=(
                graph(
                    "Dead letters in 10 minutes",
                    (f"sum by (pool) (forebay:dead_lettered:increase10m{{{_POOL}}})", "{{pool}}"),
                    unit="short",
                    description="A step that falls back after ten minutes was an incident that is over; a plateau "
                    "is one that goes on.",
                    width=8,
                    thresholds=((10, "red"),),
                    runbook=_ALERT,
                ),
                graph(
                    "Share of failures by tier",
                    (f"max by (tier) (forebay:failures:ratio_rate5m{{{_TIER}}})", "{{tier}}"),
                    unit="percentunit",
                    description="One tier alone points at its senders, all tiers at the engine.",
                    width=8,
                    thresholds=((0.01, "orange"), (0.2, "red")),
                ),
                graph(
                    "Dead letters ever written",
                    (f"max by (pool) (forebay_dead_lettered_total{{{_POOL}}})", "{{pool}}"),
                    unit="short",
                    description="Replays that die again make it rise again: mend the cause first.",
                    width=8,
                ),
            ),
        ),
        Row(
            title="Tried again",
            panels=(
                graph(
                    "Retries by tier",
                    (f"sum by (tier) (rate(forebay_retries_total{{{_TIER}}}[{_RATE}]))", "{{tier}}"),
                    unit="reqps",
                    description="Failed executions that are tried again. Retries without dead letters: the fault "
                    "passes by itself.",
                    width=8,
                ),
                graph(
                    "Waiting to be tried again",
                    (f"sum by (tier) (max by (pool, tier) (forebay_retry_backlog_records{{{_TIER}}}))", "{{tier}}"),
                    unit="short",
                    description="What lies in the retry topics of 1, 5 and 30 s. It empties itself unless faults last.",
                    stacked=True,
                    width=8,
                ),
                graph(
                    "Failures of the backend by reason",
                    (f"sum by (reason) (rate(forebay_backend_failures_total{{{_POOL}}}[{_RATE}]))", "{{reason}}"),
                    unit="reqps",
                    description="Refused, reset, 429, 502, 503, 529: the backend's state, for which no request is "
                    "charged while it serves nobody.",
                    width=8,
                    runbook="ForebayNoCapacity",
                ),
            ),
        ),
    ),
)
