"""The engines, workers and partitions that a load needs, the waits, and the first bottleneck. Pure.

Arithmetic over a day with one peak; its assumptions are part of the plan. The waits come from `waits`.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping
from typing import Final

from forebay_producer.planning.demand import ALLOWED_SHARE, Demand, Load, flow_of
from forebay_producer.planning.result import Growth, KafkaPlan, Plan, TierPlan
from forebay_producer.planning.waits import DAY_SECONDS, Flood, Flow, floods, waits
from forebay_schemas.contract.tiers import TIERS, Tier
from forebay_schemas.contract.topics import PARTITIONS_MAX, Pool
from forebay_schemas.errors import UsageError

LATE_DEVIATIONS: Final = 1.64
"""Standard deviations above the mean that one of 20 random sums exceeds."""
ENGINES_MAX: Final = 1000
WORKERS_MIN: Final = 2
"""One may be rolled, drained or killed while the other works."""
WORKER_REQUESTS_PER_SECOND: Final = 1000.0
"""Conservative: `make bench` prints a worker's rate on a machine with a backend that takes no time."""
WORKER_IN_FLIGHT: Final = 1000
PARTITIONS_MIN: Final = 12
PARTITIONS_PER_WORKER: Final = 2
INTERACTIVE_SERVICE_SECONDS: Final = 10.0
BUSY_SHARE: Final = 0.85
GROWTH_MAX: Final = 100.0
RECORD_OVERHEAD_BYTES: Final = 300
"""Bytes of a request or result besides its body: envelope, headers, Kafka's own."""


def make_plan(demand: Demand) -> Plan:
    """The plan. Raises ``UsageError`` for an invalid load."""
    flows = {tier: flow_of(tier, load) for tier, load in demand.loads.items()}
    needed = _engines_needed(demand, flows)
    engines = demand.engines or needed or ENGINES_MAX
    tiers = _tiers(demand, flows, engines=engines)
    capacity = engines * demand.service.per_second
    peak = sum(flow.peak_per_second for flow in flows.values())
    day = sum(load.per_second for load in demand.loads.values())
    workers = max(
        WORKERS_MIN,
        math.ceil(min(peak, capacity) / WORKER_REQUESTS_PER_SECOND),
        math.ceil(engines * demand.service.limit_requests / WORKER_IN_FLIGHT),
    )
    partitions = demand.partitions or _partitions(workers)
    if partitions > PARTITIONS_MAX:
        raise UsageError(
            "--rate",
            f"and --limit take {workers:,} workers and {partitions:,} partitions; a topic has {PARTITIONS_MAX:,}",
            fix="plan a share of the load, for each of several pools",
        )
    breaks = _breaks(demand, engines=engines, partitions=partitions)
    return Plan(
        engines_needed=needed,
        engines=engines,
        engine_per_second=demand.service.per_second,
        busy_share_peak=peak / capacity,
        busy_share_day=day / capacity,
        survives_loss_of_one_engine=engines > 1 and _is_kept(demand, flows, engines=engines - 1),
        workers=workers,
        workers_max=min(partitions, PARTITIONS_PER_WORKER * workers),
        partitions=partitions,
        tiers={tier.value: plan for tier, plan in tiers.items()},
        breaks=breaks,
        kafka=_kafka(demand, flows, tiers, partitions=partitions),
        assumes=_assumes(demand),
        warnings=_warnings(demand, tiers, needed=needed, engines=engines, workers=workers, partitions=partitions),
    )


def _engines_needed(demand: Demand, flows: Mapping[Tier, Flow]) -> int | None:
    """More engines never keep less."""

    def is_kept(count: int) -> bool:
        return _is_kept(demand, flows, engines=count)

    least = max(1, math.ceil(sum(load.per_second for load in demand.loads.values()) / demand.service.per_second))
    most = least
    while most < ENGINES_MAX and not is_kept(most):
        most = min(ENGINES_MAX, 2 * most)
    counts = range(least, min(most, ENGINES_MAX) + 1)
    at = bisect_left(counts, True, key=is_kept)
    return counts[at] if at < len(counts) else None


