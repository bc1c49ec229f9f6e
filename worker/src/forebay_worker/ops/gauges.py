"""The worker's state at a scrape, gathered from its parts. The event loop's thread gathers; data of the intakes'
threads is read by value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from forebay_schemas.contract.tiers import TIERS, Tier, TierTimes
from forebay_worker.cluster.broker_clock import BrokerClock
from forebay_worker.coordination.handover import HandOvers
from forebay_worker.dispatch.blame import Cause
from forebay_worker.dispatch.breaker import BreakerState
from forebay_worker.dispatch.dispatcher import Dispatcher
from forebay_worker.intake.intake import Intake
from forebay_worker.intake.results_reader import ResultsReader
from forebay_worker.outcome.delivery import Delivery
from forebay_worker.signals.poller import Signals
from forebay_worker.signals.readings import EngineReading, GpuReading


@dataclass(frozen=True, slots=True, kw_only=True)
class IntakeGauges:
    """State of an intake."""

    held_records: int
    assigned_partitions: int
    unfinished_records: int
    commits: int
    commit_failures: int
    commit_lag_seconds: float
    watermark_age_seconds: float
    rebalances: int
    remade_partitions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TierGauges:
    """State of a tier. None: not known yet. ``top_tenant_share``: the largest tenant's share of the waiting
    requests."""

    lane_records: int
    lane_bytes: int
    lane_tenants: int
    top_tenant_share: float
    lane_work_seconds: float | None
    estimated_wait_seconds: float | None
    estimate_error_ratio: float | None
    settled: int
    deadline_seconds: float
    allowed_wait_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauges:
    """State of the worker. ``signals``: as from `SignalPoller.sources`."""

    backend_limit_requests: int
    backend_workers: int
    limit_requests: int
    limit_min_requests: int | None
    limit_max_requests: int
    limit_changes: int
    in_flight: int
    in_flight_bytes: int
    in_flight_bytes_max: int
    token_seconds: float | None
    token_target_seconds: float | None
    knee_requests: float
    prefill_backlog_seconds: float
    signals: Mapping[str, Mapping[str, Any]]
    engine: EngineReading | None
    gpu: GpuReading | None
    gpu_sick: bool
    breaker_open: bool
    breaker_opened: int
    breaker_cause: Cause | None
    undelivered: int
    clock_skew_ms: float | None
    overload_level: int
    overload_steps: Mapping[str, int]
    handed_over_running: int
    handed_over_given: int
    handed_over_taken: int
    results_looks: Mapping[str, int]
    results_look_seconds: float
    tiers: Mapping[Tier, TierGauges]
    intakes: Mapping[str, IntakeGauges]


@dataclass(frozen=True, slots=True, kw_only=True)
class Configured:
    """Settings shown as metrics. ``limit_min_requests``: None for a limit that never moves."""

    limit_min_requests: int | None
    limit_max_requests: int
    in_flight_bytes_max: int
    tier_times: TierTimes


def gather(
    *,
    configured: Configured,
    clock: BrokerClock,
    dispatcher: Dispatcher,
    signals: Signals,
    delivery: Delivery,
    hand_overs: HandOvers,
    results_reader: ResultsReader,
    intakes: Mapping[str, Intake],
) -> Gauges:
    """Gathers the present state."""
    now, gate, overload = clock.monotonic(), dispatcher.gate, dispatcher.shedder.ladder
    trouble = dispatcher.failures.trouble
    return Gauges(
        backend_limit_requests=gate.limit_requests,
        backend_workers=1 + gate.others.workers,
        limit_requests=gate.share_requests,
        limit_min_requests=configured.limit_min_requests,
        limit_max_requests=configured.limit_max_requests,
        limit_changes=gate.changes_total,
        in_flight=len(dispatcher.running),
        in_flight_bytes=dispatcher.slots.memory_bytes,
        in_flight_bytes_max=configured.in_flight_bytes_max,
        token_seconds=gate.model.token_seconds,
        token_target_seconds=gate.policy.token_seconds_target,
        knee_requests=gate.knee_requests,
        prefill_backlog_seconds=gate.prefill_seconds(now),
        signals=signals.sources(now),
        engine=signals.latest_engine(now),
        gpu=signals.latest_gpu(now),
        gpu_sick=dispatcher.gpu_watch.is_sick(now),
        breaker_open=dispatcher.breaker.state is not BreakerState.CLOSED,
        breaker_opened=dispatcher.breaker.opened_count,
        breaker_cause=None if trouble is None else trouble.cause,
        undelivered=delivery.undelivered_records,
        clock_skew_ms=clock.skew_ms,
        overload_level=overload.level,
        overload_steps=overload.steps_total,
        handed_over_running=hand_overs.running_count,
        handed_over_given=hand_overs.given_count,
        handed_over_taken=sum(intake.taken_over_count for intake in intakes.values()),
        results_looks={"completed": results_reader.completed_count, "given_up": results_reader.given_up_count},
        results_look_seconds=results_reader.look_seconds,
        tiers=_tiers(dispatcher, intakes, configured.tier_times, now),
        intakes={name: _of_intake(intake, now) for name, intake in intakes.items()},
    )


def _tiers(
    dispatcher: Dispatcher, intakes: Mapping[str, Intake], times: TierTimes, now: float
) -> dict[Tier, TierGauges]:
    waits, work_seconds = dispatcher.shedder.waits(now), dispatcher.shedder.work_seconds()
    found = {}
    for tier in TIERS:
        lane = dispatcher.lanes[tier]
        by_tenant = lane.records_by_tenant()
        found[tier] = TierGauges(
            lane_records=len(lane),
            lane_bytes=lane.size_bytes,
            lane_tenants=len(by_tenant),
            top_tenant_share=max(by_tenant.values()) / len(lane) if by_tenant else 0.0,
            lane_work_seconds=work_seconds.get(tier),
            estimated_wait_seconds=waits.get(tier),
            estimate_error_ratio=dispatcher.estimates.error_ratio(tier),
            settled=sum(intake.settled_records[tier] for intake in intakes.values()),
            deadline_seconds=times.ttl_seconds(tier),
            allowed_wait_seconds=times.wait_seconds(tier),
        )
    return found


def _of_intake(intake: Intake, now: float) -> IntakeGauges:
    return IntakeGauges(
        held_records=intake.held_records,
        assigned_partitions=sum(len(numbers) for numbers in intake.assigned.values()),
        unfinished_records=intake.unfinished_records,
        commits=intake.commits.confirmed_count,
        commit_failures=intake.commits.failed_count,
        commit_lag_seconds=intake.commits.lag_seconds(now),
        watermark_age_seconds=intake.watermark_age_seconds(now),
        rebalances=intake.rebalances,
        remade_partitions=intake.remade_partitions,
    )
