"""Dispatch: what starts, what never does, who is charged for a failure, and how much intake may take."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import structlog
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from forebay_schemas.contract.control import Control, ControlAction
from forebay_schemas.contract.headers import read_history
from forebay_schemas.contract.reasons import Reason, Status
from forebay_schemas.contract.results import Result, decode_result
from forebay_schemas.contract.tiers import DEFAULT_TIER_TIMES, Tier, TierTimes, tier_times
from forebay_worker.answers.verdict import reason_of_status
from forebay_worker.bounds import BOUNDS
from forebay_worker.dispatch.breaker import PROBE_OVERDUE_SECONDS, BreakerState
from forebay_worker.dispatch.dispatcher import (
    RECOVERY_SECONDS,
    Dispatcher,
)
from forebay_worker.dispatch.failure_policy import FAILURES_AMONG_ANSWERS_MAX, SUSPECTS_MAX
from forebay_worker.dispatch.overload import OverloadLadder
from forebay_worker.lanes.lanes import Lanes
from forebay_worker.lanes.order import LaneOrder
from forebay_worker.outcome.delivery import DELIVERY_STALL_SECONDS
from forebay_worker.outcome.reporter import Reporter
from forebay_worker.pacing.gate import Gate
from forebay_worker.pacing.policies.fixed import FixedLimit
from forebay_worker.partition.assignment import CONVICTED_CRASHES, Assignment
from forebay_worker.partition.credit import Credit
from forebay_worker.request.memory import cost_bytes
from forebay_worker.request.work import Answer, Failure, Work
from forebay_worker.telemetry.stats import Stats
from simulated.ports import NOW_MS, ManualClock, MemoryProducer
from simulated.works import POOL, make_assignment, make_work


def status_failure(status: int, *, retryable: bool = True) -> Failure:
    return Failure(
        reason=reason_of_status(status), error=f"HTTP {status}: SECRET", http_status=status, retryable=retryable
    )


REFUSED = Failure(reason=Reason.BACKEND_UNAVAILABLE, error="connection refused", of_backend=True)
ANSWER = Answer(body={"ok": True})
BUFFER_BYTES = 3 * 1_000_000


class Stage:
    """A dispatcher with a real reporter over a producer in memory. Without retries a failure is the end."""

    def __init__(
        self,
        *,
        limit: int = 4,
        buffer_bytes_max: int = BUFFER_BYTES,
        retries_max: int = 0,
        tier_times: TierTimes = DEFAULT_TIER_TIMES,
    ) -> None:
        self.clock = ManualClock()
        self.producer = MemoryProducer()
        self.stats = Stats()
        self.reporter = Reporter(producer=self.producer, pool=POOL, worker_id="w", clock=self.clock, stats=self.stats)
        self.dispatcher = Dispatcher(
            clock=self.clock,
            gate=Gate(policy=FixedLimit(limit_requests=limit), prefill_seconds_max=math.inf),
            predictor=None,
            lanes=Lanes(order=LaneOrder.FIFO),
            overload=OverloadLadder(),
            read_signals=lambda _: (None, None),
            reporter=self.reporter,
            stats=self.stats,
            buffer_bytes_max=buffer_bytes_max,
            retries_max=retries_max,
            tier_times=tier_times,
        )

    def accept(self, *works: Work) -> None:
        self.dispatcher.accept(list(works))

    def limited_by(self) -> str | None:
        limitation = self.dispatcher.limited_by(self.clock.monotonic())
        return None if limitation is None else limitation.signal

    def take_all(self) -> list[Work]:
        taken = []
        while (work := self.dispatcher.take()) is not None:
            taken.append(work)
        return taken

    def take(self) -> Work:
        work = self.dispatcher.take()
        assert work is not None
        return work

    def tick(self, seconds: float = 0.0) -> None:
        """Lets time pass with a tick each second, as the loop's are never far apart."""
        while seconds > 1.0:
            self.clock.advance(1.0)
            self.dispatcher.tick()
            seconds -= 1.0
        self.clock.advance(seconds)
        self.dispatcher.tick()
        self.reporter.delivery.poll()

    def results(self) -> list[Result]:
        """What was reported and delivered, in order."""
        self.reporter.delivery.poll()
        return [decode_result(record.value()) for record in self.producer.delivered_to(POOL.results)]

    def outcomes(self) -> list[tuple[str, str]]:
        return [(result.request_id, result.reason) for result in self.results()]

    def retries(self) -> list[tuple[str, int]]:
        """What was sent to retry topics and delivered, in order: the topic, and the attempt asked for."""
        self.reporter.delivery.poll()
        return [
            (str(record.topic()), read_history(record.headers()).attempt)
            for record in self.producer.delivered
            if record.topic() in POOL.retries
        ]


