"""Records whose schema is not known yet, through the intake: they wait, nothing passes them, and nothing else waits."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from forebay_schemas.contract.topics import REQUEST_BYTES_MAX
from forebay_schemas.errors import EnvelopeError, EnvelopeTooLargeError
from forebay_schemas.formats.avro import AvroCodec, latest_schema
from forebay_schemas.formats.avro_process import Foreign, Found, HereReader
from forebay_schemas.formats.avro_schema import AvroSchema, parse_avro_schema
from forebay_schemas.formats.envelope_reader import SchemaPendingError
from forebay_worker.bounds import BOUNDS
from forebay_worker.intake.intake import SCHEMA_WAIT_SECONDS
from simulated.bay import P0, TIER, Bay
from simulated.ports import Key, MemoryRecord
from simulated.works import POOL

SCHEMA_ID = 7
CODEC = AvroCodec(schema_id=SCHEMA_ID)


class Registry:
    """A `SchemaSource` that answers when a test says so."""

    def __init__(self) -> None:
        self.answer: AvroSchema | EnvelopeError | None = None

    def schema(self, schema_id: int) -> AvroSchema:
        if self.answer is None:
            raise SchemaPendingError(f"schema {schema_id} is not known yet")
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
    bay, registry = waiting_bay(framed=BOUNDS.parked_records_max)
    bay.step(2)
    assert bay.is_paused()
    for _ in range(100):
        bay.clock.advance(SCHEMA_WAIT_SECONDS)
        bay.step()
    assert bay.offsets() == []
    registry.answer = latest_schema()
    bay.clock.advance(SCHEMA_WAIT_SECONDS)
    bay.step(3)
    assert sorted(bay.offsets()) == list(range(BOUNDS.parked_records_max))
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


FOREIGN = parse_avro_schema(
    '{"type":"record","name":"Theirs","fields":[{"name":"request_id","type":"string"},'
    '{"name":"biz_type","type":"string"},{"name":"payload","type":"string"}]}'
)


class Busy:
    """A `ForeignReader` that reads this many records a call, and leaves the rest for later."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.calls: list[int] = []

    def read(self, records: Sequence[Foreign]) -> list[Found]:
        self.calls.append(len(records))
        found = HereReader().read(records[: self.count])
        return found + [None] * (len(records) - len(found))


def foreign_bay(reader: Busy, *, delays_seconds: tuple[int, ...] = (0,)) -> tuple[Bay, Registry]:
    registry = Registry()
    registry.answer = FOREIGN
    return Bay(schemas=registry, foreign=reader, delays_seconds=delays_seconds), registry


def put_foreign(bay: Bay, offset: int, value: bytes = b"\x02b\x04{}", *, key: Key = P0) -> None:
    value = b"\0\0\0\0\7" + bytes([2 * len(str(offset))]) + str(offset).encode() + value
    bay.consumer.append(
        MemoryRecord(topic_name=key[0], partition_number=key[1], offset_number=offset, value_bytes=value)
    )


def test_records_by_schemas_of_others_are_read_together_and_what_is_left_a_little_later() -> None:
    reader = Busy(3)
    bay, _ = foreign_bay(reader)
    for offset in range(7):
        put_foreign(bay, offset, *([b"\x02b\x04[]"] if offset == 1 else []))
    bay.fill(P0, 7)
    bay.consumer.assign(P0)
    bay.step(2)
    assert bay.offsets() == [0, 1, 2, 7]
    assert [work.request_id for work in bay.handed[:3]] == ["0", "1", "2"]
    assert "payload: is not an object" in str(bay.handed[1].problem)
    bay.finish(0, 1, 2, 7)
    bay.settle()
    assert bay.committed() == 3
    for _ in range(2):
        bay.clock.advance(SCHEMA_WAIT_SECONDS)
        bay.step()
    assert bay.offsets() == [0, 1, 2, 7, 3, 4, 5, 6]
    # The record that needs no such reading is not handed over.
    assert reader.calls == [7, 4, 1]


