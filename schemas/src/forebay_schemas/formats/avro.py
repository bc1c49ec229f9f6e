"""The envelope in Avro, by the package's .avsc files. Pure, except that it reads those files on first use.

Payload, reply and unknown fields are JSON within Avro, as bytes: what reaches the engine is what was sent.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Final

import fastavro
import msgspec
from fastavro.schema import fingerprint, to_parsing_canonical_form

from forebay_schemas.contract.envelope import NO_JSON, Request, encode_checked
from forebay_schemas.contract.envelope_problems import explain_rule, is_request_id, shown
from forebay_schemas.errors import EnvelopeError
from forebay_schemas.formats.avro_reader import SHOWN_BYTES, AvroFields, BytesLeftError, read_all, read_fields, spans
from forebay_schemas.formats.avro_schema import AvroSchema, Kind, Node, is_same, parse_avro_schema

AVRO_CONTENT_TYPE: Final = "application/avro"
"""As in the CloudEvents binding for Kafka, 3.2.5."""

SINGLE_OBJECT: Final = b"\xc3\x01"
"""The prefix of Avro's single-object encoding; the schema's fingerprint follows in 8 bytes. No UTF-8 text starts so."""

FRAMED: Final = b"\x00"
"""The prefix of a Schema Registry's framing; the schema's id follows in 4 bytes, big-endian."""

FINGERPRINT_BYTES: Final = 8
SCHEMA_ID_BYTES: Final = 4

_VERSIONS: Final = ("request-1.avsc",)
"""All versions ever written, oldest first. A released version never changes."""

_SCALARS: Final = ("request_id", "biz_type", "priority", "ttl_ms", "expire_at", "sent_at", "tenant", "max_attempts")
_FIX: Final = "write it with the schema it names; the envelope's own is request-1.avsc in forebay_schemas"

_raw_decoder: Final = msgspec.json.Decoder(msgspec.Raw)
_members_decoder: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


@cache
def envelope_schemas() -> Mapping[bytes, AvroSchema]:
    """All versions of the envelope's schema by their 64-bit Rabin fingerprints, little-endian, the latest last."""
    folder = files("forebay_schemas.formats") / "avsc"
    texts = [(folder / name).read_text(encoding="utf-8") for name in _VERSIONS]
    return {_fingerprint(text): parse_avro_schema(text) for text in texts}


def _fingerprint(text: str) -> bytes:
    return bytes.fromhex(fingerprint(to_parsing_canonical_form(json.loads(text)), "CRC-64-AVRO"))


@cache
def latest_schema() -> AvroSchema:
    """The schema that new records are written with."""
    return list(envelope_schemas().values())[-1]


@cache
def _written() -> Any:
    return fastavro.parse_schema(json.loads(latest_schema().text))


def ours_or(schema: AvroSchema) -> AvroSchema:
    """Our version that encodes records as this schema does, whatever its name; without one, the schema itself."""
    return next((ours for ours in envelope_schemas().values() if is_same(schema.root, ours.root)), schema)


@cache
def our_schemas() -> frozenset[AvroSchema]:
    """The schemas of all versions. The cost of decoding their records is known."""
    return frozenset(envelope_schemas().values())


class AvroCodec:
    """Avro with a prefix that names its schema: a fingerprint, or an id in a Schema Registry."""

    __slots__ = ("_prefix",)

    content_type = AVRO_CONTENT_TYPE

    def __init__(self, *, schema_id: int | None) -> None:
        """``schema_id``: the registry's, of `latest_schema`. None: single-object encoding, with no registry."""
        self._prefix = (
            SINGLE_OBJECT + list(envelope_schemas())[-1]
            if schema_id is None
            else FRAMED + schema_id.to_bytes(SCHEMA_ID_BYTES, "big")
        )

    def encode(self, fields: Mapping[str, Any]) -> bytes:
        """As `Codec.encode`."""
        value, request = encode_checked(fields)
        members = _members_decoder.decode(value)
        datum = {name: getattr(request, name) for name in _SCALARS}
        datum["payload"] = bytes(members["payload"])
        if "reply" in members and (reply := bytes(request.reply)) != b"null":
            datum["reply"] = reply
        datum["extra"] = {name: bytes(members[name]) for name in members if name not in Request.__struct_fields__}
        out = io.BytesIO()
        out.write(self._prefix)
        fastavro.schemaless_writer(out, _written(), datum)
        return out.getvalue()