def works(count: int, *, assignment: Assignment | None = None, first: int = 0, ttl_ms: int = 60_000) -> list[Work]:
    assignment = assignment or make_assignment()
    return [make_work(assignment, offset=first + number, ttl_ms=ttl_ms) for number in range(count)]


def test_no_more_start_than_the_limit_allows_and_each_end_lets_one_start() -> None:
    stage = Stage(limit=3)
    stage.accept(*works(5))
    taken = stage.take_all()
    assert [work.offset for work in taken] == [0, 1, 2]
    assert stage.limited_by() == "limit"
    stage.dispatcher.answered(taken[1], ANSWER)
    assert [work.offset for work in stage.take_all()] == [3]


def test_a_request_that_is_past_its_deadline_on_arrival_is_reported_and_never_started() -> None:
    stage = Stage()
    stage.clock.advance(1.0)
    stage.accept(*works(1, ttl_ms=1_000))
    assert stage.dispatcher.take() is None
    assert stage.outcomes() == [("r-0", "deadline_passed_waiting")]


def test_a_request_that_expires_in_its_lane_is_reported_and_never_started() -> None:
    stage = Stage(limit=1)
    stage.accept(*works(2, ttl_ms=1_000))
    running = stage.take()
    stage.clock.advance(2.0)
    stage.dispatcher.gave_up(running, deadline_passed=True)
    assert stage.dispatcher.take() is None
    assert stage.outcomes() == [("r-0", "deadline_passed_running"), ("r-1", "deadline_passed_waiting")]


def test_the_expired_are_reported_although_nothing_starts() -> None:
    stage = Stage(limit=1)
    stage.accept(*works(2, ttl_ms=1_000))
    stage.take()
    stage.tick(1.0)
    assert stage.outcomes() == [("r-1", "deadline_passed_waiting")]


def test_running_requests_past_their_deadline_are_named_to_be_cancelled() -> None:
    stage = Stage()
    stage.accept(*works(1, ttl_ms=1_000), *works(1, first=1, ttl_ms=2_000))
    first, _ = stage.take_all()
    assert stage.dispatcher.overdue() == []
    stage.clock.advance(1.0)
    assert stage.dispatcher.overdue() == [first]


@pytest.mark.parametrize("when", ["on the way here", "in its lane", "in its lane, expired"])
def test_what_was_given_up_is_neither_started_nor_reported(when: str) -> None:
    stage = Stage()
    assignment = make_assignment()
    batch = [*works(1, assignment=assignment, ttl_ms=1_000), make_work(assignment, offset=1, value=b"garbage")]
    if when == "on the way here":
        assignment.claims.close()
        stage.clock.advance(2.0)
        stage.accept(*batch)
    else:
        stage.accept(*batch[:1])
        assignment.claims.close()
        if when.endswith("expired"):
            stage.clock.advance(2.0)
    assert stage.dispatcher.take() is None
    stage.tick()
    assert stage.outcomes() == []
    assert stage.producer.delivered == []
    assert list(assignment.done) == []


@pytest.mark.parametrize("retries_max", [0, 3])
def test_a_failure_of_a_request_that_was_lost_decides_nothing(retries_max: int) -> None:
    """Its new owner runs it again, and nobody tells that one not to."""
    stage = Stage(retries_max=retries_max)
    stage.accept(*works(1))
    work = stage.take()
    work.assignment.lost = True
    work.assignment.claims.close()
    stage.dispatcher.failed(work, Failure(reason=Reason.BACKEND_ERROR, error="HTTP 500"))
    assert (stage.outcomes(), stage.retries(), list(work.assignment.done)) == ([], [], [])


