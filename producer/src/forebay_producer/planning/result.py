"""The result of a plan, as `forebay plan --output json` prints it."""

from __future__ import annotations

import msgspec


class TierPlan(msgspec.Struct, frozen=True, kw_only=True):
    """``wait``: random waits at the peak, None if unbounded; ``flood_wait_seconds``: the longest wait of a day in
    addition, None when the flood does not end within it; ``queue_requests``: queue length beyond which requests wait
    longer than allowed."""

    peak_per_second: float
    deadline_seconds: float
    allowed_wait_seconds: float
    wait_mean_seconds: float | None
    wait_p95_seconds: float | None
    flood_wait_seconds: float | None
    backlog_requests: float
    drained_seconds: float | None
    queue_requests: int | None
    is_kept: bool


class Growth(msgspec.Struct, frozen=True, kw_only=True):
    """``what`` breaks with ``factor`` times the load."""

    factor: float
    what: str


class KafkaPlan(msgspec.Struct, frozen=True, kw_only=True):
    """``disk_bytes``: of all replicas; rates at the peak, to the brokers, between them and from them."""

    disk_bytes: float
    in_bytes_per_second: float
    between_bytes_per_second: float
    out_bytes_per_second: float
    retention_needed_seconds: float
    retention_seconds: float


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """``engines_needed``: None when no number suffices; ``engines``: the number that the waits are computed for."""

    engines_needed: int | None
    engines: int
    engine_per_second: float
    busy_share_peak: float
    busy_share_day: float
    survives_loss_of_one_engine: bool
    workers: int
    workers_max: int
    partitions: int
    tiers: dict[str, TierPlan]
    breaks: tuple[Growth, ...]
    kafka: KafkaPlan
    assumes: tuple[str, ...]
    warnings: tuple[str, ...]