def _tiers(demand: Demand, flows: Mapping[Tier, Flow], *, engines: int) -> dict[Tier, TierPlan]:
    service = demand.service
    capacity = engines * service.per_second
    present = [tier for tier in TIERS if tier in flows]
    peaks = [flows[tier].peak_per_second for tier in present]
    flood = floods(flows, done_per_second=capacity)
    by_chance = waits(
        places=engines * service.limit_requests,
        service_seconds=service.seconds,
        service_cv=service.cv,
        per_second=peaks,
        is_flooded=sum(peaks) >= capacity,
    )
    found = {}
    above = 0.0
    for tier, peak, wait in zip(present, peaks, by_chance, strict=True):
        load = demand.loads[tier]
        allowed = load.allowed_wait_seconds
        left = capacity - above
        above += peak
        lasts = load.peak_seconds or DAY_SECONDS
        # A short peak ends before random waits reach their long-run value: the queue is bounded by the random excess
        # over the mean. That is the only bound where the mean takes all places.
        p95 = LATE_DEVIATIONS * math.sqrt(above * lasts) / left if left > 0 else math.inf
        if wait is not None:
            p95 = min(p95, wait.p95_seconds)
        found[tier] = TierPlan(
            peak_per_second=peak,
            deadline_seconds=load.deadline_seconds,
            allowed_wait_seconds=allowed,
            wait_mean_seconds=None if wait is None else min(wait.mean_seconds, p95),
            wait_p95_seconds=_finite(p95),
            flood_wait_seconds=_finite(flood[tier].wait_seconds),
            backlog_requests=flood[tier].backlog_requests,
            drained_seconds=flood[tier].drained_seconds,
            queue_requests=math.floor(allowed * left) if left > 0 else None,
            is_kept=_tier_is_kept(demand, tier, by_chance_seconds=p95, flood=flood[tier]),
        )
    return found


def _tier_is_kept(demand: Demand, tier: Tier, *, by_chance_seconds: float, flood: Flood) -> bool:
    if flood.drained_seconds is None:
        return False
    if tier is Tier.LOW:
        # Hours are allowed: random waits do not matter beside the flood, and are not finite while higher tiers flood.
        is_drained = demand.drain_seconds is None or flood.drained_seconds <= demand.drain_seconds
        return is_drained and flood.wait_seconds <= demand.loads[tier].allowed_wait_seconds
    return flood.wait_seconds + by_chance_seconds <= demand.loads[tier].allowed_wait_seconds


def _is_kept(demand: Demand, flows: Mapping[Tier, Flow], *, engines: int) -> bool:
    # Much cheaper than the flood, and false for most counts: a day's work must fit into a day.
    if sum(load.per_second for load in demand.loads.values()) > engines * demand.service.per_second:
        return False
    return all(tier.is_kept for tier in _tiers(demand, flows, engines=engines).values())


def _partitions(workers: int) -> int:
    """Room for twice the workers, and a multiple of their number, so that all get equally many."""
    wanted = max(PARTITIONS_MIN, PARTITIONS_PER_WORKER * workers)
    return math.ceil(wanted / workers) * workers


def _breaks(demand: Demand, *, engines: int, partitions: int) -> tuple[Growth, ...]:
    """What breaks at how many times the load, the first one first."""

    def keeps(tier: Tier) -> Callable[[float], bool]:
        return lambda factor: _grown(demand, factor, engines=engines)[tier].is_kept

    checks: list[tuple[str, Callable[[float], bool]]] = []
    for tier in (one for one in TIERS if one in demand.loads):
        what = f"{tier} waits longer than the {shown_seconds(demand.loads[tier].allowed_wait_seconds)} it may"
        if tier is Tier.LOW:
            what += ", or does not drain in a day"
            if demand.drain_seconds is not None:
                what = f"low does not drain in {shown_seconds(demand.drain_seconds)}"
        checks.append((what, keeps(tier)))
    most = partitions * WORKER_REQUESTS_PER_SECOND
    peak = sum(load.peak_per_second for load in demand.loads.values())
    if peak:
        checks.append(("a worker for each partition is not enough", lambda factor: factor * peak <= most))
    found = [Growth(factor=factor, what=what) for what, ok in checks if (factor := _largest(ok)) is not None]
    return tuple(sorted(found, key=lambda growth: growth.factor))


def _grown(demand: Demand, factor: float, *, engines: int) -> dict[Tier, TierPlan]:
    loads = {
        tier: Load(
            per_second=load.per_second * factor,
            peak_factor=load.peak_factor,
            peak_seconds=load.peak_seconds,
            deadline_seconds=load.deadline_seconds,
            tolerated_seconds=load.tolerated_seconds,
        )
        for tier, load in demand.loads.items()
    }
    changed = Demand(loads=loads, service=demand.service, engines=engines, drain_seconds=demand.drain_seconds)
    return _tiers(changed, {tier: flow_of(tier, load) for tier, load in loads.items()}, engines=engines)


def _largest(ok: Callable[[float], bool]) -> float | None:
    """The largest factor for which ``ok`` holds, to 2 %; 0 if not even a hundredth of the load; None if a hundred times
    the load is fine."""
    if ok(GROWTH_MAX):
        return None
    low, high = 0.01, GROWTH_MAX
    if not ok(low):
        return 0.0
    while high / low > 1.02:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if ok(middle) else (low, middle)
    return low