@pytest.mark.parametrize("how", ["answered", "failed", "failed, and tried again", "overdue"])
def test_what_runs_on_after_it_was_handed_over_has_its_outcome_from_here(how: str) -> None:
    """Its new owner withholds it until it is told."""
    stage = Stage(retries_max=3 if how == "failed, and tried again" else 0)
    stage.accept(*works(1))
    work = stage.take()
    work.assignment.claims.close()
    failure = Failure(reason=Reason.BACKEND_ERROR, error="HTTP 500")
    if how == "answered":
        stage.dispatcher.answered(work, ANSWER)
    elif how == "overdue":
        stage.clock.advance(60.0)
        stage.dispatcher.gave_up(work, deadline_passed=True)
    else:
        stage.dispatcher.failed(work, failure)
    assert len(stage.outcomes()) + len(stage.retries()) == 1
    assert list(work.assignment.done) == [0]


def test_what_the_backend_refuses_after_it_was_handed_over_is_given_back() -> None:
    """It cannot wait in a lane here: the partition is another one's. That it no longer runs is told."""
    stage = Stage()
    stage.accept(*works(1))
    work = stage.take()
    work.assignment.claims.close()
    stage.dispatcher.failed(work, REFUSED)
    assert work.assignment.claims.running() == ()
    assert len(stage.dispatcher.lanes) == 0
    assert (stage.outcomes(), list(work.assignment.done)) == ([], [])


def test_what_cannot_be_decoded_is_rejected_and_kept() -> None:
    stage = Stage()
    work = make_work(offset=7, value=b'{"request_id": "r-7", "biz_type"')
    stage.accept(work)
    assert stage.outcomes() == [("r-7", "undecodable")]
    (letter,) = stage.producer.delivered_to(POOL.dead_letter)
    assert letter.value() == b'{"request_id": "r-7", "biz_type"'
    assert list(work.assignment.done) == [7]


def test_while_it_stops_nothing_starts() -> None:
    stage = Stage()
    stage.accept(*works(1))
    stage.dispatcher.stopping = True
    assert stage.dispatcher.take() is None
    assert stage.limited_by() == "draining"
    assert len(stage.dispatcher.lanes) == 1


def test_what_is_given_back_when_it_stops_is_neither_reported_nor_claimed() -> None:
    stage = Stage()
    stage.accept(*works(1))
    work = stage.take()
    assert work.assignment.claims.running() == (0,)
    stage.dispatcher.gave_up(work, deadline_passed=False)
    assert work.assignment.claims.running() == ()
    assert stage.outcomes() == []
    assert list(work.assignment.done) == []


def test_what_cannot_be_reported_is_not_started() -> None:
    stage = Stage()
    stage.accept(*works(3))
    first = stage.take()
    stage.producer.holding = True
    stage.dispatcher.answered(first, ANSWER)
    stage.tick(DELIVERY_STALL_SECONDS)
    assert stage.dispatcher.take() is None
    assert stage.limited_by() == "results"
    stage.producer.holding = False
    stage.tick()
    assert stage.dispatcher.take() is not None


# Who is charged


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
    poison.failed_at, poison.failures_among_answers = stage.clock.monotonic(), FAILURES_AMONG_ANSWERS_MAX - 1
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
    stage.dispatcher.controls.hear(Control(action=ControlAction.CANCEL, request_id="r-0", at=0, by="t"), NOW_MS)
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


# What becomes of a failure that is charged


FAILED = Failure(reason=Reason.BACKEND_ERROR, error="HTTP 500")


def test_a_failure_is_tried_again_later_and_holds_no_slot_meanwhile() -> None:
    stage = Stage(limit=1, retries_max=3)
    stage.accept(*works(2))
    first = stage.take()
    stage.dispatcher.failed(first, FAILED)
    assert stage.retries() == [(POOL.retry(Tier.MID, 1), 2)]
    assert stage.outcomes() == []
    assert list(first.assignment.done) == [0]
    assert stage.take().offset == 1


