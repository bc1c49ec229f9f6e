"""Dispatch by memory: bodies in flight are bounded, and no tier waits for ever for another's."""

from __future__ import annotations

import pytest

from forebay_schemas.contract.reasons import Reason
from forebay_schemas.contract.tiers import Tier
from forebay_worker.dispatch.limitations import limitation_of
from forebay_worker.lanes.lanes import Lanes
from forebay_worker.lanes.order import LaneOrder
from forebay_worker.lanes.tier_shares import TierShares
from forebay_worker.pacing.gate import Gate
from forebay_worker.pacing.policies.fixed import FixedLimit
from forebay_worker.request.memory import in_flight_bytes
from forebay_worker.request.work import Failure, Work
from simulated.dispatch import ANSWER, Stage

MIB = 1024 * 1024
MEMORY_BYTES = 64 * MIB
LIMIT = 100


class MemoryStage(Stage):
    """A dispatcher with 64 MiB for a hundred requests in flight, a fifth of both kept for high."""

    def __init__(self, *, reserve: float = 0.2) -> None:
        super().__init__(
            gate=Gate(policy=FixedLimit(limit_requests=LIMIT), prefill_seconds_max=None, memory_bytes_max=MEMORY_BYTES),
            lanes=Lanes(order=LaneOrder.FIFO, shares=TierShares(reserve=reserve)),
            buffer_bytes_max=1024 * MIB,
        )

    def start(self) -> list[Tier]:
        """The tiers of what starts now, in order."""
        return [work.tier for work in self.take_all()]

    def end(self, work: Work) -> None:
        self.clock.advance(0.1)
        self.dispatcher.answered(work, ANSWER)

    def oldest(self) -> Work:
        return next(iter(self.dispatcher.running.values()))

    def signal(self, tier: Tier) -> str | None:
        found = limitation_of(self.dispatcher, tier, self.clock.monotonic())
        return None if found is None else found.signal


def test_bodies_start_until_the_memory_is_full_and_each_end_lets_others_start() -> None:
    stage = MemoryStage()
    stage.fill(Tier.MID, 20, mib=5)
    assert len(stage.start()) == 6, "five at 11 MiB, and the one that passes the bound"
    assert stage.signal(Tier.MID) == "memory"
    stage.end(stage.oldest())
    assert len(stage.start()) == 1


def test_however_requests_end_their_memory_is_free_again() -> None:
    stage = MemoryStage()
    stage.fill(Tier.MID, 3, mib=5)
    stage.start()
    answered, failed, given_up = stage.dispatcher.running.values()
    assert stage.dispatcher.slots.memory_bytes == sum(map(in_flight_bytes, (answered, failed, given_up)))
    stage.dispatcher.answered(answered, ANSWER)
    stage.dispatcher.failed(failed, Failure(reason=Reason.BACKEND_REJECTED, error="no", http_status=400))
    stage.dispatcher.gave_up(given_up, deadline_passed=True)
    assert stage.dispatcher.slots.memory_bytes == 0


def test_a_start_that_waits_for_its_commit_counts_as_in_flight() -> None:
    stage = MemoryStage()
    [held] = stage.fill(Tier.MID, 1, mib=30)
    held.assignment.claims.is_announced = False
    assert stage.start() == []
    assert stage.dispatcher.slots.memory_bytes == in_flight_bytes(held)
    held.assignment.claims.is_announced = True
    assert stage.start() == [Tier.MID]
    assert stage.dispatcher.slots.memory_bytes == in_flight_bytes(held)
    stage.end(held)
    assert stage.dispatcher.slots.memory_bytes == 0


def test_a_high_request_finds_room_however_many_large_low_ones_wait() -> None:
    stage = MemoryStage()
    stage.fill(Tier.HIGH, 1, mib=0.01)
    stage.start()
    stage.fill(Tier.LOW, 50, mib=2)
    stage.start()
    assert stage.signal(Tier.LOW) == "memory"
    stage.fill(Tier.HIGH, 3, mib=0.01)
    assert stage.start() == [Tier.HIGH] * 3


def test_a_pool_without_high_requests_fills_all_of_the_memory() -> None:
    stage = MemoryStage()
    stage.fill(Tier.LOW, 50, mib=2)
    stage.start()
    assert stage.dispatcher.slots.memory_bytes >= MEMORY_BYTES


@pytest.mark.parametrize("reserve", [0.0, 0.2])
def test_large_low_requests_have_their_turn_among_high_ones_without_end(reserve: float) -> None:
    stage = MemoryStage(reserve=reserve)
    stage.fill(Tier.LOW, 1, mib=8)
    started: list[Tier] = []
    for _ in range(200):
        stage.fill(Tier.HIGH, 10, mib=5)
        started += stage.start()
        stage.clock.advance(1.0)
        if Tier.LOW in started:
            break
        stage.end(stage.oldest())
    assert Tier.LOW in started


def test_high_requests_have_their_turn_among_large_low_ones_without_end() -> None:
    stage = MemoryStage(reserve=0.0)
    stage.fill(Tier.LOW, 50, mib=8)
    stage.start()
    stage.fill(Tier.HIGH, 1, mib=8)
    stage.end(stage.oldest())
    assert stage.start()[0] is Tier.HIGH, "the next that has room"
