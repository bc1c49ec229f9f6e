"""The envelope in Avro: it says what it says in JSON, and whatever the bytes are, they end in a request or an error."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable
from typing import Any

import fastavro
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_schemas.contract.envelope import JsonCodec
from forebay_schemas.errors import EnvelopeError
from forebay_schemas.formats.avro import (
    AvroCodec,
    envelope_schemas,
    latest_schema,
)
from forebay_schemas.formats.avro_schema import AvroSchema, parse_avro_schema
from forebay_schemas.formats.envelope_reader import EnvelopeReader, NoSchemas, SchemaPendingError

READER = EnvelopeReader(NoSchemas())
CODEC = AvroCodec(schema_id=None)
FRAMED = AvroCodec(schema_id=7)

MINIMAL = {"request_id": "r-1", "biz_type": "chat_completion", "payload": {"model": "m", "messages": []}}
FULL = MINIMAL | {
    "priority": 10,
    "ttl_ms": 5_000,
    "expire_at": 1_900_000_005_000,
    "sent_at": 1_900_000_000_000,
    "tenant": "Grüße",
    "max_attempts": 3,
    "reply": {"to": [1, None, "x"]},
    "later": {"a": [1e300, None]},
    "payload_ref": None,
}


class Registered:
    """A `SchemaSource` that knows these, and waits for all others."""

    def __init__(self, **schemas: AvroSchema) -> None:
        self._schemas = schemas

    def schema(self, schema_id: int) -> AvroSchema:
        if f"s{schema_id}" not in self._schemas:
            raise SchemaPendingError(f"schema {schema_id} is not known yet")
        return self._schemas[f"s{schema_id}"]


def plain(fields: dict[str, Any]) -> Any:
    return msgspec.json.decode(msgspec.json.encode(fields))


def changed(change: Callable[[dict[str, Any]], None]) -> AvroSchema:
    """The latest schema with a change, as whoever wrote it has it."""
    document = json.loads(latest_schema().text)
    change(document)
    return parse_avro_schema(json.dumps(document))


def parsed(schema: AvroSchema) -> Any:
    return fastavro.parse_schema(json.loads(schema.text))


def written(schema: AvroSchema, **fields: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(
        out, parsed(schema), {"request_id": "r-1", "biz_type": "chat_completion", "payload": b"{}"} | fields
    )
    return b"\x00\x00\x00\x00\x07" + out.getvalue()


@pytest.mark.parametrize("fields", [MINIMAL, FULL, MINIMAL | {"priority": "low", "tenant": None, "reply": None}])
@pytest.mark.parametrize("codec", [CODEC, FRAMED], ids=["single-object", "framed"])
def test_avro_says_what_json_says(codec: AvroCodec, fields: dict[str, Any]) -> None:
    reader = EnvelopeReader(Registered(s7=latest_schema()))
    in_json, in_avro = reader.read(JsonCodec().encode(fields)), reader.read(codec.encode(fields))
    assert bytes(in_avro.payload) == bytes(in_json.payload)
    assert [bytes(request.reply) for request in (in_avro, in_json)] == 2 * [msgspec.json.encode(fields.get("reply"))]
    assert [getattr(in_avro, name) for name in in_avro.__struct_fields__ if name not in ("payload", "reply")] == [
        getattr(in_json, name) for name in in_json.__struct_fields__ if name not in ("payload", "reply")
    ]


def test_the_payload_comes_out_as_the_bytes_that_went_in() -> None:
    payload = b'{"b":1.0,"a":[1e2,"\\u00fc"],"a":2}'
    assert bytes(READER.read(CODEC.encode(MINIMAL | {"payload": msgspec.Raw(payload)})).payload) == payload


def test_it_begins_as_the_standards_say() -> None:
    fingerprint = next(iter(envelope_schemas()))
    assert CODEC.encode(MINIMAL).startswith(b"\xc3\x01" + fingerprint)
    assert FRAMED.encode(MINIMAL).startswith(b"\x00\x00\x00\x00\x07")
    assert CODEC.content_type == "application/avro"


@pytest.mark.parametrize("codec", [CODEC, JsonCodec()], ids=["avro", "json"])
def test_all_fields_can_be_seen_and_some_replaced(codec: AvroCodec | JsonCodec) -> None:
    value = codec.encode(FULL)
    shown = plain(READER.fields(value))
    assert {name: item for name, item in shown.items() if item is not None} == {
        name: item for name, item in FULL.items() if item is not None
    }
    again = READER.replace(value, {"ttl_ms": 60_000})
    assert again[:2] == value[:2]
    assert plain(READER.fields(again)) == shown | {"ttl_ms": 60_000}


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"request_id": ""}, "request_id"),
        ({"biz_type": "a\nb"}, "biz_type"),
        ({"payload": []}, "payload"),
        ({"priority": 11}, "priority"),
        ({"priority": True}, "priority"),
        ({"ttl_ms": 0}, "ttl_ms"),
        ({"expire_at": 1_900_000_000}, "expire_at"),
        ({"max_attempts": 1.5}, "max_attempts"),
        ({"later": float("nan")}, "later"),
        ({"later": object()}, "later"),
    ],
)
def test_what_json_refuses_is_refused_in_the_same_words(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(EnvelopeError) as in_avro:
        CODEC.encode(MINIMAL | fields)
    with pytest.raises(EnvelopeError) as in_json:
        JsonCodec().encode(MINIMAL | fields)
    assert str(in_avro.value) == str(in_json.value)
    assert in_avro.value.field == field


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"payload": b"[]"}, "payload: is not an object"),
        ({"payload": b"{"}, "payload: is b'{', which is not JSON in UTF-8"),
        ({"payload": b'{"a":"\xff"}'}, "payload: is "),
        ({"payload": b""}, "payload: is b'', which"),
        ({"reply": b"nan"}, "reply: is b'nan'"),
        ({"priority": 11}, "priority: is 11"),
        ({"ttl_ms": -(2**63)}, "ttl_ms: is -9223372036854775808"),
        ({"tenant": ""}, "tenant: is ''"),
    ],
)
def test_a_bad_field_is_named_with_its_request(fields: dict[str, Any], problem: str) -> None:
    reader = EnvelopeReader(Registered(s7=latest_schema()))
    with pytest.raises(EnvelopeError) as caught:
        reader.read(written(latest_schema(), **fields))
    assert str(caught.value).startswith(problem)
    assert caught.value.request_id == "r-1"


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (b"\xc3\x01", "does not know"),
        (b"\xc3\x01" + b"a" * 20, r"fingerprint 6161616161616161"),
        (CODEC.encode(FULL)[:-1], "is not Avro by the schema that it names"),
        (CODEC.encode(FULL) + b"x", "has 1 bytes after its end"),
        (b"\x00\x00\x00\x00\x07", "set FOREBAY_SCHEMA_REGISTRY_URL"),
        (b"\x00\xff\xff\xff\xff{}", "envelope: is "),
        (b"\x00", "envelope: is "),
        ('{"request_id":"r-1"}'.encode("utf-16-be"), "UTF-16"),
    ],
)
def test_undecodable_bytes_are_explained(value: bytes, problem: str) -> None:
    with pytest.raises(EnvelopeError, match=problem):
        READER.read(value)


def test_avro_that_does_not_say_its_schema_is_told_how_to() -> None:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, parsed(latest_schema()), {"request_id": "r", "biz_type": "b", "payload": b"{}"})
    with pytest.raises(EnvelopeError, match="does not begin with its schema's identity; use Avro's single-object"):
        READER.read(out.getvalue(), content_type="Application/Avro; x=y")


@pytest.mark.parametrize("content_type", [None, "application/json", "application/avro", "text/plain", "x" * 10_000])
def test_json_is_read_whatever_the_header_says(content_type: str | None) -> None:
    assert READER.read(JsonCodec().encode(MINIMAL), content_type=content_type).request_id == "r-1"
    assert READER.read(b" " + JsonCodec().encode(MINIMAL)).request_id == "r-1"


@given(
    st.binary(max_size=200), st.sampled_from([b"", b"\x00\x00\x00\x00\x07", CODEC.encode(MINIMAL)[:10], b"\xc3\x01"])
)
def test_any_bytes_end_in_a_request_or_an_error(value: bytes, prefix: bytes) -> None:
    reader = EnvelopeReader(Registered(s7=latest_schema()))
    for content_type in (None, "application/avro"):
        with contextlib.suppress(EnvelopeError, SchemaPendingError):
            assert reader.read(prefix + value, content_type=content_type).request_id


@given(st.integers(0, 200), st.integers(0, 255))
def test_any_damage_ends_in_a_request_or_an_error(at: int, byte: int) -> None:
    value = bytearray(CODEC.encode(FULL))
    value[at % len(value)] = byte
    with contextlib.suppress(EnvelopeError):
        assert READER.read(bytes(value)).request_id


def _add_optional(document: dict[str, Any]) -> None:
    document["fields"].insert(0, {"name": "cost_centre", "type": ["null", "string"], "default": None})


def _payload_as_string(document: dict[str, Any]) -> None:
    next(field for field in document["fields"] if field["name"] == "payload")["type"] = "string"


def _narrower(document: dict[str, Any]) -> None:
    field = next(field for field in document["fields"] if field["name"] == "ttl_ms")
    field |= {"type": "int", "default": 1}


def _no_optional_fields(document: dict[str, Any]) -> None:
    document["fields"] = document["fields"][:3]


def _times_as_timestamps(document: dict[str, Any]) -> None:
    for field in document["fields"]:
        if field["name"] in ("expire_at", "sent_at"):
            field["type"] = ["null", {"type": "long", "logicalType": "timestamp-millis"}]


def _other_namespace(document: dict[str, Any]) -> None:
    document["namespace"] = "com.example"


CHANGES = [_add_optional, _payload_as_string, _narrower, _no_optional_fields, _times_as_timestamps, _other_namespace]


@pytest.mark.parametrize("change", CHANGES)
def test_an_old_reader_reads_what_a_changed_schema_wrote(change: Callable[[dict[str, Any]], None]) -> None:
    writer = changed(change)
    names = set(writer.root.names)
    given_fields = {"ttl_ms": 5_000, "expire_at": 1_900_000_000_000, "cost_centre": "x"}
    fields = {name: item for name, item in given_fields.items() if name in names}
    if change is _payload_as_string:
        fields["payload"] = "{}"
    value = written(writer, **fields)
    reader = EnvelopeReader(Registered(s7=parse_avro_schema(writer.text)))
    request = reader.read(value)
    assert (request.request_id, bytes(request.payload)) == ("r-1", b"{}")
    assert request.ttl_ms == fields.get("ttl_ms")
    assert request.expire_at == fields.get("expire_at")
    # What it does not know is not lost either: nobody writes the record anew but to give it time.
    assert plain(reader.fields(value)) == {"request_id": "r-1", "biz_type": "chat_completion", "payload": {}} | {
        name: item for name, item in fields.items() if name != "payload"
    }
    if "ttl_ms" in names:
        again = reader.replace(value, {"ttl_ms": 7})
        assert again[:5] == value[:5]
        assert plain(reader.fields(again)) == plain(reader.fields(value)) | {"ttl_ms": 7}
    else:
        with pytest.raises(EnvelopeError, match="ttl_ms: is no field of the schema"):
            reader.replace(value, {"ttl_ms": 7})


@pytest.mark.parametrize("change", [_add_optional, _no_optional_fields, _other_namespace])
def test_a_changed_reader_reads_what_this_version_wrote(change: Callable[[dict[str, Any]], None]) -> None:
    value = CODEC.encode(FULL)[10:]
    datum: Any = fastavro.schemaless_reader(io.BytesIO(value), parsed(latest_schema()), parsed(changed(change)))
    assert (datum["request_id"], json.loads(datum["payload"])) == ("r-1", FULL["payload"])


@pytest.mark.parametrize(
    "document",
    [
        "{",
        '"null"',
        '{"type":"record","name":"Request","fields":[{"name":"a","type":"com.example.Unknown"}]}',
        '{"type":"record","name":"Request","fields":[{"name":"a","type":{"type":"array","items":"null"}}]}',
        "[" * 100_000,
    ],
)
def test_what_is_no_schema_of_a_record_is_refused(document: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_avro_schema(document)


def test_another_record_s_schema_is_no_envelope() -> None:
    order = parse_avro_schema('{"type":"record","name":"Order","fields":[{"name":"id","type":"long"}]}')
    with pytest.raises(EnvelopeError, match="request_id: is no field of the schema that it was written with"):
        EnvelopeReader(Registered(s7=order)).read(b"\x00\x00\x00\x00\x07\x02")


def test_a_schema_that_is_not_known_yet_is_no_error_of_the_record() -> None:
    with pytest.raises(SchemaPendingError):
        EnvelopeReader(Registered()).read(FRAMED.encode(MINIMAL))
