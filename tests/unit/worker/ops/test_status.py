"""/status: what limits each tier now, what waits, and whether the worker is ready."""

from __future__ import annotations

import pytest

from forebay_schemas.contract.reasons import Reason
from forebay_schemas.contract.tiers import Tier
from forebay_worker.dispatch.limitations import limitation_of
from forebay_worker.ops.status import RUNNING_SHOWN, credentials_refused, running_status
from forebay_worker.pacing.limitation import Limitation
from forebay_worker.request.work import Failure
from simulated.dispatch import REFUSED
from simulated.status import LIMIT, TARGET_SECONDS, StatusStage, fail_all, http_failure
from simulated.works import make_assignment, make_work


def test_nothing_limits_where_nothing_waits() -> None:
    stage = StatusStage()
    assert stage.limitation() is None
    assert stage.limits() == {Tier.HIGH: None, Tier.MID: None, Tier.LOW: None}


def test_the_limit_holds_up_whatever_waits() -> None:
    stage = StatusStage()
    stage.fill(Tier.HIGH, 25)
    stage.fill(Tier.LOW, 1)
    stage.take_all()
    assert stage.limitation() == Limitation("limit", LIMIT, LIMIT)
    assert stage.limits() == {Tier.HIGH: "limit", Tier.MID: None, Tier.LOW: "limit"}


def test_lower_tiers_are_held_up_by_higher_ones_and_by_the_reserve() -> None:
    stage = StatusStage()
    stage.fill(Tier.HIGH, 1)
    stage.fill(Tier.MID, 30)
    stage.fill(Tier.LOW, 5)
    stage.take_all()
    assert len(stage.dispatcher.running) == 16
    assert stage.limits() == {Tier.HIGH: None, Tier.MID: "reserve", Tier.LOW: "higher_tiers"}
    assert stage.limitation() == Limitation("reserve", 16, 16)
    assert limitation_of(stage.dispatcher, Tier.LOW, stage.clock.monotonic()) == Limitation("higher_tiers", 15, 0)


def test_lower_tiers_are_held_up_while_tokens_of_high_ones_come_too_late() -> None:
    stage = StatusStage()
    for requests in (1, 1, 1, 1, 16):
        stage.fill(Tier.HIGH, requests)
        stage.take_all()
        stage.answer_all(after_seconds=1.25 * requests)
    stage.fill(Tier.HIGH, 15)
    stage.fill(Tier.MID, 1)
    stage.take_all()
    found = limitation_of(stage.dispatcher, Tier.MID, stage.clock.monotonic())
    assert found is not None
    assert (found.signal, found.threshold) == ("only_high", TARGET_SECONDS)
    assert found.value > TARGET_SECONDS
    assert stage.limitation() == found


def test_lower_tiers_are_not_held_up_for_tokens_that_come_too_late_however_little_runs() -> None:
    stage = StatusStage()
    for requests in (1, 1, 1, 1, 16):
        stage.fill(Tier.HIGH, requests)
        stage.take_all()
        stage.answer_all(after_seconds=20.0)
    stage.fill(Tier.HIGH, 10)
    stage.fill(Tier.MID, 5)
    stage.take_all()
    assert stage.dispatcher.slots.by_tier[Tier.MID] == 5
    assert stage.limits() == {Tier.HIGH: None, Tier.MID: None, Tier.LOW: None}


def test_a_broken_backend_holds_up_every_tier() -> None:
    stage = StatusStage()
    stage.fill(Tier.HIGH, 4)
    stage.take_all()
    for work in list(stage.dispatcher.running.values()):
        stage.dispatcher.failed(work, REFUSED)
    stage.fill(Tier.LOW, 1)
    assert stage.limits() == {Tier.HIGH: "breaker", Tier.MID: None, Tier.LOW: "breaker"}


