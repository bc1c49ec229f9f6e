"""The tier deadlines and waits that apply in a pool, and the workers that differ. Pure.

Workers announce their values in a `Capacity`. Where they differ, those of the worker that started last apply: after a
change of settings it has the new ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from forebay_schemas.contract.coordination import Capacity
from forebay_schemas.contract.tiers import TIERS, TierTimes


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """``times``: those of the pool, from ``worker``. ``differing``: the workers with others, by id."""

    worker: str
    times: TierTimes
    differing: Mapping[str, TierTimes]


def agreement_of(workers: Iterable[Capacity]) -> Agreement | None:
    """The agreement of the workers, by the last record of each; None without any. Draining workers count only if all
    drain."""
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
    """The settings that differ, ours first, as text: ``FOREBAY_TIER_TTL_MS high 5000 against 60000``; empty if none."""
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
