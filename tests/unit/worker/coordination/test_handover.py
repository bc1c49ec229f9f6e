"""Notices about requests that run on here after their partition was revoked."""

from __future__ import annotations

from collections.abc import Callable

from forebay_schemas.contract.coordination import LEASE_SECONDS, RENEW_SECONDS, Notice, NoticeKind
from forebay_worker.coordination.handover import AGAIN_SECONDS, PUBLISH_SECONDS_MAX, HandOvers
from forebay_worker.intake.last_words import HandedOver
from forebay_worker.partition.assignment import Assignment
from simulated.works import make_assignment

RUNNING, FINISHED, RELEASED = NoticeKind.RUNNING, NoticeKind.FINISHED, NoticeKind.RELEASED


class HandOverDesk:
    """The hand-overs of a worker; ``said`` is emptied as it is looked at. ``delivers``: what becomes of a notice, None
    while its report is awaited, in ``awaiting``."""

    def __init__(self) -> None:
        self.notices: list[Notice] = []
        self.delivers: bool | None = True
        self.awaiting: list[Callable[[bool], None]] = []
        self.hand_overs = HandOvers(worker_id="w-1", send=self._send)
        self.now = 100.0
        self.hand_overs.step(self.now)

    def _send(self, notice: Notice, on_delivery: Callable[[bool], None]) -> None:
        self.notices.append(notice)
        if self.delivers is None:
            self.awaiting.append(on_delivery)
        else:
            on_delivery(self.delivers)

    def is_all_published(self) -> bool:
        return self.hand_overs.is_all_published

    def let_go(self, *running: int, partition: int = 0) -> Assignment:
        assignment = make_assignment(partition=partition)
        for offset in running:
            assignment.receive(offset)
            assignment.claims.claim(offset)
        still_running, _ = assignment.close()
        self.hand_overs.add(HandedOver(assignment=assignment, running=still_running))
        return assignment

    def said(self, *, after_seconds: float = 0.0) -> list[tuple[NoticeKind, int, list[int]]]:
        """Notices published at the next step."""
        self.now += after_seconds
        self.hand_overs.step(self.now)
        said = [(notice.kind, notice.partition, notice.offsets) for notice in self.notices]
        self.notices.clear()
        return said


def finish(assignment: Assignment, *offsets: int) -> None:
    """Their outcomes are durable."""
    assignment.done.extend(offsets)


def test_what_finishes_is_said_at_once_and_only_once() -> None:
    desk = HandOverDesk()
    assignment = desk.let_go(3, 4, 5)
    assert desk.hand_overs.running_count == 3
    assert desk.said() == []
    finish(assignment, 4)
    assert desk.said() == [(FINISHED, 0, [4])]
    assert desk.said() == []
    finish(assignment, 5, 3)
    assert desk.said() == [(FINISHED, 0, [5, 3])]
    assert desk.hand_overs.running_count == 0
    assert desk.hand_overs._open == [], "nothing is kept of what is over"


def test_what_goes_back_without_an_outcome_is_said_to_be_released() -> None:
    """The drain time is over, or the backend refuses it: its new owner runs it."""
    desk = HandOverDesk()
    assignment = desk.let_go(3, 4)
    assignment.claims.release(4)
    assert desk.said() == [(RELEASED, 0, [4])]
    assert desk.hand_overs.running_count == 1
    finish(assignment, 3)
    assert desk.said() == [(FINISHED, 0, [3])]


def test_what_runs_is_said_again_well_within_its_lease() -> None:
    desk = HandOverDesk()
    assignment = desk.let_go(3, 4)
    assert desk.said(after_seconds=RENEW_SECONDS - 0.1) == []
    assert desk.said(after_seconds=0.1) == [(RUNNING, 0, [3, 4])]
    finish(assignment, 3)
    assert desk.said(after_seconds=RENEW_SECONDS) == [(FINISHED, 0, [3]), (RUNNING, 0, [4])]
    finish(assignment, 4)
    assert desk.said(after_seconds=RENEW_SECONDS) == [(FINISHED, 0, [4])]
    assert desk.said(after_seconds=RENEW_SECONDS) == []
    assert RENEW_SECONDS * 3 < LEASE_SECONDS, "one or two may be lost or late"


def test_each_partition_is_spoken_of_by_itself() -> None:
    desk = HandOverDesk()
    first, second = desk.let_go(3, partition=1), desk.let_go(3, 4, partition=2)
    finish(second, 3)
    finish(first, 3)
    assert desk.said() == [(FINISHED, 1, [3]), (FINISHED, 2, [3])]
    assert desk.said(after_seconds=RENEW_SECONDS) == [(RUNNING, 2, [4])]


def test_one_that_finished_just_before_it_was_let_go_of_is_still_said() -> None:
    """Its outcome became durable after the partition's thread had last looked."""
    desk = HandOverDesk()
    assignment = make_assignment()
    assignment.receive(0)
    assignment.claims.claim(0)
    running, _ = assignment.close()
    finish(assignment, 0)
    desk.hand_overs.add(HandedOver(assignment=assignment, running=running))
    assert desk.said() == [(FINISHED, 0, [0])]


def test_a_notice_names_its_worker_and_its_partition() -> None:
    desk = HandOverDesk()
    assignment = desk.let_go(3, partition=2)
    finish(assignment, 3)
    desk.hand_overs.step(desk.now)
    assert desk.notices == [
        Notice(kind=FINISHED, worker="w-1", topic=assignment.topic, partition=2, offsets=[3]),
    ]


def test_what_ended_is_said_again_until_it_is_durable() -> None:
    """A full queue of the client fails at once, a delivery may fail later; neither may make the request run again."""
    desk = HandOverDesk()
    assignment = desk.let_go(3, 4, 5)
    desk.delivers = False
    finish(assignment, 3)
    assignment.claims.release(4)
    assert desk.said() == [(FINISHED, 0, [3]), (RELEASED, 0, [4])]
    assert not desk.is_all_published()
    assert desk.said() == [], "not at once: the queue is full"
    assert desk.said(after_seconds=AGAIN_SECONDS) == [(FINISHED, 0, [3]), (RELEASED, 0, [4])]
    desk.delivers = None
    finish(assignment, 5)
    assert desk.said(after_seconds=AGAIN_SECONDS) == [(FINISHED, 0, [3, 5]), (RELEASED, 0, [4])]
    assert desk.hand_overs.running_count == 0
    assert not desk.is_all_published()
    finished, released = desk.awaiting
    finished(False)
    released(True)
    desk.delivers = True
    assert desk.said(after_seconds=AGAIN_SECONDS) == [(FINISHED, 0, [3, 5])]
    assert desk.is_all_published()
    assert desk.said(after_seconds=RENEW_SECONDS) == []
    assert desk.hand_overs._open == [], "nothing is kept of what is over"


def test_what_cannot_be_said_for_as_long_as_anybody_would_hear_it_is_given_up() -> None:
    desk = HandOverDesk()
    assignment = desk.let_go(3)
    desk.delivers = False
    finish(assignment, 3)
    assert desk.said() == [(FINISHED, 0, [3])]
    assert desk.said(after_seconds=PUBLISH_SECONDS_MAX - 1) == [(FINISHED, 0, [3])]
    assert desk.said(after_seconds=1) == []
    assert desk.is_all_published()
    assert desk.hand_overs._open == []
