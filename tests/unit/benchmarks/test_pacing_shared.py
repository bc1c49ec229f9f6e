"""Workers that share an engine, in virtual time: together they do what one would, and none has more than its part."""

from __future__ import annotations

from statistics import mean

import pytest
from benchmarks.pacing.contestants import POLICIES
from benchmarks.pacing.engine import Engine, Ledger, VirtualClock
from benchmarks.pacing.shared_front import Scale, SharedFront
from benchmarks.pacing.virtual import Run, run
from benchmarks.pacing.workloads import Arrival

from forebay_sandbox.engine.physics import EnginePhysics
from forebay_schemas.contract.tiers import Tier

SMALL = EnginePhysics(a_seconds=0.010, b_seconds=0.002, c_seconds=0.00006, max_num_seqs=128)
"""A tenth of a large node: its knee is at 20 requests."""

FLOOD = [
    Arrival(
        at_seconds=0.0,
        tier=Tier.LOW,
        prompt_tokens=20,
        output_tokens=20 + number % 21,
        deadline_seconds=10_000.0,
        hint_max_tokens=40,
        biz_type="chat",
        row=number,
    )
    for number in range(1_400)
]


def played(policy: str, *scales: Scale, blind: bool = False) -> tuple[SharedFront, Run]:
    fronts: list[SharedFront] = []

    def make(engine: Engine, ledger: Ledger, clock: VirtualClock) -> SharedFront:
        fronts.append(
            SharedFront(engine, ledger, clock, make_policy=lambda: POLICIES[policy](SMALL), scales=scales, blind=blind)
        )
        return fronts[0]

    found = run(FLOOD, physics=SMALL, make_front=make, seed=1)
    return fronts[0], found


def in_flight(found: Run, begins: float, ends: float) -> float:
    return mean(sample.in_flight for sample in found.samples if begins <= sample.at_seconds < ends)


def of_each(front: SharedFront, begins: float, ends: float) -> list[float]:
    seen = [each for at, each in front.in_flight_seen if begins <= at < ends]
    return [mean(column) for column in zip(*seen, strict=True)]


@pytest.mark.parametrize("blind", [False, True])
def test_one_worker_four_and_one_again_keep_the_engine_as_full_as_one_would(blind: bool) -> None:
    _, alone = played("slo_aimd", Scale(0.0, 1), blind=blind)
    front, found = played("slo_aimd", Scale(0.0, 1), Scale(30.0, 4), Scale(60.0, 1), blind=blind)
    for begins, ends in ((30.0, 60.0), (60.0, 85.0)):
        assert in_flight(found, begins, ends) == pytest.approx(in_flight(alone, begins, ends), rel=0.1)
    each = of_each(front, 40.0, 60.0)
    assert max(each) - min(each) < 0.15 * mean(each), each
    assert front.over_limit_most <= 0.1 * in_flight(alone, 30.0, 60.0), "what runs on after a cut"
    assert len(found.ledger.finished_at) == len(FLOOD)
    assert found.ended_seconds == pytest.approx(alone.ended_seconds, rel=0.05)
