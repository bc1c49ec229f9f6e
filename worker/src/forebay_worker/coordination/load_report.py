"""This worker's load, as it publishes it in its capacity record. Pure: it reads dispatch and changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from forebay_schemas.contract.coordination import REQUESTS_MAX, SECONDS_MAX, SERVICE_SECONDS_MIN
from forebay_schemas.contract.tiers import TIERS, Tier
from forebay_schemas.contract.worker_load import (
    CHANGES_MAX,
    FIGURE_MAX,
    TEXT_CHARS_MAX,
    BreakerReport,
    LimitedBy,
    LimitStep,
    OverloadState,
    WorkerLoad,
)
from forebay_worker.dispatch.breaker import BreakerState
from forebay_worker.dispatch.dispatcher import Dispatcher
from forebay_worker.dispatch.limitations import limitation, waiting_requests


def load_report(dispatcher: Dispatcher, now: float) -> WorkerLoad:
    """The load, with every figure within the bounds of `WorkerLoad` so that readers accept it. ``now``: monotonic
    seconds."""
    shedder, gate = dispatcher.shedder, dispatcher.gate
    estimates = shedder.estimates
    work_seconds = shedder.work_seconds()
    corrections = {tier: estimates.accuracy.correction(tier) for tier in TIERS}
    trouble, found, ladder = dispatcher.failures.trouble, limitation(dispatcher, now), shedder.ladder
    return WorkerLoad(
        waiting_requests=_requests(lambda tier: waiting_requests(dispatcher, tier)),
        running_requests=_requests(lambda tier: dispatcher.slots.by_tier[tier] - dispatcher.named_starts.of_tier(tier)),
        open_slots=_requests(lambda tier: estimates.open_slots(tier, now)),
        guaranteed_share={tier: min(1.0, share) for tier, share in dispatcher.lanes.shares.minimum.items()},
        work_seconds=_seconds(work_seconds),
        arriving=_seconds({tier: estimates.arriving(tier, now) for tier in TIERS}),
        service_seconds={
            tier: round(min(SECONDS_MAX, max(SERVICE_SECONDS_MIN, seconds)), 4)
            for tier in TIERS
            if (seconds := estimates.service_seconds(tier)) is not None
        },
        wait_correction={
            tier: (each.starts, round(each.p50, 3), round(each.p90, 3))
            for tier, each in corrections.items()
            if each.starts
        },
        limited_by=None
        if found is None
        else LimitedBy(
            signal=found.signal[:TEXT_CHARS_MAX], value=_figure(found.value), threshold=_figure(found.threshold)
        ),
        limit_changes=[
            LimitStep(
                at_ms=max(0, change.at_ms),
                before=min(REQUESTS_MAX, change.before),
                after=min(REQUESTS_MAX, change.after),
                cause=change.cause[:TEXT_CHARS_MAX],
            )
            for change in list(gate.changes)[-CHANGES_MAX:]
        ],
        overload=OverloadState(
            level=ladder.level.name.lower(), sheds=list(ladder.shed_tiers), cause=ladder.cause[:TEXT_CHARS_MAX]
        ),
        breaker=BreakerReport(
            state=dispatcher.breaker.state.value,
            error="" if trouble is None else (trouble.words or "")[:TEXT_CHARS_MAX],
            fix="" if trouble is None else (trouble.advice or "")[:TEXT_CHARS_MAX],
        )
        if dispatcher.breaker.state is not BreakerState.CLOSED
        else BreakerReport(),
    )


def _requests(of_tier: Callable[[Tier], int]) -> dict[Tier, int]:
    return {tier: min(REQUESTS_MAX, max(0, number)) for tier in TIERS if (number := of_tier(tier))}


def _seconds(by_tier: Mapping[Tier, float]) -> dict[Tier, float]:
    return {tier: round(min(SECONDS_MAX, max(0.0, seconds)), 4) for tier, seconds in by_tier.items() if seconds}


def _figure(value: float) -> float:
    return min(FIGURE_MAX, max(-FIGURE_MAX, float(value)))
