"""Capacities as workers publish them, made in one line. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from forebay_schemas.contract.coordination import Capacity
from forebay_schemas.contract.tiers import TierTimes


def make_capacity(worker: str = "w-1", times: TierTimes | None = None, **fields: Any) -> Capacity:
    """A worker with one slot, without requests. ``times``: of its tiers; ``fields`` replace the defaults."""
    usual = Capacity(
        worker=worker,
        backend="b",
        limit_requests=1,
        share_requests=1,
        in_flight=0,
        wanted={},
        ended_per_second=0,
        service_seconds=None,
        draining=False,
    )
    if times is not None:
        fields |= {"tier_ttl_ms": dict(times.ttl_ms), "tier_wait_ms": dict(times.wait_ms)}
    return msgspec.structs.replace(usual, **fields)