def _kafka(demand: Demand, flows: Mapping[Tier, Flow], tiers: Mapping[Tier, TierPlan], *, partitions: int) -> KafkaPlan:
    specs = {spec.name: spec for spec in Pool("plan").specs(partitions=partitions, replication=demand.replication)}
    requests_kept = _retention_seconds(specs[Pool("plan").requests(Tier.LOW)].config)
    results_kept = _retention_seconds(specs[Pool("plan").results].config)
    request = demand.request_bytes + RECORD_OVERHEAD_BYTES
    result = demand.result_bytes + RECORD_OVERHEAD_BYTES
    day = sum(load.per_second for load in demand.loads.values())
    peak = sum(flow.peak_per_second for flow in flows.values())
    into = peak * (request + result)
    longest = max(
        (
            max(plan.deadline_seconds, math.inf if plan.flood_wait_seconds is None else plan.flood_wait_seconds)
            for plan in tiers.values()
        ),
        default=0.0,
    )
    return KafkaPlan(
        disk_bytes=day * (request * requests_kept + result * results_kept) * demand.replication,
        in_bytes_per_second=into,
        between_bytes_per_second=into * (demand.replication - 1),
        # Workers read the requests, clients the results.
        out_bytes_per_second=into,
        retention_needed_seconds=longest if math.isfinite(longest) else DAY_SECONDS * 365,
        retention_seconds=requests_kept,
    )


def _retention_seconds(config: Mapping[str, str]) -> float:
    return int(config["retention.ms"]) / 1000


def _assumes(demand: Demand) -> tuple[str, ...]:
    return (
        f"an engine does {demand.service.per_second:.2f} requests/s with {demand.service.limit_requests} in flight, "
        f"each in {demand.service.seconds:.2f} s, whatever its tier",
        "requests come at random, and the peaks of all tiers at the same time, once a day",
        "high goes before mid before low; shares, reserves, drops and retries are left out",
        f"a request may wait for {ALLOWED_SHARE:.0%} of its deadline"
        if all(load.tolerated_seconds is None for load in demand.loads.values())
        else "a request may wait for as long as its tier tolerates",
        f"bodies of {demand.request_bytes:,} bytes in and {demand.result_bytes:,} out, "
        f"{demand.replication} replicas, nothing compressed",
    )


def _warnings(
    demand: Demand, tiers: Mapping[Tier, TierPlan], *, needed: int | None, engines: int, workers: int, partitions: int
) -> tuple[str, ...]:
    found = []
    service = demand.service
    for tier, plan in tiers.items():
        if service.seconds >= plan.deadline_seconds:
            found.append(
                f"{tier}: a request takes {shown_seconds(service.seconds)}, its deadline is "
                f"{shown_seconds(plan.deadline_seconds)}: none can be done in time, however many engines there are"
            )
        elif service.seconds + plan.allowed_wait_seconds > plan.deadline_seconds:
            found.append(
                f"{tier}: {shown_seconds(plan.allowed_wait_seconds)} of waiting and {shown_seconds(service.seconds)} "
                f"of work are more than its deadline of {shown_seconds(plan.deadline_seconds)}"
            )
        if not plan.is_kept:
            found.append(f"{tier}: with {engines} engines it waits too long or is not drained")
    if Tier.HIGH in tiers and service.seconds > INTERACTIVE_SERVICE_SECONDS:
        found.append(
            f"a request takes {shown_seconds(service.seconds)}: whoever waits for it should be refused at once rather "
            "than queued when all places are taken"
        )
    interactive = sum(plan.peak_per_second for tier, plan in tiers.items() if tier is not Tier.LOW)
    share = interactive / (engines * service.per_second)
    if share > BUSY_SHARE:
        found.append(f"high and mid alone take {share:.0%} of the engines at the peak: a little more, and they queue")
    if needed is None:
        found.append(f"not even {ENGINES_MAX} engines keep the deadlines")
    elif demand.engines is not None and demand.engines < needed:
        found.append(f"{demand.engines} engines are too few: {needed} are needed")
    if workers > partitions:
        found.append(
            f"{workers} workers are more than the {partitions} partitions: those above get none and are useless"
        )
    return tuple(found)


def shown_seconds(seconds: float) -> str:
    """Short, for people: 0.25 s, 18 s, 12 min, 14.4 h."""
    for unit, size in (("d", 86_400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"


def _finite(seconds: float) -> float | None:
    return seconds if math.isfinite(seconds) else None
