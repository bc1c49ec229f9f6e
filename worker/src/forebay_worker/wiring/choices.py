"""Policy, gate, lanes and the like as the settings ask for them. Pure."""

from __future__ import annotations

from forebay_schemas.contract.tiers import Tier
from forebay_worker.dispatch.failure_policy import FailurePolicy
from forebay_worker.execution.connections import Timeouts
from forebay_worker.execution.http_backend import HttpOptions
from forebay_worker.lanes.lanes import Lanes
from forebay_worker.lanes.tier_shares import TierShares
from forebay_worker.pacing.gate import Gate
from forebay_worker.pacing.policies.fixed import FixedLimit
from forebay_worker.pacing.policies.gpu_target import GpuTarget
from forebay_worker.pacing.policies.gradient2 import Gradient2
from forebay_worker.pacing.policies.latency_ratio import LatencyRatio
from forebay_worker.pacing.policies.slo_aimd import SloAimd
from forebay_worker.pacing.policy import PacingPolicy
from forebay_worker.pacing.slots.sharing import Sharing
from forebay_worker.request.retry_policy import RetryStatuses
from forebay_worker.settings import WorkerSettings


def make_policy(settings: WorkerSettings) -> PacingPolicy:
    """The policy by its name."""
    bounds = {
        "limit_min": min(settings.limit_min, settings.limit_max),
        "limit_start": settings.limit_start,
        "limit_max": settings.limit_max,
    }
    match settings.pacing_policy:
        case "fixed":
            return FixedLimit(limit_requests=settings.limit_max)
        case "latency_ratio":
            return LatencyRatio(**bounds)
        case "gradient2":
            return Gradient2(**bounds)
        case "gpu_target":
            return GpuTarget(**bounds, target_share=settings.gpu_utilisation_target)
        case "slo_aimd":
            return SloAimd(**bounds, token_seconds_target=settings.tpot_target_seconds)


def make_gate(settings: WorkerSettings) -> Gate:
    """The gate; with a fixed limit that limit and the memory alone count."""
    prefill_seconds_max = None if settings.pacing_policy == "fixed" else settings.prefill_seconds_max
    return Gate(
        policy=make_policy(settings),
        prefill_seconds_max=prefill_seconds_max,
        memory_bytes_max=settings.in_flight_bytes_max,
    )


def make_failure_policy(settings: WorkerSettings) -> FailurePolicy:
    """Who is charged for failures."""
    return FailurePolicy(retries_by_hand="retry_statuses" in settings.model_fields_set)


def make_lanes(settings: WorkerSettings) -> Lanes:
    """The lanes, with what each tier and tenant is guaranteed."""
    shares = TierShares(minimum=_minimum(settings), reserve=settings.high_reserve_share)
    return Lanes(order=settings.lane_order, weights=settings.tenant_weights, shares=shares)


def make_sharing(settings: WorkerSettings, *, started_ms: int) -> Sharing:
    """How the backend is shared with other workers; a handler is this process's alone. ``started_ms``: epoch
    milliseconds of the process's start."""
    return Sharing(
        worker=settings.worker_id,
        backend=settings.shared_backend,
        minimum=_minimum(settings),
        reserve_share=settings.high_reserve_share,
        incarnation=started_ms,
        limit_min=min(settings.limit_min, settings.limit_max),
        limit_max=settings.limit_max,
        tier_times=settings.tier_times(),
    )


def http_options(settings: WorkerSettings) -> HttpOptions:
    """How the backend of ``backend_url`` is called."""
    assert settings.backend_url is not None
    key = settings.backend_api_key
    return HttpOptions(
        base_url=settings.backend_url.rstrip("/"),
        paths=settings.all_biz_paths,
        api_key=None if key is None else key.get_secret_value(),
        worker_id=settings.worker_id,
        engine_priority=settings.engine_priority,
        retry_statuses=RetryStatuses(settings.retry_statuses),
        adds_usage=settings.stream_usage,
        timeouts=Timeouts(
            total_seconds=settings.backend_timeout_seconds, connect_seconds=settings.backend_connect_seconds
        ),
    )


def _minimum(settings: WorkerSettings) -> dict[Tier, float]:
    return {Tier.MID: settings.mid_share, Tier.LOW: settings.low_share}
