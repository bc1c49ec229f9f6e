"""Cancels and expedites that arrive before their request: an unread one is fetched, a parked one is released."""

from __future__ import annotations

from forebay_schemas.contract.control import Control, ControlAction, ControlOutcome
from forebay_schemas.contract.offsets_metadata import CommitMetadata
from forebay_worker.intake.early_control import WANTED_MAX, ReceivedControl
from simulated.bay import P0, TOPIC, Bay, bay_with, said_by
from simulated.ports import NOW_MS, MemoryRecord
from simulated.works import envelope

LATER_MS = NOW_MS + 10**9


def receive(bay: Bay, offset: int, *, request_id: str | None = None, is_awaited: bool = True) -> None:
    control = Control(
        action=ControlAction.CANCEL,
        request_id=request_id or f"0-{offset}",
        topic=TOPIC,
        partition=0,
        offset=offset,
        at=0,
        by="me",
    )
    bay.intake.received_controls.append(ReceivedControl(control, LATER_MS, is_awaited))


def record_at(offset: int) -> MemoryRecord:
    return MemoryRecord(topic_name=TOPIC, partition_number=0, offset_number=offset, value_bytes=envelope(f"0-{offset}"))


def test_what_was_not_read_yet_is_handed_on_before_its_turn_and_not_again_when_it_is_read() -> None:
    bay = bay_with(0, 1)
    receive(bay, 5)
    bay.step()
    bay.fetcher.answer(record_at(5))
    bay.step()
    assert bay.offsets() == [0, 1, 5]
    bay.fill(P0, 2, 3, 4, 5, 6)
    bay.step(2)
    assert bay.offsets() == [0, 1, 5, 2, 3, 4, 6]
    bay.finish(0, 1, 5, 2, 3, 4, 6)
    bay.settle()
    assert bay.committed() == 7


def test_what_ends_before_it_is_read_is_named_in_the_commit_and_skipped() -> None:
    bay = bay_with(0)
    receive(bay, 2)
    bay.step()
    bay.fetcher.answer(record_at(2))
    bay.step()
    bay.finish(0, 2)
    bay.settle()
    bay.fill(P0, 1, 2, 3)
    bay.step(2)
    assert bay.offsets() == [0, 2, 1, 3]


def test_what_ends_in_a_partition_of_which_nothing_was_read_or_committed_is_named_in_the_commit() -> None:
    bay = bay_with()
    receive(bay, 5)
    bay.step()
    bay.fetcher.answer(record_at(5), begins_at=3)
    bay.step()
    bay.finish(5)
    bay.settle()
    position, metadata = bay.consumer.committed_by_group[P0]
    assert position == 3
    assert said_by(position, metadata) == CommitMetadata(finished=((5, 1),), running=(), waiting=(), handed_over=())


def test_what_could_not_be_committed_is_left_until_it_is_read() -> None:
    bay = bay_with()
    receive(bay, 5)
    bay.step()
    bay.fetcher.answer(record_at(5))
    bay.step(2)
    assert bay.offsets() == []
    bay.fill(P0, 4, 5)
    bay.step(2)
    assert bay.offsets() == [4, 5]


def test_who_names_another_requests_place_does_not_touch_it() -> None:
    bay = bay_with(0)
    receive(bay, 2, request_id="somebody-else")
    bay.step()
    bay.fetcher.answer(record_at(2))
    bay.step(2)
    assert bay.offsets() == [0]
    bay.fill(P0, 1, 2)
    bay.step(2)
    assert bay.offsets() == [0, 1, 2]


def test_what_is_read_while_it_is_fetched_is_handed_on_once() -> None:
    bay = bay_with(0)
    receive(bay, 1)
    bay.step()
    bay.fill(P0, 1)
    bay.step(2)
    bay.fetcher.answer(record_at(1))
    bay.step(2)
    assert bay.offsets() == [0, 1]


def test_what_could_not_be_fetched_is_read_in_its_turn() -> None:
    bay = bay_with(0)
    receive(bay, 1)
    bay.step()
    bay.fetcher.answer(None)
    bay.step(2)
    assert bay.fetcher.asked == []
    bay.fill(P0, 1)
    bay.step(2)
    assert bay.offsets() == [0, 1]


def test_what_was_said_before_the_partition_came_is_done_when_it_comes() -> None:
    bay = Bay()
    receive(bay, 4)
    bay.step()
    assert bay.fetcher.asked == []
    bay.consumer.assign(P0)
    bay.step(3)
    assert [offset for _, offset, _ in bay.fetcher.asked] == [4]


def test_the_owner_says_that_it_is_too_late_to_whoever_still_waits() -> None:
    bay = bay_with(0, 1)
    bay.finish(0)
    bay.step()
    receive(bay, 0)
    receive(bay, 0, is_awaited=False)
    receive(bay, 1)
    bay.step()
    assert bay.answers == [(ControlAction.CANCEL, "0-0", ControlOutcome.FINISHED)]
    assert bay.fetcher.asked == []


def test_a_retry_that_is_held_is_handed_on_at_once() -> None:
    bay = Bay(delays_seconds=(30,))
    topic = bay.sources[0].topic
    bay.consumer.append(MemoryRecord(topic_name=topic, value_bytes=envelope("r"), timestamp_ms=bay.clock.wall_ms()))
    bay.consumer.assign((topic, 0))
    bay.step(3)
    assert bay.handed == []
    control = Control(action=ControlAction.CANCEL, request_id="r", at=0, by="me")
    bay.intake.received_controls.append(ReceivedControl(control, LATER_MS, True))
    bay.step()
    assert [work.request_id for work in bay.handed] == ["r"]
    assert bay.intake.held_records == 0


def test_a_flood_of_cancels_takes_no_more_memory_than_is_remembered_and_asks_for_no_more_records() -> None:
    bay = bay_with(0)
    for offset in range(1, WANTED_MAX + 5_001):
        receive(bay, offset)
    assert len(bay.intake.received_controls) == WANTED_MAX
    bay.step()
    asked = [offset for _, offset, _ in bay.fetcher.asked]
    assert asked == list(range(5_001, WANTED_MAX + 5_001)), "the oldest are found when they are read"
    receive(bay, WANTED_MAX + 5_001)
    bay.step()
    assert len(bay.fetcher.asked) == WANTED_MAX
