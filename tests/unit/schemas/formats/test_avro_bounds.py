"""Schemas and bytes of strangers: what they can make a reader do, in time, depth and memory, is bounded."""

from __future__ import annotations

import contextlib
import io
import json
import resource
import time
import tracemalloc
from typing import Any

import fastavro
import pytest

from forebay_schemas.errors import EnvelopeError
from forebay_schemas.formats.avro import all_avro_fields, decode_avro, latest_schema
from forebay_schemas.formats.avro_reader import DEPTH_MAX, STEPS_MAX
from forebay_schemas.formats.avro_schema import (
    SCHEMA_CHARS_MAX,
    SCHEMA_DEPTH_MAX,
    SCHEMA_TYPES_MAX,
    AvroSchema,
    parse_avro_schema,
)

LARGEST = 8 * 1024 * 1024
NODE = {
    "type": "record",
    "name": "Node",
    "fields": [{"name": "label", "type": "string"}, {"name": "child", "type": ["null", "Node"]}],
}


def schema_with(*fields: tuple[str, Any]) -> AvroSchema:
    """The envelope's with further fields at its end."""
    document = json.loads(latest_schema().text)
    document["fields"] += [{"name": name, "type": kind} for name, kind in fields]
    return parse_avro_schema(json.dumps(document))


def long(number: int) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, "long", number)
    return out.getvalue()


def envelope(more: bytes = b"") -> bytes:
    """An envelope by the latest schema, and what further fields hold."""
    out = io.BytesIO()
    fields = {"request_id": "r-1", "biz_type": "b", "payload": b"{}"}
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(latest_schema().text)), fields)
    return out.getvalue() + more


def refused(schema: AvroSchema, more: bytes) -> EnvelopeError:
    """The error that ends the reading, soon and with little memory."""
    value = envelope(more)
    began, held_kib = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(EnvelopeError) as caught:
        decode_avro(value, 0, schema)
    # Half a second by itself.
    assert time.process_time() - began < 3
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - held_kib < 2 * LARGEST / 1024
    return caught.value


def test_a_recursive_schema_is_read_and_a_value_nested_too_deeply_is_refused() -> None:
    """20,000 levels ended the process of a reader that recurses in C (SIGSEGV)."""
    schema = schema_with(("context", ["null", NODE]))
    level = b"\x02" + long(1) + b"n"
    assert decode_avro(envelope(level * 20 + b"\x00"), 0, schema).request_id == "r-1"
    error = refused(schema, level * 20_000 + b"\x00")
    assert error.field == "envelope"
    assert f"nested deeper than {DEPTH_MAX}" in error.problem
    with pytest.raises(EnvelopeError, match=f"nested deeper than {DEPTH_MAX}"):
        all_avro_fields(envelope(level * 20_000 + b"\x00"), 0, schema)


@pytest.mark.parametrize(
    "fields",
    [
        [("a", {"type": "array", "items": "null"})],
        [("a", {"type": "array", "items": {"type": "null"}})],
        [("e", {"type": "record", "name": "E", "fields": []}), ("a", {"type": "array", "items": "E"})],
        [("e", {"type": "record", "name": "E", "fields": []}), ("a", {"type": "array", "items": {"type": "E"}})],
        [("e", {"type": "record", "name": "E", "fields": []}), ("a", {"type": "array", "items": "forebay.E"})],
        [("e", {"type": "fixed", "name": "E", "size": 0}), ("a", {"type": "array", "items": "E"})],
        [("e", {"type": "error", "name": "E", "fields": []}), ("a", {"type": "array", "items": "E"})],
        [
            ("e", {"type": "record", "name": "E", "fields": []}),
            ("a", {"type": "array", "items": {"type": "record", "name": "F", "fields": [{"name": "x", "type": "E"}]}}),
        ],
        [
            (
                "a",
                {
                    "type": "record",
                    "name": "A",
                    "fields": [
                        {"name": "n", "type": {"type": "record", "name": "N", "fields": []}},
                        {"name": "m", "type": {"type": "map", "values": {"type": "array", "items": "N"}}},
                    ],
                },
            )
        ],
    ],
)
def test_an_array_of_items_that_take_no_bytes_is_refused_however_it_is_spelt(fields: list[tuple[str, Any]]) -> None:
    with pytest.raises(ValueError, match="an array of items that take no bytes"):
        schema_with(*fields)


