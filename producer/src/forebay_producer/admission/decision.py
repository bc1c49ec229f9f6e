"""Whether a request is admitted, from the pool's load and the request's deadline. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from forebay_schemas.contract.tiers import DEFAULT_TIER_TIMES, Tier, TierTimes
from forebay_schemas.estimate.pool import PoolLoad
from forebay_schemas.estimate.waits import UNCORRECTED, Wait

NO_WORKER_RETRY_SECONDS: Final = 5.0


class RefusalReason(StrEnum):
    """Why a request is refused."""

    WAIT_TOO_LONG = "wait_too_long"
    """The tier's tolerated wait would be exceeded."""

    DEADLINE_TOO_CLOSE = "deadline_too_close"
    """The wait would take more than its part of the time that the deadline leaves."""

    NO_FREE_SLOT = "no_free_slot"
    """The request is not to be queued, and no slot is free."""

    SERVICE_TOO_SLOW = "service_too_slow"
    """Requests take longer than tolerated, and this one would have to queue."""

    TENANT_RATE = "tenant_rate"
    """The tenant sends more requests a second than it may."""

    TENANT_CONCURRENCY = "tenant_concurrency"
    """The tenant has as many requests open as it may."""

    NO_WORKER = "no_worker"
    """No worker serves the pool."""

    @property
    def http_status(self) -> int:
        """503 where nobody serves, so that a client may go elsewhere; 429 where there is only too much to do."""
        return 503 if self is RefusalReason.NO_WORKER else 429


class WithoutWorkers(StrEnum):
    """What happens to requests while no worker is known to serve the pool."""

    ACCEPT = "accept"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionPolicy:
    """The bounds of admission.

    ``deadline_share``: the part of what the deadline leaves that the P90 of the wait may take. ``warning_share``: the
    part of a bound from which an admitted request carries a warning. ``service_seconds_max``: the longest mean time
    from start to end, by tier, above which requests are refused instead of queued. ``tenant_per_second``,
    ``tenant_burst`` and ``tenant_concurrency``: of each tenant in this process; 0 for no bound.
    """

    deadline_share: float = 0.6
    warning_share: float = 0.7
    service_seconds_max: Mapping[Tier, float] = field(default_factory=lambda: {Tier.HIGH: 10.0})
    without_workers: WithoutWorkers = WithoutWorkers.ACCEPT
    tenant_per_second: float = 0.0
    tenant_burst: int = 10
    tenant_concurrency: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """``wait``: the estimate; None while the load is not known. ``warning``: why the wait is near a bound, or None."""

    wait: Wait | None = None
    warning: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """``value`` reached ``threshold``, in the reason's unit. ``retry_after_seconds``: None where a later request with
    the same deadline would be refused too. ``turn_seconds``: how long the pool needs for one request of the tier."""

    reason: RefusalReason
    message: str
    value: float
    threshold: float
    retry_after_seconds: float | None
    turn_seconds: float = 0.0


def decide(
    load: PoolLoad | None,
    *,
    tier: Tier,
    left_seconds: float,
    do_not_queue: bool,
    policy: AdmissionPolicy,
    times: TierTimes = DEFAULT_TIER_TIMES,
) -> Admitted | Refused:
    """The decision on one request. ``load``: as of now; None while nothing is known. ``left_seconds``: until its
    deadline. ``times``: the pool's tolerated waits."""
    if load is None or not load.serving_workers:
        return _without_workers(load, policy)
    wait = load.waits().get(tier)
    if wait is None:
        # The first requests run: nobody knows how long they take.
        return Admitted()
    correction = load.corrections.get(tier, UNCORRECTED)
    turn = load.cost_seconds.get(tier, 0.0)
    own = load.tiers[tier]
    service = load.service_seconds.get(tier, 0.0)
    is_queued = own.open_slots < 1 or wait.raw_seconds > 0 or own.waiting_requests >= own.open_slots
    if do_not_queue and is_queued:
        message = f"no slot is free for a {tier} request that is not to be queued"
        return Refused(
            reason=RefusalReason.NO_FREE_SLOT,
            message=message,
            value=wait.p50_seconds,
            threshold=0.0,
            retry_after_seconds=wait.p50_seconds + turn,
            turn_seconds=turn,
        )
    tolerated = policy.service_seconds_max.get(tier)
    if tolerated is not None and service > tolerated and is_queued:
        return Refused(
            reason=RefusalReason.SERVICE_TOO_SLOW,
            message=f"a {tier} request takes {service:.1f} s on average, more than the {tolerated:g} s tolerated",
            value=service,
            threshold=tolerated,
            retry_after_seconds=service,
            turn_seconds=turn,
        )
    # The tighter bound is the one to name.
    bounds = sorted(
        [
            (
                policy.deadline_share * (left_seconds - service),
                RefusalReason.DEADLINE_TOO_CLOSE,
                f"{policy.deadline_share:.0%} of what its deadline leaves beside {service:.1f} s of service",
            ),
            (times.wait_seconds(tier), RefusalReason.WAIT_TOO_LONG, f"what tier {tier} tolerates"),
        ]
    )
    for bound, reason, words in bounds:
        if wait.p90_seconds > bound or bound < 0:
            return Refused(
                reason=reason,
                message=f"a {tier} request would wait up to {wait.p90_seconds:.1f} s; "
                f"{max(0.0, bound):.1f} s is {words}",
                value=wait.p90_seconds,
                threshold=max(0.0, bound),
                retry_after_seconds=(wait.p90_seconds - bound) / correction.p90 if bound > 0 else None,
                turn_seconds=turn,
            )
    bound = bounds[0][0]
    if wait.p90_seconds > policy.warning_share * bound:
        return Admitted(
            wait=wait,
            warning=f"a {tier} request may wait {wait.p90_seconds:.1f} s, {wait.p90_seconds / bound:.0%} of its bound",
        )
    return Admitted(wait=wait)


def _without_workers(load: PoolLoad | None, policy: AdmissionPolicy) -> Admitted | Refused:
    if policy.without_workers is WithoutWorkers.ACCEPT:
        return Admitted()
    seen = "no worker was found" if load is None or not load.workers else "no worker's backend serves"
    return Refused(
        reason=RefusalReason.NO_WORKER,
        message=f"{seen}; start one, or let requests wait with FOREBAY_ADMISSION_WITHOUT_WORKERS=accept",
        value=0.0,
        threshold=1.0,
        retry_after_seconds=NO_WORKER_RETRY_SECONDS,
    )
