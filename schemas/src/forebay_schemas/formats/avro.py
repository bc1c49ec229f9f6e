"""The envelope in Avro, as the package's .avsc files say it. Pure, but that it reads those files when first asked.

Payload, reply and unknown fields are JSON within Avro, as bytes: what reaches the engine is what was sent.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Final

import fastavro
import msgspec
from fastavro.schema import fingerprint, to_parsing_canonical_form

from forebay_schemas.contract.envelope import NO_JSON, Request, encode_checked
from forebay_schemas.contract.envelope_problems import explain_rule, shown
from forebay_schemas.errors import EnvelopeError

AVRO_CONTENT_TYPE: Final = "application/avro"
"""As in the CloudEvents binding for Kafka, 3.2.5."""

SINGLE_OBJECT: Final = b"\xc3\x01"
"""How Avro's single-object encoding begins; the schema's fingerprint follows in 8 bytes. No UTF-8 text begins so."""

FRAMED: Final = b"\x00"
"""How a record of a Schema Registry's serializers begins; the schema's id follows in 4 bytes, big-endian."""

FINGERPRINT_BYTES: Final = 8
SCHEMA_ID_BYTES: Final = 4

_VERSIONS: Final = ("request-1.avsc",)
"""Every version that was ever written, oldest first. A version that was released does not change."""

_SCALARS: Final = ("request_id", "biz_type", "priority", "ttl_ms", "expire_at", "sent_at", "tenant", "max_attempts")
_FIX: Final = "write it with the schema it names; the envelope's own is request-1.avsc in forebay_schemas"

_raw_decoder: Final = msgspec.json.Decoder(msgspec.Raw)
_members_decoder: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


@dataclass(frozen=True, slots=True, kw_only=True)
class AvroSchema:
    """A schema that records are written with. ``text`` is its JSON, ``parsed`` what fastavro makes of it."""

    text: str
    parsed: Any

    @property
    def fingerprint(self) -> bytes:
        """Its 64-bit Rabin fingerprint, little-endian, as single-object encoding carries it."""
        return bytes.fromhex(fingerprint(to_parsing_canonical_form(self.parsed), "CRC-64-AVRO"))


def parse_avro_schema(text: str) -> AvroSchema:
    """Raises ``ValueError`` saying why the text is no Avro schema of a record that stands by itself.

    It is for reading what others wrote, so their defaults are left out, and so are logical types: the envelope has
    numbers, however they are called.
    """
    try:
        parsed = fastavro.parse_schema(_plain(json.loads(text)))
    except Exception as error:  # noqa: BLE001 - fastavro raises whatever a strange schema makes it run into
        raise ValueError(f"{type(error).__name__}: {error}"[:200]) from None
    if not isinstance(parsed, dict) or parsed.get("type") != "record":
        raise ValueError("not a record")
    return AvroSchema(text=text, parsed=parsed)


def _plain(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_plain(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("type") == "array" and _takes_no_bytes(schema.get("items")):
        # Eleven bytes could say that there are 2^63 of them, and reading would not end.
        raise ValueError("an array of items that take no bytes")
    return {name: _plain(item) for name, item in schema.items() if name not in ("default", "logicalType")}


def _takes_no_bytes(schema: Any) -> bool:
    if not isinstance(schema, dict):
        return bool(schema == "null")
    if schema.get("type") == "record":
        return all(_takes_no_bytes(field.get("type")) for field in schema.get("fields", ()))
    return schema.get("type") == "null" or (schema.get("type") == "fixed" and not schema.get("size"))


@cache
def envelope_schemas() -> Mapping[bytes, AvroSchema]:
    """All versions of the envelope's schema by their fingerprints, the latest last."""
    folder = files("forebay_schemas.formats") / "avsc"
    texts = [(folder / name).read_text(encoding="utf-8") for name in _VERSIONS]
    schemas = [AvroSchema(text=text, parsed=fastavro.parse_schema(json.loads(text))) for text in texts]
    return {schema.fingerprint: schema for schema in schemas}


@cache
def latest_schema() -> AvroSchema:
    """The version that is written."""
    return list(envelope_schemas().values())[-1]


