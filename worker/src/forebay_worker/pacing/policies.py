"""The policies by name. Pure."""

from __future__ import annotations

from forebay_worker.pacing.fixed import FixedLimit
from forebay_worker.pacing.policy import PacingPolicy
from forebay_worker.pacing.slo_aimd import SloAimd
from forebay_worker.settings import WorkerSettings


def make_policy(settings: WorkerSettings) -> PacingPolicy:
    """The policy that the settings ask for."""
    if settings.pacing_policy == "fixed":
        return FixedLimit(limit_requests=settings.limit_max)
    return SloAimd(
        limit_min=settings.limit_min,
        limit_start=settings.limit_start,
        limit_max=settings.limit_max,
        token_seconds_target=settings.tpot_target_seconds,
    )