@pytest.mark.parametrize(
    ("attempt", "retries_max", "own_max", "delay_seconds"),
    [
        (1, 3, None, 1),
        (2, 3, None, 5),
        (3, 3, None, 30),
        (4, 3, None, None),
        (1, 0, None, None),
        (5, 9, None, 30),
        # What the request itself asks for counts.
        (1, 3, 1, None),
        (2, 3, 2, None),
        (4, 3, 6, 30),
    ],
)
def test_retries_come_after_growing_delays_until_they_are_used_up(
    attempt: int, retries_max: int, own_max: int | None, delay_seconds: int | None
) -> None:
    stage = Stage(retries_max=retries_max)
    headers: list[tuple[str, bytes | None]] = [("forebay-attempt", str(attempt).encode())]
    stage.accept(make_work(headers=headers, ttl_ms=600_000, max_attempts=own_max))
    stage.dispatcher.failed(stage.take(), FAILED)
    if delay_seconds is None:
        assert (stage.retries(), stage.outcomes()) == ([], [("r-0", "backend_error")])
        assert len(stage.producer.delivered_to(POOL.dead_letter)) == 1
    else:
        assert stage.retries() == [(POOL.retry(Tier.MID, delay_seconds), attempt + 1)]
        assert stage.outcomes() == []


def test_what_would_come_too_late_is_not_tried_again() -> None:
    stage = Stage(retries_max=3)
    stage.accept(*works(1, ttl_ms=1_000))
    stage.dispatcher.failed(stage.take(), FAILED)
    assert (stage.retries(), stage.outcomes()) == ([], [("r-0", "retry_too_late")])
    assert stage.results()[0].error == "HTTP 500"
    assert stage.producer.delivered_to(POOL.dead_letter) == []


@pytest.mark.parametrize(
    ("failure", "is_tried_again"),
    [
        (Failure(reason=Reason.BACKEND_ERROR, error="HTTP 500"), True),
        (Failure(reason=Reason.BACKEND_TIMEOUT, error="too late"), True),
        (Failure(reason=Reason.BACKEND_REJECTED, error="HTTP 422"), False),
        (Failure(reason=Reason.UNKNOWN_BIZ_TYPE, error="no"), False),
        # The list of statuses is a setting: it beats what the reason says.
        (Failure(reason=Reason.BACKEND_ERROR, error="HTTP 501", retryable=False), False),
        (Failure(reason=Reason.BACKEND_REJECTED, error="HTTP 425", retryable=True), True),
    ],
)
def test_only_what_may_succeed_later_is_tried_again(failure: Failure, is_tried_again: bool) -> None:
    stage = Stage(retries_max=3)
    stage.accept(*works(1))
    stage.dispatcher.failed(stage.take(), failure)
    assert len(stage.retries()) == is_tried_again
    assert len(stage.producer.delivered_to(POOL.dead_letter)) == 1 - is_tried_again


def test_a_request_that_ran_alone_when_its_worker_died_is_not_run_again() -> None:
    stage = Stage()
    crashed, once = works(2)
    crashed.crashes, once.crashes = CONVICTED_CRASHES, CONVICTED_CRASHES - 2
    stage.accept(crashed, once)
    assert stage.take_all() == [once]
    assert stage.outcomes() == [("r-0", "worker_crashed")]
    assert [record.offset() for record in (crashed.record,)] == list(crashed.assignment.done)
    assert len(stage.producer.delivered_to(POOL.dead_letter)) == 1


def test_a_cancel_that_another_thread_has_just_heard_holds_for_what_is_accepted_after_it() -> None:
    stage = Stage()
    cancel = Control(action=ControlAction.CANCEL, request_id="r", at=0, by="me")
    stage.dispatcher.controls.heard.append((cancel, NOW_MS))
    stage.accept(make_work(request_id="r"))
    assert stage.dispatcher.take() is None
    assert [result.status for result in stage.results()] == [Status.CANCELLED]


def test_a_request_whose_outcome_is_known_is_skipped() -> None:
    """A producer that sends it twice, to whatever partition; or a partition that was lost and came back."""
    stage = Stage()
    first = make_work(offset=0, request_id="same")
    again = make_work(make_assignment(partition=1), offset=9, request_id="same")
    stage.accept(first)
    stage.dispatcher.answered(stage.take(), ANSWER)
    assert len(stage.results()) == 1
    stage.accept(again)
    assert stage.dispatcher.take() is None
    assert list(again.assignment.done) == [9]
    assert len(stage.results()) == 1
    assert stage.stats.duplicates[Tier.MID] == 1


