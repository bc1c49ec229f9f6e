"""Whose slots of a backend's limit are whose: by demand, highest tier first, evenly among those who want more than
there is. Pure; every worker computes it from the same records and comes to the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from forebay_schemas.contract.tiers import TIERS, Tier

Wanted = Mapping[Tier, int]
"""Of each tier, the requests that run and those that wait to run."""


_Worker = TypeVar("_Worker", bound=Any)


def fill(slots: int, wants: Sequence[int]) -> list[int]:
    """Water-filling: what each gets of the slots, so that nobody has more than it wants, and nobody has less than
    another one but who wants no more. Of a remainder the last of those who want the most have one more."""
    given = [0] * len(wants)
    left = len(wants)
    for index in sorted(range(len(wants)), key=lambda index: wants[index]):
        given[index] = min(wants[index], slots // left)
        slots -= given[index]
        left -= 1
    return given


def allocate(
    slots: int,
    wanted: Mapping[_Worker, Wanted],
    *,
    minimum: Mapping[Tier, float],
    reserve_slots: int = 0,
    turn: int = 0,
) -> dict[_Worker, int]:
    """The share of each worker, by its id; all slots are given.

    1. One slot to each worker that wants any. Where there are fewer slots than such workers, they take turns: ``turn``
       counts up with the time.
    2. What mid and low are guaranteed of all slots (``minimum``, shares of one).
    3. What high wants; then ``reserve_slots``, free slots for the high requests to come; then mid; then low.
    4. What is left, for whoever's demand comes next.

    Within each step: evenly (`fill`).
    """
    workers = sorted(wanted)
    if not workers:
        return {}
    first = turn % len(workers)
    workers = workers[first:] + workers[:first]
    shares = dict.fromkeys(workers, 0)
    open_wants = {worker: {tier: wanted[worker].get(tier, 0) for tier in TIERS} for worker in workers}

    def give(slots: int, wants: list[int], tier: Tier | None) -> int:
        for worker, slots_given in zip(workers, fill(slots, wants), strict=True):
            shares[worker] += slots_given
            slots -= slots_given
            if tier is not None:
                open_wants[worker][tier] -= slots_given
        return slots

    def give_tier(slots: int, tier: Tier) -> int:
        return give(slots, [open_wants[worker][tier] for worker in workers], tier)

    left = _give_one_each(slots, workers, shares, open_wants)
    for tier, share in minimum.items():
        had = sum(wanted[worker].get(tier, 0) - open_wants[worker][tier] for worker in workers)
        guaranteed = min(left, max(0, int(share * slots) - had))
        left -= guaranteed - give_tier(guaranteed, tier)
    left = give_tier(left, Tier.HIGH)
    reserved = min(left, reserve_slots)
    left -= reserved - give(reserved, [reserved] * len(workers), None)
    for tier in (Tier.MID, Tier.LOW):
        left = give_tier(left, tier)
    give(left, [left] * len(workers), None)
    return shares


def _give_one_each(
    slots: int, workers: Sequence[_Worker], shares: dict[_Worker, int], open_wants: Mapping[_Worker, dict[Tier, int]]
) -> int:
    """The slots that are left. Each counts for the most urgent tier that its worker wants it for."""
    for worker in workers:
        tier = next((tier for tier in TIERS if open_wants[worker][tier]), None)
        if slots and tier is not None:
            shares[worker] = 1
            open_wants[worker][tier] -= 1
            slots -= 1
    return slots
