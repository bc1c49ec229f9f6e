"""Records of the same request in one worker: one runs, and the others are finished with its outcome, not before."""

from __future__ import annotations

from typing import Any

import pytest

from forebay_schemas.contract.control import Control, ControlAction
from forebay_schemas.contract.headers import ATTEMPT, EXPEDITED_FROM, EXPEDITED_TIER, FIRST_ENQUEUED_AT, REPLAY_COUNT
from forebay_schemas.contract.reasons import Reason
from forebay_schemas.contract.tiers import Tier
from forebay_worker.outcome.delivery import NEW_PARTITION_SECONDS
from forebay_worker.request.copies import PURGE_MIN
from forebay_worker.request.memory import RECORD_OVERHEAD_BYTES, cost_bytes
from forebay_worker.request.work import Work
from simulated.dispatch import ANSWER, FAILED, Stage
from simulated.outcomes import NO_PARTITION, is_finished
from simulated.ports import NOW_MS
from simulated.works import POOL, make_assignment, make_work


def same(offset: int = 0, *, partition: int = 0, tier: Tier = Tier.MID, attempt: int = 1, **fields: Any) -> Work:
    """A record of request ``same`` in a partition of its own assignment."""
    headers: list[tuple[str, bytes | None]] = []
    if attempt > 1:
        headers = [(ATTEMPT, b"%d" % attempt), (FIRST_ENQUEUED_AT, b"%d" % NOW_MS)]
    headers += fields.pop("headers", [])
    assignment = make_assignment(tier, partition=partition)
    return make_work(assignment, offset=offset, headers=headers, **{"request_id": "same", **fields})


def control(action: ControlAction, *, at_ms: int) -> tuple[Control, int]:
    return Control(action=action, request_id="same", topic=None, partition=None, offset=None, at=0, by="test"), at_ms


def places(stage: Stage) -> list[tuple[int, Any]]:
    """Partition and reply of each result."""
    return [
        (record.partition(), result.reply)
        for record, result in zip(stage.producer.delivered_to(POOL.results), stage.results(), strict=True)
    ]


@pytest.mark.parametrize("runs", [False, True])
@pytest.mark.parametrize("payload", [{}, {"another": True}])
def test_an_id_that_is_here_is_not_started_again_and_its_copies_end_with_it(
    runs: bool, payload: dict[str, Any]
) -> None:
    stage = Stage()
    first, copies = same(), [same(number, partition=number, payload=payload) for number in (1, 2)]
    stage.accept(first)
    if runs:
        assert stage.take() is first
    for copy in copies:
        stage.accept(copy)
    assert stage.take_all() == ([] if runs else [first])
    assert stage.dispatcher.slots.by_tier[Tier.MID] == 1
    stage.producer.holding = True
    stage.dispatcher.answered(first, ANSWER)
    stage.tick(1.0)
    assert not any(map(is_finished, [first, *copies]))
    stage.producer.holding = False
    stage.tick()
    assert all(map(is_finished, [first, *copies]))
    assert stage.outcomes() == [("same", "completed")]
    assert stage.stats.copies[Tier.MID] == 2
    assert len(stage.reporter.copies) == 0
    assert stage.reporter.copies.size_bytes[Tier.MID] == 0
    assert stage.settled()


def test_a_copy_that_comes_while_the_outcome_is_on_its_way_ends_with_it() -> None:
    stage = Stage()
    first, copy = same(), same(1, partition=1)
    stage.accept(first)
    stage.dispatcher.answered(stage.take(), ANSWER)
    stage.accept(copy)
    assert not is_finished(copy)
    stage.tick()
    assert is_finished(copy)
    assert stage.outcomes() == [("same", "completed")]


def test_one_that_comes_after_the_outcome_is_skipped_as_before() -> None:
    stage = Stage()
    stage.accept(same())
    stage.dispatcher.answered(stage.take(), ANSWER)
    stage.tick()
    late = same(1, partition=1)
    stage.accept(late)
    assert is_finished(late)
    assert (stage.stats.duplicates[Tier.MID], stage.stats.copies[Tier.MID]) == (1, 0)


def test_a_replay_is_another_request_of_the_same_id() -> None:
    stage = Stage()
    first, replay = same(), same(1, headers=[(REPLAY_COUNT, b"1")])
    stage.accept(first)
    stage.accept(replay)
    assert stage.take_all() == [first, replay]


# Other endings of the first.


def test_a_copy_is_superseded_by_the_retry_of_the_first_once_that_is_durable() -> None:
    stage = Stage(retries_max=1)
    first, copy = same(), same(1, partition=1, reply={"partition": 5})
    stage.accept(first)
    stage.accept(copy)
    stage.take()
    stage.producer.holding = True
    stage.dispatcher.failed(first, FAILED)
    stage.dispatcher.answered(work_beside(stage), ANSWER)  # charges it
    assert stage.retries() == []
    assert not is_finished(copy)
    stage.producer.holding = False
    stage.tick()
    assert stage.retries() == [(POOL.retry(Tier.MID, 1), 2)]
    assert is_finished(first)
    assert is_finished(copy)
    assert "same" not in [result.request_id for result in stage.results()]


