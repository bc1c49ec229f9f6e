"""/status: what limits each tier now, what waits, and whether the worker is ready."""

from __future__ import annotations

import pytest

from forebay_schemas.contract.reasons import Reason
from forebay_schemas.contract.tiers import Tier
from forebay_worker.ops.status import RUNNING_SHOWN, credentials_refused, limitation_of, running_status
from forebay_worker.pacing.gate import Limitation
from forebay_worker.request.work import Failure
from simulated.status import LIMIT, REFUSED, TARGET_SECONDS, Desk, fail_all, http_failure
from simulated.works import make_assignment, make_work


def test_nothing_limits_where_nothing_waits() -> None:
    desk = Desk()
    assert desk.limitation() is None
    assert desk.limits() == {Tier.HIGH: None, Tier.MID: None, Tier.LOW: None}


def test_the_limit_holds_up_whatever_waits() -> None:
    desk = Desk()
    desk.accept(Tier.HIGH, 25)
    desk.accept(Tier.LOW, 1)
    desk.start()
    assert desk.limitation() == Limitation("limit", LIMIT, LIMIT)
    assert desk.limits() == {Tier.HIGH: "limit", Tier.MID: None, Tier.LOW: "limit"}


def test_lower_tiers_are_held_up_by_higher_ones_and_by_the_reserve() -> None:
    desk = Desk()
    desk.accept(Tier.HIGH, 1)
    desk.accept(Tier.MID, 30)
    desk.accept(Tier.LOW, 5)
    desk.start()
    assert len(desk.dispatcher.running) == 16
    assert desk.limits() == {Tier.HIGH: None, Tier.MID: "reserve", Tier.LOW: "higher_tiers"}
    assert desk.limitation() == Limitation("reserve", 16, 16)
    assert limitation_of(desk.dispatcher, Tier.LOW, desk.clock.monotonic()) == Limitation("higher_tiers", 15, 0)


def test_lower_tiers_are_held_up_while_tokens_of_high_ones_come_too_late() -> None:
    desk = Desk()
    for requests in (1, 1, 1, 1, 16):
        desk.accept(Tier.HIGH, requests)
        desk.start()
        desk.answer_all(after_seconds=1.25 * requests)
    desk.accept(Tier.HIGH, 15)
    desk.accept(Tier.MID, 1)
    desk.start()
    found = limitation_of(desk.dispatcher, Tier.MID, desk.clock.monotonic())
    assert found is not None
    assert (found.signal, found.threshold) == ("only_high", TARGET_SECONDS)
    assert found.value > TARGET_SECONDS
    assert desk.limitation() == found


def test_lower_tiers_are_not_held_up_for_tokens_that_come_too_late_however_little_runs() -> None:
    desk = Desk()
    for requests in (1, 1, 1, 1, 16):
        desk.accept(Tier.HIGH, requests)
        desk.start()
        desk.answer_all(after_seconds=20.0)
    desk.accept(Tier.HIGH, 10)
    desk.accept(Tier.MID, 5)
    desk.start()
    assert desk.dispatcher.slots.by_tier[Tier.MID] == 5
    assert desk.limits() == {Tier.HIGH: None, Tier.MID: None, Tier.LOW: None}


def test_a_broken_backend_holds_up_every_tier() -> None:
    desk = Desk()
    desk.accept(Tier.HIGH, 4)
    desk.start()
    for work in list(desk.dispatcher.running.values()):
        desk.dispatcher.failed(work, REFUSED)
    desk.accept(Tier.LOW, 1)
    assert desk.limits() == {Tier.HIGH: "breaker", Tier.MID: None, Tier.LOW: "breaker"}


def test_tiers_say_what_waits_how_long_and_what_was_dropped() -> None:
    desk = Desk()
    for _ in range(2):
        desk.accept(Tier.HIGH, LIMIT)
        desk.start()
        desk.answer_all(after_seconds=2.0)
    desk.accept(Tier.MID, 40)
    desk.start()
    desk.clock.advance(3.0)
    desk.stats.outcomes[Tier.MID, Reason.SHED_OVERLOAD] = 3
    desk.stats.outcomes[Tier.MID, Reason.DEADLINE_UNREACHABLE] = 2
    desk.stats.outcomes[Tier.MID, Reason.DEADLINE_PASSED_RUNNING] = 1
    desk.stats.outcomes[Tier.MID, Reason.DEADLINE_PASSED_WAITING] = 4
    tiers = desk.tiers()
    mid = tiers[Tier.MID]
    assert (mid["waiting"], mid["running"]) == (24, 16)
    assert mid["oldest_seconds"] == pytest.approx(7.0)
    assert mid["estimated_wait_seconds"] == mid["work_seconds"] > 0
    assert tiers[Tier.HIGH]["estimated_wait_seconds"] == 0
    assert tiers[Tier.LOW]["estimated_wait_seconds"] == mid["estimated_wait_seconds"]
    assert (mid["shed"], mid["doomed"], mid["deadline_missed"]) == (3, 2, 5)
    assert tiers[Tier.HIGH]["oldest_seconds"] is None
    high = tiers[Tier.HIGH]["estimates"]
    assert high["output_tokens"]["answers"] == 2 * LIMIT
    assert high["service_seconds"]["answers"] == LIMIT, "the first ones were started before anything was known"


def test_waits_are_unknown_before_anything_was_answered() -> None:
    desk = Desk()
    desk.accept(Tier.MID, 5)
    assert desk.tiers()[Tier.MID]["estimated_wait_seconds"] is None


def test_the_longest_running_are_shown() -> None:
    desk = Desk()
    desk.accept(Tier.HIGH, 2)
    desk.start()
    desk.clock.advance(2.0)
    desk.accept(Tier.HIGH, 1)
    desk.start()
    rows = running_status(desk.dispatcher, now=desk.clock.monotonic(), now_ms=desk.clock.wall_ms())
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
    desk = Desk()
    assert credentials_refused(desk.dispatcher) == []
    fail_all(desk, failure)
    problems = credentials_refused(desk.dispatcher)
    assert (problems == []) is is_ready
    if problems:
        assert "FOREBAY_BACKEND_API_KEY" in problems[0]
        assert "MY-PRIVATE-PROMPT" not in problems[0]
    desk.clock.advance(0.5)
    desk.dispatcher.tick()
    desk.start()
    desk.answer_all(after_seconds=0.1)
    assert credentials_refused(desk.dispatcher) == []


def test_what_waits_for_a_commit_before_it_starts_is_shown_as_waiting() -> None:
    """It was shown as running, for as long as an open breaker held it up, too."""
    desk = Desk()
    assignment = make_assignment(Tier.MID)
    assignment.claims.is_announced = False
    desk.dispatcher.accept([make_work(assignment, offset=offset, ttl_ms=3_600_000) for offset in range(3)])
    desk.start()
    assert len(desk.dispatcher.named_starts) == 3
    assert [desk.tiers()[Tier.MID][what] for what in ("waiting", "running")] == [3, 0]
    desk.accept(Tier.HIGH, 1)
    desk.start()
    [probe] = desk.dispatcher.running.values()
    desk.dispatcher.failed(probe, REFUSED)
    assignment.claims.is_announced = True
    desk.start()
    assert [desk.tiers()[Tier.MID][what] for what in ("waiting", "running")] == [3, 0]
    assert desk.limits()[Tier.MID] == "breaker"
