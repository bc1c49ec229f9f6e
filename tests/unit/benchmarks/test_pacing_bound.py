"""The workloads that ship and the bound on what any scheduler can do with them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from benchmarks.pacing.bound import bound_requests
from benchmarks.pacing.workloads import Arrival, Hint, arrivals, physics, workloads

from forebay_sandbox.engine.physics import EnginePhysics
from forebay_schemas.contract.tiers import Tier

SECOND = EnginePhysics(a_seconds=0.0, b_seconds=1.0, c_seconds=0.0)
"""An engine that spends one second for each output token after the first."""


def one(*, at: float, deadline: float, work: int, tier: Tier = Tier.MID) -> Arrival:
    return Arrival(
        at_seconds=at,
        tier=tier,
        prompt_tokens=1,
        output_tokens=work + 1,
        deadline_seconds=deadline,
        hint_max_tokens=work + 1,
        biz_type="chat",
        row=0,
    )


@pytest.mark.parametrize(
    ("name", "offered", "high", "mid", "low"),
    [("code", 2146, 1646, 0, 0), ("conv", 2424, 0, 2422, 0), ("mixed", 5264, 1646, 1565, 248)],
)
def test_the_bound_is_the_one_that_a_solver_finds(name: str, offered: int, high: int, mid: int, low: int) -> None:
    requests = arrivals(workloads()[name], hint=Hint.NOISY, seed=1)
    assert len(requests) == offered
    found = bound_requests(requests, physics())
    assert [round(found[tier]) for tier in (Tier.HIGH, Tier.MID, Tier.LOW)] == [high, mid, low]
    assert round(sum(found.values())) == workloads()[name].bound_requests


@pytest.mark.parametrize(
    ("case", "offered", "mid"),
    [
        ("nothing", [], 0.0),
        ("all fit", [one(at=0.0, deadline=3.5, work=2), one(at=0.0, deadline=3.5, work=2)], 2.0),
        ("of the others what still fits", [one(at=0.0, deadline=1.5, work=1) for _ in range(3)], 2.0),
        ("the cheapest first", [one(at=0.0, deadline=3.5, work=3), one(at=0.0, deadline=3.5, work=2)], 1 + 2 / 3),
        ("late even alone", [one(at=0.0, deadline=2.5, work=3)], 0.0),
        (
            "who can wait gives way",
            [one(at=0.0, deadline=2.5, work=1), *(one(at=0.0, deadline=1.5, work=1) for _ in range(2))],
            3.0,
        ),
    ],
)
def test_the_bound_of_a_few_requests(case: str, offered: list[Arrival], mid: float) -> None:
    assert bound_requests(offered, SECOND)[Tier.MID] == pytest.approx(mid), case


def test_an_urgent_tier_goes_before_a_cheap_one() -> None:
    cheap = [one(at=0, deadline=1.5, work=1, tier=Tier.LOW) for _ in range(2)]
    dear = one(at=0, deadline=2.5, work=2, tier=Tier.HIGH)
    assert bound_requests([*cheap, dear], SECOND) == {Tier.HIGH: 1.0, Tier.MID: 0.0, Tier.LOW: pytest.approx(1.0)}


def test_the_seed_makes_the_noise_and_nothing_else() -> None:
    code = workloads()["code"]
    first, again, other = (arrivals(code, hint=Hint.NOISY, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert [replace(each, hint_max_tokens=0) for each in first] == [replace(each, hint_max_tokens=0) for each in other]
    assert all(each.hint_max_tokens >= each.output_tokens for each in first)
    assert {each.hint_max_tokens for each in arrivals(code, hint=Hint.CAP, seed=1)} == {2048}