def work_beside(stage: Stage) -> Work:
    """Another request, started."""
    stage.accept(make_work(make_assignment(), offset=99))
    return stage.take()


def test_the_retry_itself_is_no_copy_of_what_it_comes_from() -> None:
    stage = Stage(retries_max=3)
    first = same()
    stage.accept(first)
    stage.take()
    stage.producer.holding = True
    stage.dispatcher.failed(first, FAILED)
    stage.dispatcher.answered(work_beside(stage), ANSWER)
    # It was written, and its worker does not know that yet.
    retry, copy = same(attempt=2, partition=3), same(1, partition=1)
    stage.accept(retry)
    stage.accept(copy)
    stage.producer.holding = False
    stage.tick()
    assert is_finished(first)
    assert not is_finished(retry)
    assert not is_finished(copy)
    assert stage.take() is retry
    stage.dispatcher.answered(retry, ANSWER)
    stage.tick()
    assert is_finished(retry)
    assert is_finished(copy)


def test_what_was_expedited_is_no_copy_of_what_it_comes_from() -> None:
    stage = Stage()
    first, copy = same(), same(1, partition=1)
    stage.accept(first)
    stage.accept(copy)
    stage.producer.holding = True
    stage.dispatcher.controls.receive(*control(ControlAction.EXPEDITE, at_ms=stage.clock.wall_ms()))
    stage.tick()
    moved = same(tier=Tier.HIGH, headers=[(EXPEDITED_FROM, b"forebay.test.requests.mid:0:0"), (EXPEDITED_TIER, b"mid")])
    stage.accept(moved)
    stage.producer.holding = False
    stage.tick()
    assert [is_finished(each) for each in (first, copy, moved)] == [True, True, False]
    assert stage.take() is moved


@pytest.mark.parametrize("runs", [False, True])
def test_a_cancel_ends_all_of_an_id_with_one_result(runs: bool) -> None:
    stage = Stage()
    first, copy = same(), same(1, partition=1)
    stage.accept(first)
    stage.accept(copy)
    if runs:
        stage.take()
    stage.dispatcher.controls.receive(*control(ControlAction.CANCEL, at_ms=stage.clock.wall_ms()))
    stage.tick()
    if runs:
        assert stage.dispatcher.overdue() == [first]
        stage.dispatcher.gave_up(first, deadline_passed=True)
    stage.tick()
    assert stage.outcomes() == [("same", "cancelled")]
    assert is_finished(first)
    assert is_finished(copy)


def test_the_deadline_of_a_copy_decides_nothing() -> None:
    stage = Stage()
    first, copy = same(ttl_ms=60_000), same(1, partition=1, ttl_ms=1_000)
    stage.accept(first)
    stage.accept(copy)
    stage.take()
    stage.tick(5.0)
    assert stage.outcomes() == []
    stage.dispatcher.answered(first, ANSWER)
    stage.tick()
    assert stage.outcomes() == [("same", "completed")]
    assert is_finished(copy)


def test_a_first_that_expires_takes_its_copies_along() -> None:
    stage = Stage()
    first, copy = same(ttl_ms=1_000), same(1, partition=1, ttl_ms=60_000)
    stage.accept(first)
    stage.accept(copy)
    stage.tick(2.0)
    stage.tick()
    assert stage.outcomes() == [("same", Reason.DEADLINE_PASSED_WAITING.code)]
    assert is_finished(copy)


def test_a_more_urgent_copy_of_what_waits_takes_its_place() -> None:
    stage = Stage(limit=1)
    blocker = work_beside(stage)
    low, high = same(tier=Tier.LOW), same(1, tier=Tier.HIGH)
    stage.accept(low)
    stage.accept(make_work(make_assignment(), offset=100))
    stage.accept(high)
    stage.dispatcher.answered(blocker, ANSWER)
    assert stage.take() is high
    again = same(2, tier=Tier.HIGH, priority=10)
    stage.accept(again)  # too late: it runs
    stage.dispatcher.answered(high, ANSWER)
    stage.tick()
    assert all(map(is_finished, [low, high, again]))
    assert [result.tier for result in stage.results() if result.request_id == "same"] == ["high"]


def test_a_more_urgent_copy_does_not_start_attempts_anew() -> None:
    stage = Stage()
    retry, copy = same(attempt=2), same(1, partition=1, priority=10)
    stage.accept(retry)
    stage.accept(copy)
    assert stage.take_all() == [retry]


# Partitions that go.


def test_a_copy_takes_the_place_of_a_first_whose_partition_was_revoked_while_it_waited() -> None:
    stage = Stage(limit=1)
    blocker = work_beside(stage)
    first, second, third = same(), same(1, partition=1), same(2, partition=2)
    for work in (first, second, third):
        stage.accept(work)
    first.assignment.close()
    stage.tick(1.0)
    stage.dispatcher.answered(blocker, ANSWER)
    assert stage.take() is second
    assert stage.take_all() == []
    stage.dispatcher.answered(second, ANSWER)
    stage.tick()
    assert [is_finished(work) for work in (first, second, third)] == [False, True, True]


