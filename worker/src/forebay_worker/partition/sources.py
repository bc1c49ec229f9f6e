"""The topics that an intake reads, each of a tier, and the credit that bounds what it hands on. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from forebay_schemas.contract.tiers import Tier
from forebay_worker.partition.credit import Credit


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A topic that an intake reads. ``retry_delay_seconds`` is 0 for a topic of requests."""

    topic: str
    tier: Tier
    retry_delay_seconds: int
    credit: Credit
