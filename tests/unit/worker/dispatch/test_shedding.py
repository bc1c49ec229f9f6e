"""Dispatch: low requests are shed while high ones wait too long."""

from __future__ import annotations

from forebay_schemas.contract.results import Result
from forebay_schemas.contract.tiers import Tier
from forebay_worker.dispatch.breaker import BreakerState
from simulated.dispatch import ANSWER, REFUSED, Stage, works
from simulated.works import make_assignment


def surge(stage: Stage, *, low_ttl_ms: int) -> None:
    """Answers take a second, four at a time; then ten seconds' worth of high requests wait before ten low ones."""
    stage_works = works(20, assignment=make_assignment(Tier.MID))
    stage.accept(*stage_works)
    for _ in range(5):
        taken = stage.take_all()
        stage.tick(1.0)
        for work in taken:
            stage.dispatcher.answered(work, ANSWER)
    stage.accept(*works(44, assignment=make_assignment(Tier.HIGH), first=100))
    stage.accept(*works(10, assignment=make_assignment(Tier.LOW), first=200, ttl_ms=5_000 + low_ttl_ms))
    stage.take_all()


def shed_in(stage: Stage) -> list[Result]:
    return [result for result in stage.results() if result.reason == "shed_overload"]


def test_low_requests_that_would_be_late_are_shed_while_high_ones_wait_too_long() -> None:
    stage = Stage()
    surge(stage, low_ttl_ms=5_000)
    stage.tick(3.0)
    shed = shed_in(stage)
    assert [result.request_id for result in shed] == [f"r-{200 + number}" for number in range(10)]
    assert all(result.tier == "low" for result in shed)
    assert all(result.predicted_seconds is not None and result.predicted_seconds > 10.0 for result in shed)
    assert all("a new high request waits" in (result.error or "") for result in shed)
    assert len(stage.dispatcher.lanes[Tier.LOW]) == 0
    assert len(stage.dispatcher.lanes[Tier.HIGH]) == 40


def test_low_requests_that_have_the_time_are_not_shed() -> None:
    stage = Stage()
    surge(stage, low_ttl_ms=3_600_000)
    stage.tick(3.0)
    assert stage.dispatcher.shedder.ladder.shed_tiers == (Tier.LOW,)
    assert shed_in(stage) == []


def test_nothing_is_shed_while_the_backend_serves_nobody() -> None:
    """It has no pace by which anything could be called late."""
    stage = Stage()
    surge(stage, low_ttl_ms=5_000)
    for work in list(stage.dispatcher.running.values()):
        stage.dispatcher.failed(work, REFUSED)
    assert stage.dispatcher.breaker.state is not BreakerState.CLOSED
    stage.tick(4.0)
    assert stage.dispatcher.shedder.ladder.shed_tiers == ()
    assert shed_in(stage) == []


def test_a_backend_of_which_little_is_known_makes_nobody_late() -> None:
    stage = Stage()
    stage.accept(*works(100, assignment=make_assignment(Tier.HIGH)))
    for work in stage.take_all():
        stage.tick(1.0)
        stage.dispatcher.answered(work, ANSWER)
    stage.tick(4.0)
    assert stage.dispatcher.shedder.waits(stage.clock.monotonic()) == {}
    assert stage.dispatcher.shedder.ladder.shed_tiers == ()
