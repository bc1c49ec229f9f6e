"""Intake when the client raises or reports errors: no record is lost or repeated."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException

from forebay_worker.intake.committed import ASK_AGAIN_SECONDS
from simulated.bay import BROKEN, P0, P1, TOPIC, Bay, bay_with, explode
from simulated.ports import MemoryRecord


@pytest.mark.parametrize("in_consume", [False, True], ids=["poll", "consume"])
@pytest.mark.parametrize("committed", [None, 0, 3])
def test_an_exception_from_the_client_loses_no_record(committed: int | None, in_consume: bool) -> None:
    """Records freed unseen are read again: of every partition, whether any of its records was seen before or not."""
    bay = Bay()
    if committed is not None:
        bay.consumer.committed_by_group[P0] = (committed, "")
    bay.fill(P0, *range(10))
    bay.fill(P1, *range(5))
    bay.consumer.assign(P0, P1)
    bay.consumer.free_unseen(P0, 2, exception=KafkaException(BROKEN), in_consume=in_consume)
    bay.consumer.free_unseen(P1, 2, exception=RuntimeError("odd"), in_consume=True)
    bay.step(8)
    assert bay.offsets() == list(range(committed or 0, 10))
    assert bay.offsets(P1) == list(range(5))


def test_an_exception_from_the_client_is_told_until_records_come_again() -> None:
    bay = bay_with(0)
    bay.consumer.free_unseen(P0, 0, exception=KafkaException(BROKEN))
    bay.step()
    assert bay.intake.troubles == [f"mid: {KafkaException(BROKEN)}"]
    bay.step(3)
    assert bay.intake.troubles, "nothing has come that shows that it is over"
    bay.fill(P0, 1)
    bay.step(2)
    assert bay.intake.troubles == []


def test_an_exception_after_some_were_taken_loses_none_and_repeats_none() -> None:
    bay = bay_with(0, 1, 2)
    bay.fill(P0, 3, 4, 5, 6)
    bay.consumer.free_unseen(P0, 3, exception=KafkaException(BROKEN))
    bay.step(4)
    assert bay.offsets() == list(range(7))
    bay.finish(*range(7))
    bay.settle()
    assert bay.committed() == 7


def test_an_exception_amid_a_batch_takes_nothing_that_came_before_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tracker knows of what came before: it would not come again."""
    bay = bay_with(0)
    bay.fill(P1, 0, 1, 2)
    bay.consumer.assign(P1)
    bay.step(2)
    bay.fill(P0, 1, 2)
    bay.consumer.log_of(P1).position = 0
    monkeypatch.setattr(bay.consumer, "get_watermark_offsets", explode)
    bay.step()
    assert bay.offsets() == [0, 1, 2]
    bay.step(3)
    assert bay.offsets() == [0, 1, 2]
    assert bay.offsets(P1) == [0, 1, 2]


def test_records_behind_an_error_event_wait_for_those_it_stands_for() -> None:
    """The event comes in the middle of a batch: what follows it there must not be taken for what comes next."""
    bay = bay_with(0, 1)
    bay.fill(P0, 2, 3, 4, 5, 6)
    bay.fill(P1, 0, 1)
    bay.consumer.assign(P1)
    bay.consumer.error_event(P0, 2, error=BROKEN)
    bay.step(4)
    assert bay.offsets() == list(range(7))
    assert bay.offsets(P1) == [0, 1]
    bay.finish(0, 1, 4, 5, 6)
    bay.settle()
    assert bay.committed() == 2


def test_the_end_of_a_partition_is_no_error() -> None:
    bay = bay_with(0)
    bay.consumer.error_event(P0, 0, error=KafkaError(KafkaError._PARTITION_EOF))
    bay.fill(P0, 1)
    bay.step(2)
    assert bay.offsets() == [0, 1]
    assert bay.intake.troubles == []


def test_an_error_that_belongs_to_no_partition_is_noted() -> None:
    bay = bay_with(0)
    bay.consumer.append(
        MemoryRecord(topic_name=TOPIC, offset_number=1, failure=KafkaError(KafkaError._ALL_BROKERS_DOWN))
    )
    bay.consumer.logs[TOPIC, 0].records[-1].topic_name = None
    bay.step()
    assert bay.intake.troubles == [f"mid: {KafkaError(KafkaError._ALL_BROKERS_DOWN).str()}"]


def test_what_one_topic_suffers_is_not_over_because_another_one_delivers() -> None:
    """A topic that was deleted, or whose permission was taken away: the client says so once and then no more."""
    bay = bay_with(0)
    gone = MemoryRecord(topic_name="another", offset_number=1, failure=KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
    bay.consumer.append(gone)
    bay.consumer.log_of(("another", 0)).position = 0
    bay.fill(P0, 1, 2)
    bay.step(3)
    assert bay.offsets() == [0, 1, 2]
    assert len(bay.intake.troubles) == 1


def test_a_seek_that_fails_is_made_again_and_nothing_is_taken_before() -> None:
    bay = bay_with(0, 1)
    bay.fill(P0, 2, 3, 4, 5)
    bay.consumer.seek_errors[P0] = KafkaError(KafkaError._STATE)
    bay.consumer.free_unseen(P0, 2, exception=KafkaException(BROKEN))
    bay.step(3)
    assert bay.offsets() == [0, 1], "4 and 5 came, but 2 and 3 did not"
    del bay.consumer.seek_errors[P0]
    bay.clock.advance(ASK_AGAIN_SECONDS)
    bay.step(2)
    assert bay.offsets() == [0, 1, 2, 3, 4, 5]


def test_nothing_is_sought_in_a_partition_that_went_in_between() -> None:
    bay = bay_with(0, 1)
    bay.consumer.seek_errors[P0] = KafkaError(KafkaError._STATE)
    bay.consumer.free_unseen(P0, 0, exception=KafkaException(BROKEN))
    bay.step(2)
    bay.consumer.lose(P0)
    bay.step(3)
    assert bay.assigned() == []
