"""Whose tier deadlines and waits count in a pool, and who has others. Pure.

A worker's values decide, and each says its own in its `Capacity`. Where workers differ, those of the one that started
last count: after a change of the settings it is the one that has the new ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from forebay_schemas.contract.coordination import Capacity
from forebay_schemas.contract.tiers import TIERS, TierTimes


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """``times``: the pool's, by ``worker``. ``differing``: those of the workers that have others, by their ids."""

    worker: str
    times: TierTimes
    differing: Mapping[str, TierTimes]


def agreement_of(workers: Iterable[Capacity]) -> Agreement | None:
    """What the workers say, by the last record of each; None without any. One that drains counts only among such."""
    heard = list(workers)
    if not heard:
        return None
    newest = max(heard, key=lambda each: (not each.draining, each.incarnation, each.worker))
    times = newest.times
    return Agreement(
        worker=newest.worker,
        times=times,
        differing={each.worker: each.times for each in sorted(heard, key=_name) if each.times != times},
    )


def difference(ours: TierTimes, theirs: TierTimes) -> str:
    """In which settings two sides differ, ours first, for a person: ``FOREBAY_TIER_TTL_MS high 5000 against 60000``;
    empty when they do not."""
    return ", ".join(
        f"{name} {tier} {one[tier]} against {other[tier]}"
        for name, one, other in (
            ("FOREBAY_TIER_TTL_MS", ours.ttl_ms, theirs.ttl_ms),
            ("FOREBAY_TIER_WAIT_MS", ours.wait_ms, theirs.wait_ms),
        )
        for tier in TIERS
        if one[tier] != other[tier]
    )


def _name(capacity: Capacity) -> str:
    return capacity.worker