def test_a_retry_by_a_schema_of_others_is_read_when_it_is_received_or_when_it_is_due() -> None:
    reader = Busy(0)
    bay, _ = foreign_bay(reader, delays_seconds=(1,))
    key = (POOL.retry(TIER, 1), 0)
    put_foreign(bay, 0, key=key)
    bay.consumer.assign(key)
    bay.step(2)
    reader.count = 1
    bay.clock.advance(2)
    bay.step(2)
    assert bay.offsets(key) == [0]
    assert reader.calls == [1, 1]


@pytest.mark.parametrize("where", ["value", "key", "headers"])
def test_a_record_that_is_too_large_is_refused_unread_with_its_id(where: str) -> None:
    bay = Bay()
    fields = b'{"request_id": "r", "biz_type": "b", "payload": {"x": "%s"}}'
    filler = b"x" * (REQUEST_BYTES_MAX - len(fields) + 2)
    record = MemoryRecord(
        topic_name=P0[0],
        partition_number=P0[1],
        offset_number=0,
        value_bytes=fields % (filler + b"x" * (where == "value")),
        key_bytes=b"k" if where == "key" else None,
        header_list=[("h", None)] if where == "headers" else None,
    )
    bay.consumer.append(record)
    bay.consumer.assign(P0)
    bay.step(2)
    [work] = bay.handed
    assert isinstance(work.problem, EnvelopeTooLargeError)
    assert work.request_id == "r"
    assert "is in a record of 8,388,609 bytes, uncompressed, where 8,388,608 are taken" in str(work.problem)


@pytest.mark.parametrize(
    ("value", "key", "answered_under"),
    [
        (b'{"request_id": 12345, "biz_type": "b", "payload": {}}', b"12345", "12345"),
        (b'{"request_id": "%s", "biz_type": "b", "payload": {}}' % (b"x" * 201), b"short", "short"),
        ('{"request_id": "a\u00a0b", "biz_type": "b", "payload": {}}'.encode(), b"no-break", "no-break"),
        (b'{"request_id": "a\\tb", "biz_type": "b", "payload": {}}', b"tab", "tab"),
        ('{"request_id": "\u0645\u200d\u0646", "biz_type": "b", "payload": {}}'.encode(), b"joiner", "joiner"),
        (b"garbage", "caf\u00e9".encode(), "caf\u00e9"),
        (None, b"null", "null"),
        # An id that can be used wins, whatever else is wrong.
        (b'{"request_id": "own", "biz_type": 7, "payload": {}}', b"key", "own"),
        # Nobody can be answered: there is a dead letter alone.
        (b"garbage", None, None),
        (b"garbage", b"", None),
        (b"garbage", b"\xff\xfe", None),
        (b"garbage", b"a\tb", None),
        (b"garbage", b"x" * 201, None),
    ],
)
def test_what_has_no_usable_id_is_answered_under_its_key(
    value: bytes | None, key: bytes | None, answered_under: str | None
) -> None:
    bay = Bay()
    bay.consumer.append(
        MemoryRecord(topic_name=P0[0], partition_number=P0[1], offset_number=0, value_bytes=value, key_bytes=key)
    )
    bay.consumer.assign(P0)
    bay.step(2)
    [work] = bay.handed
    assert work.problem is not None
    assert work.request_id == answered_under


def test_a_record_as_large_as_one_may_be_is_taken() -> None:
    bay = Bay()
    fields = b'{"request_id": "r", "biz_type": "b", "payload": {"x": "%s"}}'
    value = fields % (b"x" * (REQUEST_BYTES_MAX - len(fields) + 2))
    bay.consumer.append(MemoryRecord(topic_name=P0[0], partition_number=P0[1], offset_number=0, value_bytes=value))
    bay.consumer.assign(P0)
    bay.step(2)
    assert bay.handed[0].request_id == "r"
    assert bay.handed[0].problem is None
