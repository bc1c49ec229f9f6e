"""Cancels and expedites: the requests they are meant for, and how many are remembered."""

from __future__ import annotations

import pytest

from forebay_schemas.contract.control import Control, ControlAction
from forebay_schemas.contract.headers import History
from forebay_schemas.contract.tiers import TTL_MS_MAX, Tier
from forebay_worker.request import controls as controls_module
from forebay_worker.request.controls import CLOCKS_DIFFER_MS, Controls
from forebay_worker.request.work import Work
from simulated.ports import NOW_MS, MemoryRecord
from simulated.works import make_assignment, make_work

CANCEL, EXPEDITE = ControlAction.CANCEL, ControlAction.EXPEDITE


def wish(action: ControlAction, request_id: str = "r") -> Control:
    return Control(action=action, request_id=request_id, at=0, by="me")


def waiting(*, tier: Tier = Tier.LOW, replay_count: int = 0, enqueued_ms: int = NOW_MS, record_ms: int = 0) -> Work:
    work = make_work(make_assignment(tier), request_id="r", enqueued_at=enqueued_ms)
    work.history = History(replay_count=replay_count)
    work.record = MemoryRecord(topic_name="t", timestamp_ms=record_ms or enqueued_ms)
    return work


def test_nothing_is_wanted_of_a_request_that_nobody_named() -> None:
    controls = Controls()
    assert not controls.entries
    controls.receive(wish(CANCEL, "other"), NOW_MS)
    assert controls.wanted(waiting()) is None


@pytest.mark.parametrize(
    ("actions", "tier", "wanted"),
    [
        ([CANCEL], Tier.LOW, CANCEL),
        ([EXPEDITE], Tier.LOW, EXPEDITE),
        ([EXPEDITE], Tier.MID, EXPEDITE),
        ([EXPEDITE], Tier.HIGH, None),
        ([CANCEL], Tier.HIGH, CANCEL),
        ([CANCEL, EXPEDITE], Tier.LOW, CANCEL),
        ([EXPEDITE, CANCEL], Tier.LOW, CANCEL),
    ],
)
def test_a_cancel_wins_and_high_is_as_urgent_as_can_be(
    actions: list[ControlAction], tier: Tier, wanted: ControlAction | None
) -> None:
    controls = Controls()
    for action in actions:
        controls.receive(wish(action), NOW_MS)
    assert controls.wanted(waiting(tier=tier)) is wanted


@pytest.mark.parametrize(
    ("work", "is_meant"),
    [
        (waiting(enqueued_ms=NOW_MS - 60_000), True),
        (waiting(enqueued_ms=NOW_MS + CLOCKS_DIFFER_MS), True),
        (waiting(enqueued_ms=NOW_MS + CLOCKS_DIFFER_MS + 1), False),
        # A retry lies where it was written later, but is the same request.
        (waiting(enqueued_ms=NOW_MS - 60_000, record_ms=NOW_MS + 60_000), True),
        (waiting(replay_count=1, enqueued_ms=NOW_MS - 60_000, record_ms=NOW_MS + 60_000), False),
        (waiting(replay_count=1, enqueued_ms=NOW_MS - 60_000, record_ms=NOW_MS - 1), True),
    ],
)
def test_a_wish_is_meant_for_what_was_there_when_it_was_said(work: Work, is_meant: bool) -> None:
    controls = Controls()
    controls.receive(wish(CANCEL), NOW_MS)
    assert controls.wanted(work) is (CANCEL if is_meant else None)


def test_what_cannot_be_expedited_is_not_tried_again() -> None:
    controls = Controls()
    controls.receive(wish(EXPEDITE), NOW_MS)
    controls.give_up_expedite("r")
    assert controls.wanted(waiting()) is None


def test_what_was_heard_is_taken_once() -> None:
    controls = Controls()
    controls.receive(wish(CANCEL), NOW_MS)
    assert controls.take_fresh() == [(wish(CANCEL), NOW_MS)]
    assert controls.take_fresh() == []


def test_the_oldest_is_forgotten_when_there_are_too_many_or_its_requests_are_all_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(controls_module, "CONTROLS_MAX", 3)
    controls = Controls()
    for number in range(5):
        controls.receive(wish(CANCEL, f"r{number}"), NOW_MS)
    assert list(controls.entries) == ["r2", "r3", "r4"]
    controls.receive(wish(CANCEL, "new"), NOW_MS + TTL_MS_MAX + 1)
    assert list(controls.entries) == ["new"]


def test_what_another_thread_heard_is_taken_in_in_its_order_and_then_there_is_room_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(controls_module, "RECEIVED_MAX", 2)
    controls = Controls()
    controls.received.append((wish(CANCEL, "a"), NOW_MS))
    assert controls.has_room()
    controls.received.append((wish(CANCEL, "b"), NOW_MS))
    assert not controls.has_room()
    assert not controls.entries
    controls.take_received()
    assert controls.has_room()
    assert list(controls.entries) == ["a", "b"]
    assert [each.request_id for each, _ in controls.take_fresh()] == ["a", "b"]
