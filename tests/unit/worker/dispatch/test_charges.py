"""Dispatch: who is charged for a failure, the request or the backend."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import structlog

from forebay_schemas.contract.control import Control, ControlAction
from forebay_schemas.contract.reasons import Reason
from forebay_schemas.contract.tiers import Tier
from forebay_worker.dispatch.breaker import PROBE_OVERDUE_SECONDS, BreakerState
from forebay_worker.dispatch.failure_policy import FAILURES_AMONG_ANSWERS_MAX
from forebay_worker.dispatch.suspension import RECOVERY_SECONDS
from forebay_worker.request.work import Failure, Failures, Work
from simulated.dispatch import ANSWER, REFUSED, Stage, status_failure, works
from simulated.ports import NOW_MS
from simulated.works import POOL, make_assignment, make_work


def test_a_refused_request_goes_back_to_its_lane_and_runs_again() -> None:
    stage = Stage()
    stage.accept(*works(1))
    work = stage.take()
    stage.dispatcher.failed(work, REFUSED)
    assert work.assignment.claims.running() == ()
    assert stage.dispatcher.take() is None, "the breaker is open"
    stage.tick(0.5)
    assert stage.take() is work
    stage.dispatcher.answered(work, ANSWER)
    assert stage.outcomes() == [("r-0", "completed")]


def test_an_outage_charges_nobody_however_long_it_lasts() -> None:
    stage = Stage(limit=8)
    stage.accept(*works(30, ttl_ms=3_600_000))
    for work in stage.take_all():
        stage.dispatcher.failed(work, REFUSED)
    probes = 0
    for _ in range(6_000):
        stage.tick(0.1)
        for work in stage.take_all():
            probes += 1
            stage.dispatcher.failed(work, REFUSED)
    assert 115 <= probes <= 130, "one each five seconds of ten minutes"
    assert stage.outcomes() == []
    stage.tick(5.0)
    while started := stage.take_all():
        for work in started:
            stage.dispatcher.answered(work, ANSWER)
    assert sorted(stage.outcomes()) == sorted((f"r-{number}", "completed") for number in range(30))


def test_a_refusal_while_others_are_served_is_charged() -> None:
    stage = Stage()
    stage.accept(*works(3))
    served, refused, _ = stage.take_all()
    stage.dispatcher.failed(refused, REFUSED)
    assert stage.outcomes() == []
    stage.dispatcher.answered(served, ANSWER)
    assert stage.outcomes() == [("r-0", "completed"), ("r-1", "backend_unavailable")]


@pytest.mark.parametrize("reason", [Reason.BACKEND_REJECTED, Reason.BACKEND_ERROR])
def test_a_refusal_of_another_request_for_its_own_sake_shows_that_the_backend_lives(reason: Reason) -> None:
    stage = Stage()
    stage.accept(*works(3))
    bad, refused, _ = stage.take_all()
    stage.dispatcher.failed(refused, REFUSED)
    stage.dispatcher.failed(bad, Failure(reason=reason, error="no"))
    assert {name for name, _ in stage.outcomes()} == {"r-0", "r-1"}


@pytest.mark.parametrize("reason", [Reason.HANDLER_FAILED, Reason.BACKEND_TIMEOUT, Reason.BACKEND_BAD_RESPONSE])
def test_other_failures_are_charged_and_say_nothing_of_the_backend(reason: Reason) -> None:
    stage = Stage()
    stage.accept(*works(3))
    own, refused, _ = stage.take_all()
    stage.dispatcher.failed(refused, REFUSED)
    stage.dispatcher.failed(own, Failure(reason=reason, error="no"))
    assert stage.outcomes() == [("r-0", reason.code)]


def test_a_suspect_that_nothing_convicts_runs_again() -> None:
    stage = Stage()
    stage.accept(*works(2))
    _, refused = stage.take_all()
    stage.dispatcher.failed(refused, REFUSED)
    assert stage.dispatcher.take() is None
    stage.tick(1.0)
    assert stage.take() is refused
    assert stage.outcomes() == []


def run_against(stage: Stage, breaks: Callable[[Work], bool], *, seconds: float) -> int:
    """A backend that dies with all it runs when it meets a request that ``breaks`` it, and is back at once."""
    executions = 0
    end = stage.clock.monotonic() + seconds
    while stage.clock.monotonic() < end and (stage.dispatcher.lanes or stage.dispatcher.running):
        started = stage.take_all()
        executions += len(started)
        if any(breaks(work) for work in started):
            for work in started:
                stage.dispatcher.failed(work, REFUSED)
        else:
            for work in started:
                stage.dispatcher.answered(work, ANSWER)
        stage.tick(0.1)
    return executions


@pytest.mark.parametrize(("urgency", "others_charged_max"), [(5, 3), (10, 0)])
def test_a_request_that_always_breaks_the_backend_is_charged_in_the_end(urgency: int, others_charged_max: int) -> None:
    """Also the most urgent of all, which would be each probe if probes went by urgency.

    Those of the same urgency come back beside it each time, and nothing tells them from it.
    """
    stage = Stage(limit=4)
    assignment = make_assignment()
    others = [make_work(assignment, offset=number, priority=5, ttl_ms=3_600_000) for number in range(40)]
    poison = make_work(assignment, offset=40, priority=urgency, ttl_ms=3_600_000, request_id="poison")
    stage.accept(*others[:20], poison, *others[20:])
    executions = run_against(stage, lambda work: work is poison, seconds=600)
    outcomes = dict(stage.outcomes())
    assert outcomes.pop("poison") == "backend_unavailable"
    assert outcomes.keys() == {f"r-{number}" for number in range(40)}
    others_charged = len(stage.producer.delivered_to(POOL.dead_letter)) - 1
    assert others_charged <= others_charged_max
    assert sum(reason == "completed" for reason in outcomes.values()) == 40 - others_charged
    assert executions <= 41 + 4 * (FAILURES_AMONG_ANSWERS_MAX + 2) + 4


def test_a_charged_failure_still_tells_that_the_suspect_was_not_alone() -> None:
    stage = Stage()
    stage.accept(*works(4))
    innocent, poison, served, _ = stage.take_all()
    poison.failures = Failures(stage.clock.monotonic(), among_answers=FAILURES_AMONG_ANSWERS_MAX - 1)
    stage.clock.advance(0.1)
    stage.dispatcher.answered(served, ANSWER)
    stage.dispatcher.failed(innocent, REFUSED)
    stage.dispatcher.failed(poison, REFUSED)
    assert stage.take() is innocent
    assert stage.outcomes() == [("r-2", "completed"), ("r-1", "backend_unavailable")]


def test_a_lone_request_that_breaks_the_backend_ends_at_its_deadline() -> None:
    stage = Stage()
    stage.accept(*works(1, ttl_ms=60_000))
    executions = run_against(stage, lambda _: True, seconds=120)
    assert stage.outcomes() == [("r-0", "deadline_passed_waiting")]
    assert executions <= 16, "probes only"


def test_two_requests_that_break_the_backend_are_both_charged() -> None:
    stage = Stage(limit=4)
    assignment = make_assignment()
    batch = [
        make_work(assignment, offset=number, priority=9 if number % 10 == 5 else 5, ttl_ms=3_600_000)
        for number in range(20)
    ]
    stage.accept(*batch)
    run_against(stage, lambda work: work.offset % 10 == 5, seconds=600)
    outcomes = dict(stage.outcomes())
    assert {name for name, reason in outcomes.items() if reason != "completed"} == {"r-5", "r-15"}
    assert len(outcomes) == 20


def test_after_a_suspension_nothing_starts_until_the_consumers_had_a_moment() -> None:
    stage = Stage()
    stage.tick()
    stage.accept(*works(2))
    stage.clock.advance(12.0)
    assert stage.dispatcher.take() is None
    stage.tick(RECOVERY_SECONDS - 0.1)
    assert stage.limited_by() == "suspension"
    stage.tick(0.1)
    assert len(stage.take_all()) == 2


def test_a_probe_cancelled_at_its_deadline_is_followed_by_another() -> None:
    stage = Stage()
    stage.accept(*works(1, ttl_ms=10_000), *works(1, first=1))
    first, second = stage.take_all()
    stage.dispatcher.failed(first, REFUSED)
    stage.dispatcher.failed(second, REFUSED)
    stage.tick(0.5)
    probe = stage.take()
    assert stage.dispatcher.breaker.state is BreakerState.PROBING
    stage.tick(10.0)
    stage.dispatcher.gave_up(probe, deadline_passed=True)
    stage.tick(0.5)
    assert stage.dispatcher.take() is not None


def test_a_probe_that_hangs_is_joined_by_another_request_than_the_one_that_failed() -> None:
    stage = Stage()
    stage.accept(*works(1, ttl_ms=3_600_000))
    failing = stage.take()
    stage.dispatcher.failed(failing, REFUSED)
    others = [make_work(offset=offset, ttl_ms=3_600_000, priority=1) for offset in (1, 2, 3)]
    stage.accept(*others)
    stage.tick(0.5)
    assert stage.take_all() == [others[0]]
    stage.tick(PROBE_OVERDUE_SECONDS - 0.1)
    assert stage.take_all() == []
    stage.tick(0.1)
    assert stage.take_all() == [others[1]], "although the one that failed is more urgent"


@pytest.mark.parametrize(("status", "retryable"), [(500, True), (401, False), (302, True), (404, False)])
def test_a_minute_of_the_same_error_to_all_makes_no_dead_letter(status: int, retryable: bool) -> None:
    stage = Stage(limit=32, retries_max=3)
    stage.accept(*works(60, ttl_ms=600_000))
    began, executions = stage.clock.monotonic(), 0
    while stage.clock.monotonic() < began + 300 and (stage.dispatcher.lanes or stage.dispatcher.running):
        for work in stage.take_all():
            executions += 1
            if stage.clock.monotonic() < began + 60:
                stage.dispatcher.failed(work, status_failure(status, retryable=retryable))
            else:
                stage.dispatcher.answered(work, ANSWER)
        stage.tick(0.1)
    results = stage.results()
    assert {(result.status, result.attempt) for result in results} == {("completed", 1)}
    assert len(results) == 60
    assert stage.retries() == []
    assert stage.producer.delivered_to(POOL.dead_letter) == []
    assert executions <= 60 + 32 + 4 + 60 / 5
    assert stage.clock.monotonic() - began < 60 + 6


def test_the_same_error_beside_answers_is_the_requests_own() -> None:
    stage = Stage(retries_max=3)
    stage.accept(*works(3))
    bad, *good = stage.take_all()
    stage.dispatcher.failed(bad, status_failure(500))
    assert (stage.retries(), stage.outcomes()) == ([], []), "it waits for what happens to others"
    for work in good:
        stage.dispatcher.answered(work, ANSWER)
    assert stage.retries() == [(POOL.retry(Tier.MID, 1), 2)]


def test_a_backend_that_lets_nobody_in_is_told_of_loudly_and_without_its_words() -> None:
    stage = Stage()
    stage.accept(*works(4))
    with structlog.testing.capture_logs() as lines:
        for work in stage.take_all():
            stage.dispatcher.failed(work, status_failure(401, retryable=False))
        [line] = lines
        assert line["log_level"] == "error"
        assert (line["error"], line["cause"]) == ("HTTP 401 (backend_rejected)", "credentials")
        assert "FOREBAY_BACKEND_API_KEY" in line["fix"]
        assert "SECRET" not in str(lines)
        assert stage.stats.backend_failures[Reason.BACKEND_REJECTED] == 4
        stage.tick(0.5)
        stage.dispatcher.answered(stage.take(), ANSWER)
        assert lines[-1]["event"] == "the backend answers"


def test_one_that_waits_for_evidence_is_cancelled_when_somebody_asks_for_it() -> None:
    stage = Stage()
    stage.accept(*works(2))
    bad, _ = stage.take_all()
    stage.dispatcher.failed(bad, status_failure(500))
    stage.dispatcher.controls.receive(Control(action=ControlAction.CANCEL, request_id="r-0", at=0, by="t"), NOW_MS)
    stage.tick()
    assert stage.outcomes() == [("r-0", "cancelled")]


def test_one_that_waits_for_evidence_beyond_its_deadline_expires() -> None:
    stage = Stage()
    stage.accept(*works(1, ttl_ms=1_000), *works(1, first=1))
    bad, _ = stage.take_all()
    stage.dispatcher.failed(bad, status_failure(500))
    stage.tick(1.0)
    stage.tick(0.2)
    assert stage.outcomes() == [("r-0", "deadline_passed_waiting")]
