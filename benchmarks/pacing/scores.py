"""Scores of a run: shares of the offered requests, drops, lateness, waste. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.pacing.virtual import Run
from benchmarks.pacing.workloads import work_seconds
from forebay_schemas.contract.tiers import TIERS, Tier

QUARTILES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One run. Shares are 0 to 1; ``ratio`` and ``tier_ratios`` compare with the bound, all else with the offer."""

    offered: int
    on_time: int
    ratio: float
    tier_ratios: dict[Tier, float]
    tier_shares: dict[Tier, float]
    quartile_shares: tuple[float, ...]
    """On time among the cheapest quarter of the requests, the next, ..., the dearest."""
    drops: dict[str, int]
    late: int
    """Answered after their deadline, or not answered when the run ended."""
    lateness_p50_seconds: float
    lateness_p95_seconds: float
    """Over the requests that were answered late; 0 when there are none."""
    wasted_seconds: float
    """Engine time spent on what was late, aborted or recomputed, at the cost that it has in a full batch."""
    idle_waiting_share: float
    """Share in which the engine did nothing, of the time in which the front held requests back."""
    limit_changes: int
    refusals: int
    preemptions: int

    @property
    def on_time_share(self) -> float:
        return self.on_time / self.offered if self.offered else 1.0


def score(run: Run, bound: Mapping[Tier, float]) -> Score:
    """``bound``: the most requests of each tier that any scheduler can have on time."""
    ledger = run.ledger
    offered = ledger.offered
    on_time = [key for key, finished in ledger.finished_at.items() if finished <= offered[key].deadline_seconds]
    is_on_time = set(on_time)
    lateness = sorted(
        finished - offered[key].deadline_seconds
        for key, finished in ledger.finished_at.items()
        if key not in is_on_time
    )
    of_tier = Counter(offered[key].tier for key in on_time)
    offered_of_tier = Counter(arrival.tier for arrival in offered)
    costs = [work_seconds(arrival, run.physics) for arrival in offered]
    by_cost = sorted(range(len(offered)), key=costs.__getitem__)
    quartiles = [
        by_cost[len(by_cost) * quarter // QUARTILES : len(by_cost) * (quarter + 1) // QUARTILES]
        for quarter in range(QUARTILES)
    ]
    return Score(
        offered=len(offered),
        on_time=len(on_time),
        ratio=_share(len(on_time), sum(bound.values())),
        tier_ratios={tier: _share(of_tier[tier], bound[tier]) for tier in TIERS if offered_of_tier[tier]},
        tier_shares={tier: _share(of_tier[tier], offered_of_tier[tier]) for tier in TIERS if offered_of_tier[tier]},
        quartile_shares=tuple(_share(sum(key in is_on_time for key in keys), len(keys)) for keys in quartiles),
        drops=dict(sorted(Counter(ledger.dropped.values()).items())),
        late=len(offered) - len(on_time) - len(ledger.dropped),
        lateness_p50_seconds=percentile(lateness, 50),
        lateness_p95_seconds=percentile(lateness, 95),
        wasted_seconds=max(0.0, run.done_work_seconds - sum(costs[key] for key in on_time)),
        idle_waiting_share=_share(run.idle_waiting_seconds, run.waiting_seconds),
        limit_changes=run.limit_changes,
        refusals=run.refusals,
        preemptions=run.preemptions,
    )


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The smallest that at least ``percent`` of them do not exceed (nearest rank); 0 of none."""
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)] if ordered else 0.0


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
