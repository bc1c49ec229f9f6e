"""Properties of a plan of faults: the same for the same seed, never two brokers at once, a worker left alone. Pure."""

from __future__ import annotations

from itertools import pairwise

import pytest

from chaos.plan import FaultKind, Plan, make_plan

_SEEDS = range(30)
_BROKER_FAULTS = {FaultKind.RESTART_BROKER, FaultKind.KILL_BROKER}
_WORKER_FAULTS = {FaultKind.KILL_WORKER, FaultKind.STOP_WORKER, FaultKind.TERMINATE_WORKER}


def test_the_same_seed_gives_the_same_plan() -> None:
    assert make_plan(seed=7, seconds=300) == make_plan(seed=7, seconds=300)
    assert make_plan(seed=7, seconds=300) != make_plan(seed=8, seconds=300)


@pytest.mark.parametrize(("seconds", "least", "most"), [(60, 7, 12), (300, 40, 60)])
def test_faults_come_every_few_seconds(seconds: float, least: int, most: int) -> None:
    for seed in _SEEDS:
        assert least <= len(make_plan(seed=seed, seconds=seconds).faults) <= most


def test_every_kind_of_fault_comes_in_the_plans_of_a_few_seeds() -> None:
    seen = {fault.kind for seed in range(5) for fault in make_plan(seed=seed, seconds=300).faults}
    assert seen == set(FaultKind)


def test_a_broker_goes_only_when_the_one_before_had_time_to_come_back() -> None:
    for seed in _SEEDS:
        of_brokers = [fault for fault in make_plan(seed=seed, seconds=300).faults if fault.kind in _BROKER_FAULTS]
        for before, after in pairwise(of_brokers):
            assert before.seconds is not None
            assert after.at_seconds >= before.at_seconds + before.seconds + 8.0


def test_one_worker_is_always_left_alone() -> None:
    for seed in _SEEDS:
        plan = make_plan(seed=seed, seconds=300)
        for fault in plan.faults:
            if fault.kind in _WORKER_FAULTS:
                assert fault.slot in _occupied(plan, fault.at_seconds)
                assert len(_occupied(plan, fault.at_seconds)) >= 2


def _occupied(plan: Plan, at_seconds: float) -> set[int]:
    """The slots with a worker just before then."""
    occupied = set(plan.slots_at_start)
    for fault in plan.faults:
        if fault.at_seconds >= at_seconds or fault.slot is None:
            continue
        if fault.kind is FaultKind.ADD_WORKER:
            occupied.add(fault.slot)
        elif fault.kind in {FaultKind.KILL_WORKER, FaultKind.TERMINATE_WORKER} and fault.seconds is None:
            occupied.discard(fault.slot)
    return occupied
