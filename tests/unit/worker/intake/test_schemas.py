"""Records whose schema is not known yet, through the intake: they wait, nothing passes them, and nothing else waits."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from forebay_schemas.errors import EnvelopeError
from forebay_schemas.formats.avro import AvroCodec, AvroSchema, latest_schema
from forebay_schemas.formats.envelope_reader import SchemaPendingError
from forebay_worker.intake.intake import SCHEMA_WAIT_SECONDS
from forebay_worker.intake.parked import HELD_RECORDS_MAX
from simulated.bay import P0, TIER, Bay
from simulated.ports import Key, MemoryRecord
from simulated.works import POOL

SCHEMA_ID = 7
CODEC = AvroCodec(schema_id=SCHEMA_ID)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with capture_logs():
        yield


class Registry:
    """A `SchemaSource` that tells when it is told to."""

    def __init__(self) -> None:
        self.answer: AvroSchema | EnvelopeError | None = None

    def schema(self, schema_id: int) -> AvroSchema:
        if self.answer is None:
            raise SchemaPendingError(schema_id)
        if isinstance(self.answer, EnvelopeError):
            raise self.answer
        return self.answer


def put_framed(bay: Bay, offset: int, *, key: Key = P0) -> None:
    value = CODEC.encode({"request_id": f"f-{offset}", "biz_type": "x", "payload": {}, "priority": 6})
    bay.consumer.append(
        MemoryRecord(topic_name=key[0], partition_number=key[1], offset_number=offset, value_bytes=value)
    )


def waiting_bay(*, framed: int = 1) -> tuple[Bay, Registry]:
    registry = Registry()
    bay = Bay(schemas=registry)
    for offset in range(framed):
        put_framed(bay, offset)
    bay.consumer.assign(P0)
    bay.step(2)
    return bay, registry


def test_a_record_waits_for_its_schema_and_its_offset_with_it() -> None:
    bay, registry = waiting_bay()
    bay.fill(P0, 1)
    bay.step(2)
    assert bay.offsets() == [1]
    bay.finish(1)
    bay.settle()
    assert not bay.committed()
    registry.answer = latest_schema()
    bay.clock.advance(SCHEMA_WAIT_SECONDS)
    bay.step(2)
    assert bay.offsets() == [1, 0]
    work = bay.handed[-1]
    assert (work.request_id, work.priority, work.deadline_ms > 0) == ("f-0", 6, True)
    bay.finish(0)
    bay.settle()
    assert bay.committed() == 2


def test_a_schema_that_turns_out_not_to_exist_makes_a_dead_letter_of_its_record() -> None:
    bay, registry = waiting_bay()
    registry.answer = EnvelopeError("envelope", "is framed with schema 7, which nobody knows", fix="correct the sender")
    bay.clock.advance(SCHEMA_WAIT_SECONDS)
    bay.step(2)
    assert bay.offsets() == [0]
    assert bay.handed[0].request is None
    assert "schema 7" in str(bay.handed[0].problem)


def test_a_partition_with_many_waiting_records_is_paused_until_they_may_go() -> None:
    bay, registry = waiting_bay(framed=HELD_RECORDS_MAX)
    bay.step(2)
    assert bay.is_paused()
    for _ in range(100):
        bay.clock.advance(SCHEMA_WAIT_SECONDS)
        bay.step()
    assert bay.offsets() == []
    registry.answer = latest_schema()
    bay.clock.advance(SCHEMA_WAIT_SECONDS)
    bay.step(3)
    assert sorted(bay.offsets()) == list(range(HELD_RECORDS_MAX))
    assert not bay.is_paused()


def test_a_partition_that_goes_takes_its_waiting_records_with_it() -> None:
    bay, registry = waiting_bay()
    bay.consumer.revoke(P0)
    bay.step(2)
    registry.answer = latest_schema()
    bay.clock.advance(SCHEMA_WAIT_SECONDS)
    bay.step(2)
    assert bay.offsets() == []
    bay.consumer.assign(P0)
    bay.step(2)
    assert bay.offsets() == [0]


def test_a_retry_waits_for_its_schema_beyond_its_time() -> None:
    registry = Registry()
    bay = Bay(schemas=registry, delays_seconds=(1,))
    key = (POOL.retry(TIER, 1), 0)
    put_framed(bay, 0, key=key)
    bay.consumer.assign(key)
    bay.step(2)
    bay.clock.advance(2)
    bay.step(2)
    assert bay.offsets(key) == []
    registry.answer = latest_schema()
    bay.clock.advance(SCHEMA_WAIT_SECONDS)
    bay.step(2)
    assert bay.offsets(key) == [0]
