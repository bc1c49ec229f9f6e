"""The overload ladder at work: waits by what the backend takes at its limit, not by what it took while it idled."""

from __future__ import annotations

import pytest

from forebay_schemas.contract.tiers import TIERS, Tier
from forebay_worker.dispatch.overload import OverloadLadder, OverloadLevel
from forebay_worker.dispatch.shedder import LEARNT_ANSWERS, Shedder
from forebay_worker.lanes.lanes import Lanes
from forebay_worker.pacing.gate import Gate
from forebay_worker.pacing.policies.fixed import FixedLimit
from forebay_worker.request.work import Work
from simulated.ports import NOW_MS
from simulated.works import make_assignment, make_work

LIMIT = 20
NOW = 1_000.0


class Booth:
    """Lanes and a gate with a limit of 20; what waits was predicted to take in 100 tokens and put out 200."""

    def __init__(self, *, by_tokens: bool) -> None:
        self.lanes = Lanes()
        self.gate = Gate(policy=FixedLimit(limit_requests=LIMIT), prefill_seconds_max=None)
        self.ladder = OverloadLadder()
        self.shedder = Shedder(ladder=self.ladder, lanes=self.lanes, gate=self.gate, by_tokens=by_tokens)

    def wait(self, tier: Tier, count: int, *, left_seconds: float = 3_600.0, first: int = 0) -> list[Work]:
        works = [
            make_work(make_assignment(tier), offset=first + number, ttl_ms=round(left_seconds * 1000))
            for number in range(count)
        ]
        for work in works:
            work.prompt_tokens, work.output_tokens, work.output_tokens_min = 100, 200, 200
            work.cost_seconds = self.gate.cost_seconds(work.prompt_tokens, work.output_tokens)
            self.lanes.push(work, NOW)
        return works

    def answer(self, count: int, *, seconds: float) -> None:
        """Answers ``count`` requests one after the other: the backend has one in flight at a time."""
        [work] = self.wait(Tier.MID, 1)
        self.lanes.remove(work)
        for number in range(count):
            work.started = NOW + number * seconds
            self.gate.started(work, work.started)
            ends = work.started + seconds
            self.gate.ended(work, ends, in_flight=1, prompt_tokens=100, output_tokens=200, succeeded=True)
            self.shedder.answered(seconds)


@pytest.mark.parametrize("by_tokens", [True, False])
def test_nothing_is_known_before_enough_answers(by_tokens: bool) -> None:
    booth = Booth(by_tokens=by_tokens)
    booth.wait(Tier.HIGH, 10)
    booth.answer(LEARNT_ANSWERS - 1, seconds=2.0)
    assert booth.shedder.waits(NOW) == {}
    booth.answer(1, seconds=2.0)
    assert set(booth.shedder.waits(NOW)) == set(TIERS)


def test_by_number_a_request_waits_for_its_share_of_the_slots() -> None:
    booth = Booth(by_tokens=False)
    booth.answer(100, seconds=2.0)
    booth.wait(Tier.HIGH, 10)
    booth.wait(Tier.LOW, 30, first=100)
    assert booth.shedder.work_seconds() == pytest.approx({Tier.HIGH: 1.0, Tier.MID: 0.0, Tier.LOW: 3.0})
    assert booth.shedder.waits(NOW) == pytest.approx({Tier.HIGH: 1.0 / 0.99, Tier.MID: 1.0 / 0.99, Tier.LOW: 4.0}), (
        "low has its guaranteed hundredth"
    )


def test_a_surge_at_an_idle_backend_is_measured_by_a_full_batch() -> None:
    """Alone, a request has the whole step to itself: what it cost then, times forty, would be an overload."""
    booth = Booth(by_tokens=True)
    booth.answer(200, seconds=2.0)
    booth.wait(Tier.HIGH, 40)
    assert booth.lanes[Tier.HIGH].cost_seconds > 60.0
    wait_seconds = booth.shedder.waits(NOW)[Tier.HIGH]
    assert 2.0 < wait_seconds < booth.lanes[Tier.HIGH].cost_seconds / 4


@pytest.mark.parametrize("by_tokens", [True, False])
def test_each_rung_sheds_the_late_ones_of_its_tiers_oldest_first(by_tokens: bool) -> None:
    booth = Booth(by_tokens=by_tokens)
    booth.answer(200, seconds=2.0)
    booth.wait(Tier.HIGH, 600, left_seconds=1.0)  # bound to be late, but high is never shed
    booth.wait(Tier.HIGH, 600, first=1_000)
    mid = booth.wait(Tier.MID, 3, left_seconds=5.0, first=2_000)
    low = booth.wait(Tier.LOW, 3, left_seconds=5.0, first=3_000)
    shed: dict[OverloadLevel, list[Work]] = {}
    for second in range(8):
        found = booth.shedder.step(NOW + second, NOW_MS + second * 1000, serves=True)
        shed.setdefault(booth.ladder.level, [each.work for each in found])
    assert shed == {OverloadLevel.NORMAL: [], OverloadLevel.SHED_LOW: low, OverloadLevel.SHED_MID: [*low, *mid]}


def test_nothing_is_decided_while_the_backend_serves_nobody() -> None:
    booth = Booth(by_tokens=False)
    booth.answer(100, seconds=2.0)
    booth.wait(Tier.HIGH, 1_000)
    booth.wait(Tier.LOW, 5, left_seconds=1.0, first=2_000)
    for second in range(10):
        assert booth.shedder.step(NOW + second, NOW_MS, serves=False) == []
    assert booth.ladder.level is OverloadLevel.NORMAL