class AvroCodec:
    """Avro whose first bytes say by which schema it was written: a fingerprint, or an id in a Schema Registry."""

    __slots__ = ("_prefix",)

    content_type = AVRO_CONTENT_TYPE

    def __init__(self, *, schema_id: int | None) -> None:
        """``schema_id``: the registry's, of `latest_schema`. None: single-object encoding, with no registry."""
        self._prefix = (
            SINGLE_OBJECT + latest_schema().fingerprint
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
        fastavro.schemaless_writer(out, latest_schema().parsed, datum)
        return out.getvalue()


def decode_avro(value: bytes, start: int, writer: AvroSchema) -> Request:
    """The request in ``value`` from byte ``start`` on, written by ``writer``. Raises ``EnvelopeError`` only."""
    latest = latest_schema()
    datum = _read(value, start, writer, None if writer is latest else latest)
    request_id: str = datum["request_id"]
    try:
        return Request(
            request_id,
            datum["biz_type"],
            _json(datum["payload"], "payload", request_id),
            datum["priority"],
            datum["ttl_ms"],
            datum["expire_at"],
            datum["sent_at"],
            datum["tenant"],
            datum["max_attempts"],
            NO_JSON if datum["reply"] is None else _json(datum["reply"], "reply", request_id),
        )
    except ValueError as error:
        raise explain_rule(str(error), request_id=request_id) from None


def avro_fields(value: bytes, start: int, writer: AvroSchema) -> dict[str, Any]:
    """All fields by name, as JSON would have them, for people: those this version does not know as the writer has them.

    Raises ``EnvelopeError``.
    """
    datum = _read(value, start, writer, None)
    extra = datum.pop("extra", None)
    fields = {name: item for name, item in datum.items() if item is not None}
    for name in ("payload", "reply"):
        if isinstance(fields.get(name), bytes | str):
            fields[name] = _json(fields[name], name, None)
    if isinstance(extra, dict):
        fields |= {name: _json(item, name, None) for name, item in extra.items()}
    return fields


def replace_in_avro(value: bytes, start: int, writer: AvroSchema, changes: Mapping[str, Any]) -> bytes:
    """The same record with other values for some fields; all else is written again as it was, by the same schema.

    Raises ``EnvelopeError`` when that schema cannot say it.
    """
    datum = _read(value, start, writer, None)
    names = {field["name"] for field in writer.parsed["fields"]}
    for name in changes:
        if name not in names:
            raise EnvelopeError(
                name, "is no field of the schema that the record was written with", fix="leave it as it is"
            )
    out = io.BytesIO()
    out.write(value[:start])
    try:
        fastavro.schemaless_writer(out, writer.parsed, datum | dict(changes))
    except Exception as error:  # noqa: BLE001 - as in reading
        raise EnvelopeError("envelope", f"cannot be written again: {error}"[:200], fix="leave it as it is") from None
    return out.getvalue()


def _read(value: bytes, start: int, writer: AvroSchema, reader: AvroSchema | None) -> dict[str, Any]:
    source = io.BytesIO(value)
    source.seek(start)
    try:
        datum: Any = fastavro.schemaless_reader(source, writer.parsed, None if reader is None else reader.parsed)
    except Exception as error:  # noqa: BLE001 - foreign bytes make fastavro raise anything: EOFError, IndexError...
        why = f"{type(error).__name__}: {error}" if str(error) else "it breaks off"
        raise EnvelopeError("envelope", f"is not Avro by the schema that it names ({why})"[:300], fix=_FIX) from None
    left = len(value) - source.tell()
    if left:
        raise EnvelopeError("envelope", f"has {left} bytes after its end, by the schema that it names", fix=_FIX)
    return datum  # type: ignore[no-any-return]


def _json(text: bytes | str, name: str, request_id: str | None) -> msgspec.Raw:
    try:
        data = text.encode() if isinstance(text, str) else text
        if not data.isascii():
            data.decode()
        return _raw_decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        raise EnvelopeError(
            name, f"is {shown(text)}, which is not JSON in UTF-8", fix="put JSON there", request_id=request_id
        ) from None