def test_tiers_say_what_waits_how_long_and_what_was_dropped() -> None:
    stage = StatusStage()
    for _ in range(2):
        stage.fill(Tier.HIGH, LIMIT)
        stage.take_all()
        stage.answer_all(after_seconds=2.0)
    stage.fill(Tier.MID, 40)
    stage.take_all()
    stage.clock.advance(3.0)
    stage.stats.outcomes[Tier.MID, Reason.SHED_OVERLOAD] = 3
    stage.stats.outcomes[Tier.MID, Reason.DEADLINE_UNREACHABLE] = 2
    stage.stats.outcomes[Tier.MID, Reason.DEADLINE_PASSED_RUNNING] = 1
    stage.stats.outcomes[Tier.MID, Reason.DEADLINE_PASSED_WAITING] = 4
    tiers = stage.tiers()
    mid = tiers[Tier.MID]
    assert (mid["waiting"], mid["running"]) == (24, 16)
    assert mid["oldest_seconds"] == pytest.approx(7.0)
    # High requests came in the last ten seconds.
    assert mid["estimated_wait_seconds"] > mid["work_seconds"] > 0
    assert tiers[Tier.HIGH]["estimated_wait_seconds"] == 0
    assert tiers[Tier.LOW]["estimated_wait_seconds"] > mid["estimated_wait_seconds"]
    assert (mid["shed"], mid["doomed"], mid["deadline_missed"]) == (3, 2, 5)
    assert tiers[Tier.HIGH]["oldest_seconds"] is None
    high = tiers[Tier.HIGH]["estimates"]
    assert high["output_tokens"]["answers"] == 2 * LIMIT
    assert high["service_seconds"]["answers"] == LIMIT, "the first ones were started before anything was known"


def test_waits_are_unknown_before_anything_was_answered() -> None:
    stage = StatusStage()
    stage.fill(Tier.MID, 5)
    assert stage.tiers()[Tier.MID]["estimated_wait_seconds"] is None


def test_the_longest_running_are_shown() -> None:
    stage = StatusStage()
    stage.fill(Tier.HIGH, 2)
    stage.take_all()
    stage.clock.advance(2.0)
    stage.fill(Tier.HIGH, 1)
    stage.take_all()
    rows = running_status(stage.dispatcher, now=stage.clock.monotonic(), now_ms=stage.clock.wall_ms())
    assert [row["running_seconds"] for row in rows] == [2.0, 2.0, 0.0]
    assert len(rows) <= RUNNING_SHOWN


@pytest.mark.parametrize(
    ("failure", "is_ready"),
    [
        (http_failure(401, Reason.BACKEND_REJECTED), False),
        (http_failure(403, Reason.BACKEND_REJECTED), False),
        (http_failure(500, Reason.BACKEND_ERROR), True),
        (http_failure(404, Reason.BACKEND_REJECTED), True),
        (http_failure(302, Reason.BACKEND_BAD_RESPONSE), True),
        (REFUSED, True),
    ],
)
def test_only_a_backend_that_lets_nobody_in_makes_the_worker_not_ready(failure: Failure, is_ready: bool) -> None:
    stage = StatusStage()
    assert credentials_refused(stage.dispatcher) == []
    fail_all(stage, failure)
    problems = credentials_refused(stage.dispatcher)
    assert (problems == []) is is_ready
    if problems:
        assert "FOREBAY_BACKEND_API_KEY" in problems[0]
        assert "MY-PRIVATE-PROMPT" not in problems[0]
    stage.clock.advance(0.5)
    stage.dispatcher.tick()
    stage.take_all()
    stage.answer_all(after_seconds=0.1)
    assert credentials_refused(stage.dispatcher) == []


def test_what_waits_for_a_commit_before_it_starts_is_shown_as_waiting() -> None:
    """It was shown as running, for as long as an open breaker held it up, too."""
    stage = StatusStage()
    assignment = make_assignment(Tier.MID)
    assignment.claims.is_announced = False
    mids = [make_work(assignment, offset=offset, request_id=f"mid-{offset}", ttl_ms=3_600_000) for offset in range(3)]
    stage.dispatcher.accept(mids)
    stage.take_all()
    assert len(stage.dispatcher.named_starts) == 3
    assert [stage.tiers()[Tier.MID][what] for what in ("waiting", "running")] == [3, 0]
    stage.fill(Tier.HIGH, 1)
    stage.take_all()
    [probe] = stage.dispatcher.running.values()
    stage.dispatcher.failed(probe, REFUSED)
    assignment.claims.is_announced = True
    stage.take_all()
    assert [stage.tiers()[Tier.MID][what] for what in ("waiting", "running")] == [3, 0]
    assert stage.limits()[Tier.MID] == "breaker"