ARRAY_OF = {
    "nulls by way of a union": {"type": "array", "items": ["null"]},
    "records that are inside themselves": {
        "type": "array",
        "items": {"type": "record", "name": "S", "fields": [{"name": "s", "type": {"type": "array", "items": "S"}}]},
    },
    "records without an end": {
        "type": "array",
        "items": {"type": "record", "name": "T", "fields": [{"name": "t", "type": "T"}]},
    },
    "numbers": {"type": "array", "items": "long"},
    "doubles": {"type": "array", "items": "double"},
    "strings": {"type": "array", "items": "string"},
    "entries": {"type": "map", "values": "null"},
    "maps": {"type": "map", "values": {"type": "map", "values": "null"}},
}


@pytest.mark.parametrize("kind", ARRAY_OF)
@pytest.mark.parametrize("count", [2**62, -(2**62), 2**63 - 1, -(2**63), 3_000_000])
def test_sixteen_bytes_do_not_hold_a_reader_up(kind: str, count: int) -> None:
    """A count of 2^62 was no end of work in C, with Python's lock held."""
    size = long(1) if count < 0 else b""
    refused(schema_with(("a", ARRAY_OF[kind])), long(count) + size + b"\x00" * 5)


@pytest.mark.parametrize("kind", ARRAY_OF)
@pytest.mark.parametrize("byte", [b"\x00", b"\x02"])
def test_the_largest_record_of_the_smallest_items_ends_soon(kind: str, byte: bytes) -> None:
    schema = schema_with(("a", ARRAY_OF[kind]))
    value = envelope(long(LARGEST // 2) + byte * LARGEST + b"\x00")
    began = time.process_time()
    with contextlib.suppress(EnvelopeError):
        decode_avro(value, 0, schema)
    assert time.process_time() - began < 3


def test_a_block_of_one_item_each_ends_soon() -> None:
    error = refused(schema_with(("a", {"type": "array", "items": "int"})), b"\x02\x02" * (LARGEST // 2))
    assert f"more than {STEPS_MAX:,} values" in error.problem


def test_items_of_a_fixed_size_and_runs_of_numbers_are_passed_over_at_once() -> None:
    schema = schema_with(
        ("embedding", {"type": "array", "items": "float"}),
        ("tokens", {"type": "array", "items": "int"}),
        ("after", "string"),
    )
    floats = long(1_000_000) + b"\x00" * 4_000_000 + b"\x00"
    tokens = long(1_000_000) + b"\x80\x01\x05" * 500_000 + b"\x00"
    began = time.process_time()
    request = decode_avro(envelope(floats + tokens + long(3) + b"abc"), 0, schema)
    assert request.request_id == "r-1"
    assert time.process_time() - began < 1


def test_a_block_that_tells_its_size_is_read_by_its_items() -> None:
    schema = schema_with(("a", {"type": "array", "items": "string"}))
    items = long(-2) + long(4) + long(1) + b"x" + long(1) + b"y" + b"\x00"
    assert decode_avro(envelope(items), 0, schema).request_id == "r-1"
    # One that lies about its size leads nowhere else.
    lying = long(-2) + long(4_000) + long(1) + b"x" + long(1) + b"y" + b"\x00"
    assert decode_avro(envelope(lying), 0, schema).request_id == "r-1"


@pytest.mark.parametrize(
    "more",
    [b"", b"\x80", long(-1), long(2**62) + b"x", b"\xff" * 10, b"\xff" * 11, long(5) + b"abc"],
)
def test_a_length_that_cannot_be_is_refused(more: bytes) -> None:
    assert "is not Avro by the schema that it names" in refused(schema_with(("s", "string")), more).problem


def test_a_name_as_large_as_a_record_is_refused_without_being_written_out() -> None:
    long_id = b"\x00" * LARGEST
    rest = envelope()[len(long(3)) + 3 :]
    tracemalloc.start()
    try:
        with pytest.raises(EnvelopeError, match=r"request_id: is '(\\x00)+") as caught:
            decode_avro(long(len(long_id)) + long_id + rest, 0, latest_schema())
        assert tracemalloc.get_traced_memory()[1] < 4 * LARGEST
    finally:
        tracemalloc.stop()
    assert len(str(caught.value)) < 300


def doubling(levels: int, leaf: Any) -> list[tuple[str, Any]]:
    """Records that hold the one before twice: 2^levels leaves of a schema of a few hundred characters."""
    fields: list[tuple[str, Any]] = [("l0", {"type": "record", "name": "L0", "fields": [{"name": "x", "type": leaf}]})]
    for level in range(1, levels):
        inner = [{"name": name, "type": f"L{level - 1}"} for name in ("a", "b")]
        fields.append((f"l{level}", {"type": "record", "name": f"L{level}", "fields": inner}))
    return fields


@pytest.mark.parametrize("leaf", ["null", "boolean", "int", ["null"], "string"])
def test_records_of_records_of_records_are_no_way_around(leaf: Any) -> None:
    schema = schema_with(*doubling(60, leaf))
    if leaf == "null":
        assert decode_avro(envelope(), 0, schema).request_id == "r-1"
        with pytest.raises(EnvelopeError, match="more than"):
            all_avro_fields(envelope(), 0, schema)
    else:
        refused(schema, b"\x00" * LARGEST)


def test_what_people_see_of_a_record_is_bounded_too() -> None:
    schema = schema_with(("a", {"type": "array", "items": {"type": "map", "values": "null"}}))
    with pytest.raises(EnvelopeError, match=f"more than {STEPS_MAX:,} values"):
        all_avro_fields(envelope(long(LARGEST // 2) + b"\x00" * LARGEST), 0, schema)


def record(*fields: Any) -> str:
    return json.dumps({"type": "record", "name": "R", "fields": fields})


def field(kind: Any) -> str:
    return record({"name": "a", "type": kind})


def nested(depth: int) -> str:
    return '{"type":"array","items":' * depth + '"int"' + "}" * depth


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[" * 100_000, "is not JSON"),
        ("9" * 10_000, "is not JSON"),
        ('{"type":' * 100 + '"int"' + "}" * 100, f"nested deeper than {SCHEMA_DEPTH_MAX}"),
        (f'{{"type":"record","name":"R","fields":[{{"name":"a","type":{nested(100)}}}]}}', "nested deeper than"),
        ("[" + ",".join(["{}"] * 200_000) + "]", f"more than {SCHEMA_CHARS_MAX:,} characters"),
        (
            json.dumps(
                {"type": "record", "name": "R", "fields": [{"name": f"f{n}", "type": "int"} for n in range(6000)]}
            ),
            f"more than {SCHEMA_TYPES_MAX:,} types",
        ),
        ("null", "None is no type"),
        ("[]", "a union of nothing"),
        ('["int", "string"]', "not a record"),
        ('[["int"]]', "a union directly in a union"),
        ('{"type":"record","name":"R"}', "without a list of fields"),
        ('{"type":"record","fields":[]}', "without a name"),
        ('{"type":"record","name":"R","fields":[{"name":"a","type":"int"},{"name":"a","type":"int"}]}', "two fields"),
        (
            '{"type":"record","name":"R","fields":[{"name":"a","type":{"type":"record","name":"R","fields":[]}}]}',
            "called",
        ),
        ('{"type":"record","name":"R","fields":[{"name":"a","type":{"type":"fixed","name":"F","size":-1}}]}', "a size"),
        (
            '{"type":"record","name":"R","fields":[{"name":"a","type":{"type":"fixed","name":"F","size":true}}]}',
            "a size",
        ),
        (
            '{"type":"record","name":"R","fields":[{"name":"a","type":{"type":"enum","name":"E","symbols":7}}]}',
            "symbols",
        ),
        ('{"type":"record","name":"R","fields":[{"name":"a","type":"com.acme.Meta"}]}', "type 'com.acme.Meta' is"),
    ],
)
def test_a_schema_beyond_the_bounds_or_the_rules_is_refused_in_words(text: str, problem: str) -> None:
    began = time.process_time()
    with pytest.raises(ValueError, match=problem):
        parse_avro_schema(text)
    assert time.process_time() - began < 2