@pytest.mark.parametrize(
    "header", [("forebay-replay-count", b"1"), ("forebay-attempt", b"2")], ids=["a replay", "a retry"]
)
def test_what_is_meant_to_run_again_is_not_taken_for_a_duplicate(header: tuple[str, bytes]) -> None:
    stage = Stage(retries_max=3)
    stage.accept(make_work(offset=0, request_id="same"))
    work = stage.take()
    if header[0] == "forebay-attempt":
        stage.dispatcher.failed(work, FAILED)
    else:
        stage.dispatcher.answered(work, ANSWER)
    stage.results()
    stage.accept(make_work(offset=1, request_id="same", headers=[header]))
    assert stage.take().offset == 1


@pytest.mark.parametrize("end", ["undecodable", "crashed", "expired on arrival", "expired in its lane"])
def test_what_ends_without_running_is_handed_over_too_while_its_outcome_is_on_its_way(end: str) -> None:
    """Else its new owner would end it a second time."""
    stage = Stage()
    work = make_work(ttl_ms=1_000, value=b"garbage" if end == "undecodable" else None)
    work.crashes = CONVICTED_CRASHES if end == "crashed" else 0
    stage.producer.holding = True
    if end == "expired on arrival":
        stage.clock.advance(2.0)
    stage.accept(work)
    stage.tick(2.0)
    running, _ = work.assignment.close()
    assert running == (0,)
    assert list(work.assignment.done) == []
    stage.producer.holding = False
    stage.tick()
    assert list(work.assignment.done) == [0]


# Overload


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
    assert stage.dispatcher.shedder.waits() == {}
    assert stage.dispatcher.shedder.ladder.shed_tiers == ()


def test_requests_of_a_partition_given_up_leave_the_lanes_within_a_sweep() -> None:
    stage = Stage()
    gone, kept = make_assignment(partition=0), make_assignment(partition=1)
    stage.accept(*works(10, assignment=gone), *works(10, assignment=kept, first=50))
    gone.claims.close()
    stage.tick(0.2)
    assert len(stage.dispatcher.lanes[Tier.MID]) == 10
    assert stage.outcomes() == []


# How much intake may take


def room_bytes(credit: Credit) -> int:
    """How many bytes may be handed over now, as far as a lane can hold them."""
    room = 0
    while credit.room_records > 0:
        room += 1_000
        credit.spend(0, 1_000)
    credit.spend(0, -room)
    return room


def test_at_the_start_each_tier_may_take_the_least_lookahead() -> None:
    stage = Stage()
    for credit in stage.dispatcher.lookahead.credits.values():
        assert credit.room_records == BOUNDS.lookahead_records_min
        assert room_bytes(credit) == BUFFER_BYTES // 3


def test_the_lookahead_follows_the_rate_up_to_the_buffers_bytes() -> None:
    stage = Stage(limit=1000, buffer_bytes_max=3 * 1_000_000)
    assignment = make_assignment(Tier.LOW)
    for second in range(2):
        batch = works(100, assignment=assignment, first=second * 100)
        stage.accept(*batch)
        for work in stage.take_all():
            stage.dispatcher.answered(work, ANSWER)
        stage.tick(1.0)
    stage.tick(0.1)
    # A hundred a second for a day would be eight million.
    low = stage.dispatcher.lookahead.credits[Tier.LOW]
    assert low.capacity_records == 1_000_000 // 1_500
    assert stage.dispatcher.lookahead.credits[Tier.HIGH].capacity_records == 100 * 5


def test_the_lookahead_reaches_as_far_as_the_tiers_deadline() -> None:
    stage = Stage(limit=1000, buffer_bytes_max=60_000_000, tier_times=tier_times({Tier.HIGH: 60_000}, {}))
    served_for(stage, 2, per_second=100, assignment=make_assignment(Tier.HIGH))
    stage.tick(0.1)
    assert stage.dispatcher.lookahead.credits[Tier.HIGH].capacity_records == 100 * 60


def served_for(stage: Stage, seconds: int, *, per_second: int, assignment: Assignment) -> None:
    """So many requests a second come and are answered."""
    for second in range(seconds):
        stage.accept(*works(per_second, assignment=assignment, first=second * per_second))
        for work in stage.take_all():
            stage.dispatcher.answered(work, ANSWER)
        stage.tick(1.0)