def test_a_first_that_runs_while_its_partition_is_revoked_goes_on_standing_for_its_id() -> None:
    stage = Stage()
    first, copy = same(), same(1, partition=1)
    stage.accept(first)
    stage.accept(copy)
    stage.take()
    first.assignment.close()
    stage.tick(1.0)
    assert stage.take_all() == []
    stage.dispatcher.answered(first, ANSWER)
    stage.tick()
    assert is_finished(first)
    assert is_finished(copy)


def test_a_first_that_was_lost_and_failed_leaves_its_copy_to_run() -> None:
    stage = Stage()
    first, copy = same(), same(1, partition=1)
    stage.accept(first)
    stage.accept(copy)
    stage.take()
    first.assignment.lost = True
    first.assignment.close()
    stage.dispatcher.failed(first, FAILED)
    stage.dispatcher.answered(work_beside(stage), ANSWER)
    stage.tick(1.0)
    assert stage.take() is copy


def test_a_copy_whose_partition_was_revoked_is_its_new_owners() -> None:
    stage = Stage()
    first, copy = same(), same(1, partition=1, reply={"partition": 5})
    stage.accept(first)
    stage.accept(copy)
    stage.take()
    copy.assignment.close()
    stage.dispatcher.answered(first, ANSWER)
    stage.tick(1.0)
    assert is_finished(first)
    assert not is_finished(copy)
    assert [place for place, _ in places(stage)] == [0]
    assert stage.stats.copies[Tier.MID] == 0


def test_copies_of_revoked_partitions_are_forgotten() -> None:
    stage = Stage()
    first, copy = same(), same(1, partition=1)
    stage.accept(first)
    stage.accept(copy)
    stage.take()
    copy.assignment.close()
    stage.tick(1.0)
    assert len(stage.reporter.copies) == 0
    assert stage.reporter.copies.size_bytes[Tier.MID] == 0


def test_requests_of_revoked_partitions_are_forgotten() -> None:
    stage = Stage()
    assignment = make_assignment()
    waiting = [make_work(assignment, offset=offset) for offset in range(PURGE_MIN // 10)]
    stage.accept(*waiting)
    assert len(stage.reporter.copies._firsts) == len(waiting)
    assignment.close()
    stage.tick(1.0)
    assert len(stage.reporter.copies._firsts) == 0


def test_nothing_is_remembered_of_what_ended() -> None:
    stage = Stage()
    works = [make_work(make_assignment(), offset=offset) for offset in range(4)]
    stage.accept(*works)
    for work in stage.take_all():
        stage.dispatcher.answered(work, ANSWER)
    stage.tick()
    assert len(stage.reporter.copies._firsts) == 0


# Where their result is awaited.


def test_the_result_is_also_written_where_a_copy_awaits_it() -> None:
    stage = Stage()
    first = same(reply={"partition": 3, "job": "a"})
    copies = [
        same(1, partition=1, reply={"partition": 3, "job": "b"}),
        same(2, partition=2, reply={"partition": 5, "job": "c"}),
        same(3, partition=3),
        same(4, partition=4, reply={"partition": 5, "job": "d"}),
    ]
    for work in (first, *copies):
        stage.accept(work)
    stage.dispatcher.answered(stage.take(), ANSWER)
    stage.producer.fail = lambda record: NO_PARTITION if record.partition() == 9 else None
    stage.tick()
    assert places(stage) == [(3, {"partition": 3, "job": "a"}), (5, {"partition": 5, "job": "c"})]
    assert {result.body["ok"] for result in stage.results()} == {True}
    assert all(map(is_finished, [first, *copies]))
    assert stage.settled()


def test_a_copy_is_not_finished_before_the_result_is_where_it_awaits_it() -> None:
    stage = Stage()
    first, copy = same(), same(1, partition=1, reply={"partition": 5})
    stage.accept(first)
    stage.accept(copy)
    stage.dispatcher.answered(stage.take(), ANSWER)
    stage.producer.fail = lambda record: NO_PARTITION if record.partition() == 5 else None
    stage.tick()
    assert is_finished(first)
    assert not is_finished(copy)
    # There is no such partition: it is the one result by its key that counts.
    stage.tick(NEW_PARTITION_SECONDS)
    stage.tick()
    assert is_finished(copy)
    assert [place for place, _ in places(stage)] == [0]
    assert stage.settled()


# Bounds.


def test_copies_are_bounded_by_their_bytes_and_take_no_room_of_others_otherwise() -> None:
    stage = Stage(buffer_bytes_max=3 * 10 * RECORD_OVERHEAD_BYTES)
    stage.accept(same())
    stage.take()
    credit = stage.dispatcher.lookahead.credits[Tier.MID]
    rooms = []
    for number in range(1, 11):
        copy = same(number, partition=number)
        copy.assignment.credit = credit
        credit.spend(1, cost_bytes([copy]))
        stage.accept(copy)
        rooms.append(credit.room_records)
    assert rooms[:9] == [rooms[0]] * 9
    assert rooms[9] == 0
