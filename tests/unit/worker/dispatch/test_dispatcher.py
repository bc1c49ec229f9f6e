"""Dispatch: what starts, what never does, and what happens to it when its partition is given up."""

from __future__ import annotations

import pytest

from forebay_schemas.contract.control import Control, ControlAction
from forebay_schemas.contract.reasons import Reason, Status
from forebay_schemas.contract.tiers import Tier
from forebay_worker.outcome.delivery import DELIVERY_STALL_SECONDS
from forebay_worker.partition.assignment import CONVICTED_CRASHES
from forebay_worker.request.work import Failure
from simulated.dispatch import ANSWER, FAILED, REFUSED, Stage, works
from simulated.ports import NOW_MS
from simulated.works import POOL, make_assignment, make_work


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
    stage.dispatcher.controls.received.append((cancel, NOW_MS))
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


def test_requests_of_a_partition_given_up_leave_the_lanes_within_a_sweep() -> None:
    stage = Stage()
    gone, kept = make_assignment(partition=0), make_assignment(partition=1)
    stage.accept(*works(10, assignment=gone), *works(10, assignment=kept, first=50))
    gone.claims.close()
    stage.tick(0.2)
    assert len(stage.dispatcher.lanes[Tier.MID]) == 10
    assert stage.outcomes() == []


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