def test_the_lookahead_shrinks_with_a_backend_that_slows_down() -> None:
    """What could start before mid's 30 s: nothing more is taken out of Kafka while the lane holds as much."""
    stage = Stage(limit=1_000, buffer_bytes_max=300_000_000)
    mid = stage.dispatcher.lookahead.credits[Tier.MID]
    assignment = make_assignment(Tier.MID, credit=mid)
    served_for(stage, 5, per_second=100, assignment=assignment)
    stage.tick(0.1)
    assert mid.capacity_records == 100 * 30
    served_for(stage, 20, per_second=4, assignment=assignment)
    stage.tick(0.1)
    assert mid.capacity_records == BOUNDS.lookahead_records_min
    batch = works(BOUNDS.lookahead_records_min + 1, assignment=assignment, first=1_000)
    mid.spend(mid.room_records, 0)  # what the fast backend was allowed is never taken back
    stage.accept(*batch)
    stage.tick(0.2)
    assert mid.room_records <= 0


def test_what_the_backend_refuses_does_not_count_as_done() -> None:
    stage = Stage(limit=1_000)
    stage.accept(*works(100))
    for work in stage.take_all():
        stage.dispatcher.failed(work, REFUSED)
    stage.tick(1.0)
    assert stage.dispatcher.lookahead.rate_per_second == 0


def test_due_retries_join_a_full_lane_up_to_twice_its_capacity() -> None:
    """They waited at a tail once already."""
    stage = Stage()
    requests, retries = stage.dispatcher.lookahead.credits[Tier.MID], stage.dispatcher.lookahead.retry_credits[Tier.MID]
    assert retries.room_records == BOUNDS.retry_room_records
    batch = works(BOUNDS.lookahead_records_min, assignment=make_assignment(credit=requests))
    requests.spend(len(batch), cost_bytes(batch))
    stage.accept(*batch)
    assert requests.room_records == 0
    late = make_assignment(credit=retries, retry_delay_seconds=5)
    for number in range(BOUNDS.retry_room_records):
        [work] = works(1, assignment=late, first=1_000 + number)
        assert retries.room_records > 0
        retries.spend(1, cost_bytes([work]))
        stage.accept(work)
    assert retries.room_records == 0
    taken = stage.take_all()
    for work in taken:
        stage.dispatcher.answered(work, ANSWER)
    stage.tick(1.0)
    assert requests.room_records == 0, "the lane is still fuller than requests alone may make it"
    assert retries.room_records == len(taken)


