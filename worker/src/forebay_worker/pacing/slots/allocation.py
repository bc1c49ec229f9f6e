"""Allocation of a backend's slots: by demand, highest tier first, evenly among workers that want more than there is.
Pure; every worker computes the same result from the same records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from forebay_schemas.contract.tiers import TIERS, Tier

Wanted = Mapping[Tier, int]
"""Running and waiting requests of each tier."""


_Worker = TypeVar("_Worker", bound=Any)


def fill(slots: int, wants: Sequence[int]) -> list[int]:
    """Water-filling: the slots of each. None gets more than it wants, and none gets less than another unless it wants
    no more. Any remainder goes, one each, to the last of those that want the most."""
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

    1. One slot to each worker that wants any. With fewer slots than such workers they take turns: ``turn`` counts up
       with the time.
    2. The guaranteed shares of mid and low (``minimum``, shares of one).
    3. The demand of high; then ``reserve_slots``, free slots for later high requests; then mid; then low.
    4. The rest, for any later demand.

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
    """Returns the slots that are left. Each counts for the most urgent tier for which its worker wants it."""
    for worker in workers:
        tier = next((tier for tier in TIERS if open_wants[worker][tier]), None)
        if slots and tier is not None:
            shares[worker] = 1
            open_wants[worker][tier] -= 1
            slots -= 1
    return slots