def decode_avro(value: bytes, start: int, writer: AvroSchema) -> Request:
    """The request in ``value`` from byte ``start`` on, written by ``writer``. Raises ``EnvelopeError`` only."""
    return request_of(avro_fields(value, start, writer))


def avro_fields(value: bytes, start: int, writer: AvroSchema) -> AvroFields:
    """The first half of `decode_avro`, whose cost a foreign schema decides. Raises ``EnvelopeError``."""
    try:
        return read_fields(value, start, writer)
    except ValueError as error:
        raise _explain(error) from None


def request_of(fields: AvroFields) -> Request:
    """The second half of `decode_avro`. Raises ``EnvelopeError``."""
    request_id = fields.request_id
    # Outcomes are written under valid ids only.
    known = request_id if request_id is not None and is_request_id(request_id) else None
    if fields.problem is not None:
        name, problem = fields.problem
        raise EnvelopeError(name, problem, fix=_FIX, request_id=known)
    assert request_id is not None
    assert fields.biz_type is not None
    assert fields.payload is not None
    try:
        return Request(
            request_id,
            fields.biz_type,
            _json(fields.payload, "payload", known),
            fields.priority,
            fields.ttl_ms,
            fields.expire_at,
            fields.sent_at,
            fields.tenant,
            fields.max_attempts,
            NO_JSON if fields.reply is None else _json(fields.reply, "reply", known),
        )
    except ValueError as error:
        raise explain_rule(str(error), request_id=known) from None


def all_avro_fields(value: bytes, start: int, writer: AvroSchema) -> dict[str, Any]:
    """All fields by name as in JSON, for people. Fields unknown to this version are as the writer has them.

    Raises ``EnvelopeError``.
    """
    try:
        datum = read_all(value, start, writer)
    except ValueError as error:
        raise _explain(error) from None
    extra = datum.pop("extra", None)
    fields = {name: item for name, item in datum.items() if item is not None}
    for name in ("payload", "reply"):
        if isinstance(fields.get(name), bytes | str):
            fields[name] = _json(fields[name], name, None)
    if isinstance(extra, dict):
        fields |= {name: _json(item, name, None) for name, item in extra.items()}
    return fields


def replace_in_avro(value: bytes, start: int, writer: AvroSchema, changes: Mapping[str, int | None]) -> bytes:
    """The record with new numbers in some fields; all other bytes stay.

    Raises ``EnvelopeError`` if its schema cannot hold them.
    """
    try:
        found = spans(value, start, writer)
    except ValueError as error:
        raise _explain(error) from None
    pieces: list[tuple[int, int, bytes]] = []
    for name, number in changes.items():
        if name not in found:
            raise EnvelopeError(
                name, "is no field of the schema that the record was written with", fix="leave it as it is"
            )
        node, begin, end = found[name]
        written = _number_as(node, number)
        if written is None:
            raise EnvelopeError(name, f"cannot be {number} by the schema of the record", fix="leave it as it is")
        pieces.append((begin, end, written))
    at, out = 0, bytearray()
    for begin, end, written in sorted(pieces):
        out += value[at:begin] + written
        at = end
    return bytes(out + value[at:])


def _number_as(node: Node, number: int | None) -> bytes | None:
    """The number, or null, as a value of this type; None when the type has no such value."""
    if node.kind is Kind.UNION:
        for index, branch in enumerate(node.nodes):
            written = _number_as(branch, number)
            if written is not None:
                return _varint(index) + written
        return None
    if number is None:
        return b"" if node.type == "null" else None
    bits = {"int": 31, "long": 63}.get(node.type)
    return _varint(number) if bits is not None and -(2**bits) <= number < 2**bits else None


def _varint(number: int) -> bytes:
    left, out = (number << 1) ^ (number >> 63), bytearray()
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    out.append(left)
    return bytes(out)


def _explain(error: ValueError) -> EnvelopeError:
    if isinstance(error, BytesLeftError):
        return EnvelopeError(
            "envelope", f"has {error.count} bytes after its end, by the schema that it names", fix=_FIX
        )
    return EnvelopeError("envelope", f"is not Avro by the schema that it names ({error})"[:300], fix=_FIX)


def _json(text: bytes | str, name: str, request_id: str | None) -> msgspec.Raw:
    try:
        data = text.encode() if isinstance(text, str) else text
        if not data.isascii():
            data.decode()
        return _raw_decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        raise EnvelopeError(
            name,
            f"is {shown(text[:SHOWN_BYTES])}, which is not JSON in UTF-8",
            fix="put JSON there",
            request_id=request_id,
        ) from None