class CreditModel(RuleBasedStateMachine):
    """An intake that takes all it may, and every way in which a request can leave dispatch."""

    @initialize(limit=st.integers(1, 6), buffer_kib=st.integers(30, 3_000))
    def start(self, limit: int, buffer_kib: int) -> None:
        self.stage = Stage(limit=limit, buffer_bytes_max=buffer_kib * 1024)
        self.limit = limit
        self.lane_bytes_max = buffer_kib * 1024 // 3
        self.tier = Tier.MID
        self.assignment = self.new_assignment()
        self.next_offset = 0
        self.transit: list[Work] = []
        self.running: list[Work] = []
        self.capacity_max = BOUNDS.lookahead_records_min
        self.largest = 0

    @property
    def credit(self) -> Credit:
        return self.stage.dispatcher.lookahead.credits[self.tier]

    def new_assignment(self) -> Assignment:
        return make_assignment(self.tier, credit=self.credit)

    @rule(
        count=st.integers(1, 300),
        size=st.sampled_from([0, 100, 3_000, 50_000]),
        ttl_ms=st.sampled_from([500, 60_000]),
        kind=st.sampled_from(["fine", "garbage"]),
    )
    def intake(self, count: int, size: int, ttl_ms: int, kind: str) -> None:
        for _ in range(count):
            if self.credit.room_records <= 0:
                break
            value = b"x" * (size + 1) if kind == "garbage" else None
            payload = {"x": "y" * size}
            age_ms = int((self.stage.clock.monotonic() - 1_000.0) * 1000)
            work = make_work(
                self.assignment, offset=self.next_offset, value=value, payload=payload, ttl_ms=ttl_ms + age_ms
            )
            self.next_offset += 1
            self.credit.spend(1, cost_bytes([work]))
            self.largest = max(self.largest, cost_bytes([work]))
            self.transit.append(work)

    @rule()
    def deliver(self) -> None:
        batch, self.transit = self.transit, []
        if batch:
            self.stage.accept(*batch)

    @rule()
    def dispatch(self) -> None:
        self.running += self.stage.take_all()

    @precondition(lambda self: self.running)
    @rule(end=st.sampled_from(["answered", "refused", "failed", "rejected", "overdue", "given back"]))
    def finish(self, end: str) -> None:
        work = self.running.pop(0)
        dispatcher = self.stage.dispatcher
        match end:
            case "answered":
                dispatcher.answered(work, ANSWER)
            case "refused":
                dispatcher.failed(work, REFUSED)
            case "failed":
                dispatcher.failed(work, status_failure(500))
            case "rejected":
                dispatcher.failed(work, Failure(reason=Reason.BACKEND_REJECTED, error="no"))
            case _:
                dispatcher.gave_up(work, deadline_passed=end == "overdue")

    @rule()
    def revoke_and_assign_again(self) -> None:
        self.assignment.claims.close()
        self.assignment = self.new_assignment()

    @rule(seconds=st.sampled_from([0.02, 0.5, 5.0, 61.0]))
    def pass_time(self, seconds: float) -> None:
        self.stage.tick(seconds)

    @invariant()
    def never_more_than_the_capacity(self) -> None:
        dispatcher = self.stage.dispatcher
        self.capacity_max = max(self.capacity_max, dispatcher.lookahead.credits[self.tier].capacity_records)
        lane = dispatcher.lanes[self.tier]
        ahead = len(lane) + len(self.transit)
        # What comes back from the backend was running: there are at most as many as the limit, and the suspects.
        suspects_max = 1 + SUSPECTS_MAX
        assert ahead <= self.capacity_max + self.limit + suspects_max
        ahead_bytes = lane.size_bytes + cost_bytes(self.transit)
        assert ahead_bytes < self.lane_bytes_max + (self.limit + suspects_max + 1) * self.largest or not ahead
        assert len(dispatcher.running) <= self.limit

    @invariant()
    def an_empty_lane_may_be_filled_again(self) -> None:
        """Nothing that a request can go through keeps its credit for ever."""
        dispatcher = self.stage.dispatcher
        if not dispatcher.lanes and not self.transit:
            self.stage.tick(0.2)
            self.running = [work for work in self.running if id(work) in dispatcher.running]
            if not dispatcher.lanes:
                assert self.credit.room_records >= BOUNDS.lookahead_records_min
                self.credit.spend(0, self.lane_bytes_max - 1)
                assert self.credit.room_records > 0, "not all of its bytes"
                self.credit.spend(0, 1 - self.lane_bytes_max)


TestCreditModel = CreditModel.TestCase
TestCreditModel.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


@pytest.mark.parametrize("when", ["on the way here", "in its lane", "waiting for a commit"])
def test_what_is_read_again_from_a_topic_made_anew_does_not_start_as_the_old_one_s(when: str) -> None:
    """What was written before belongs to the old one, and runs."""
    stage = Stage()
    assignment = make_assignment()
    assignment.claims.is_announced = when != "waiting for a commit"
    batch = [make_work(assignment, offset=0), make_work(assignment, offset=1, enqueued_at=NOW_MS + 5_000)]
    if when == "on the way here":
        assignment.void_from_ms = NOW_MS + 4_000
    stage.accept(*batch)
    if when == "waiting for a commit":
        assert stage.take_all() == []
        assignment.claims.is_announced = True
    assignment.void_from_ms = NOW_MS + 4_000
    assert [work.offset for work in stage.take_all()] == [0]
    assert assignment.claims.running() == (0,)
    assert stage.outcomes() == []


def test_what_ended_as_the_old_topic_s_is_not_run_again_as_the_new_one_s() -> None:
    stage = Stage()
    old, new = make_assignment(), make_assignment()
    new.reread_below = 2
    stage.accept(make_work(old, offset=1))
    running = stage.take()
    stage.accept(make_work(new, offset=1))
    stage.dispatcher.answered(running, ANSWER)
    stage.results()
    assert stage.take_all() == []
    assert stage.outcomes() == [("r-1", "completed")]
    assert list(new.done) == [1]
