"""Reads an envelope from a record's value; its first bytes tell the format.

JSON never begins with the bytes of Avro's single-object encoding, nor with a zero byte, with which the serializers of a
Schema Registry begin. Pure, except for the `SchemaSource`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol

import msgspec

from forebay_schemas.contract.envelope import JsonCodec, Request
from forebay_schemas.contract.envelope_problems import recover_request_id
from forebay_schemas.errors import EnvelopeError, EnvelopeTooLargeError, ForebayError
from forebay_schemas.formats.avro import (
    AVRO_CONTENT_TYPE,
    FINGERPRINT_BYTES,
    FRAMED,
    SCHEMA_ID_BYTES,
    SINGLE_OBJECT,
    all_avro_fields,
    decode_avro,
    envelope_schemas,
    our_schemas,
    replace_in_avro,
    request_of,
)
from forebay_schemas.formats.avro_process import Foreign, ForeignReader, Found, HereReader
from forebay_schemas.formats.avro_reader import AvroFields
from forebay_schemas.formats.avro_schema import AvroSchema

SCHEMA_ID_MAX: Final = 2**31 - 1

_READ_FOR_ID_BYTES_MAX: Final = 64 * 1024 * 1024
_ID_WITHIN_BYTES: Final = 64 * 1024

_BRACE: Final = ord("{")
_SINGLE_OBJECT_START: Final = len(SINGLE_OBJECT) + FINGERPRINT_BYTES
_FRAMED_START: Final = len(FRAMED) + SCHEMA_ID_BYTES
_UTF_16_BE: Final = b"\x00{\x00"

_JSON: Final = JsonCodec()
_members_decoder: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


class SchemaPendingError(ForebayError):
    """The record cannot be read yet, and nothing is wrong with it: the registry has not told the schema that it names,
    or what reads by schemas of others is busy."""

    reason = "schema_pending"

    def __init__(self, problem: str) -> None:
        super().__init__(f"{problem}; ask again")


class SchemaSource(Protocol):
    """A source of schemas by their ids in a Schema Registry."""

    def schema(self, schema_id: int) -> AvroSchema:
        """The schema that the id stands for.

        Raises ``SchemaPendingError`` as long as the registry has not told, ``EnvelopeError`` when there is none.
        """
        ...


class NoSchemas:
    """The source without a registry."""

    def schema(self, schema_id: int) -> AvroSchema:
        """Raises ``EnvelopeError``."""
        raise EnvelopeError(
            "envelope",
            f"is framed for a Schema Registry (schema {schema_id}), and none is configured here",
            fix="set FOREBAY_SCHEMA_REGISTRY_URL",
        )


class EnvelopeReader:
    """Reads records of all formats. Thread-safe if its source is."""

    __slots__ = ("_foreign", "_source")

    def __init__(self, source: SchemaSource, *, foreign: ForeignReader | None = None) -> None:
        """``foreign`` reads records with foreign schemas; by default in this process."""
        self._source = source
        self._foreign = HereReader() if foreign is None else foreign

    @property
    def reads_foreign(self) -> bool:
        """Whether records with foreign schemas are possible: only with a registry."""
        return not isinstance(self._source, NoSchemas)

    def read(self, value: bytes | None, *, content_type: str | None = None) -> Request:
        """The request in a record's value. ``content_type``: its header's, for the words about bytes that tell nothing.

        Raises ``EnvelopeError``; ``SchemaPendingError`` when its source does; nothing else, whatever the value is.
        """
        if not value or value[0] == _BRACE:
            return _JSON.decode(value)
        found = self._schema_of(value)
        if found is not None:
            start, schema = found
            if schema in our_schemas():
                return decode_avro(value, start, schema)
            read = _request_or_error(*self._foreign.read([(schema, value, start)]))
            if read is None:
                raise SchemaPendingError("what reads records by schemas of others is busy")
            if isinstance(read, EnvelopeError):
                raise read
            return read
        if content_type is not None and content_type.partition(";")[0].strip().lower() == AVRO_CONTENT_TYPE:
            raise EnvelopeError(
                "envelope",
                f"is {AVRO_CONTENT_TYPE} by its header but does not begin with its schema's identity",
                fix="use Avro's single-object encoding, or the serializer of a Schema Registry",
            )
        return _JSON.decode(value)

    def read_foreign(self, values: Sequence[bytes | None]) -> dict[int, Request | EnvelopeError]:
        """What those of ``values`` say that schemas of others wrote, by their places; the others are left to `read`.

        All at once: one by one takes three times as long. Those that could not be read now, through no fault of their
        own, are missing: so is one whose schema is not known yet. Never raises.
        """
        found: dict[int, Request | EnvelopeError] = {}
        records: dict[int, Foreign] = {}
        for place, value in enumerate(values):
            foreign = self._foreign_in(value)
            if foreign is not None:
                records[place] = foreign
        if records:
            for place, item in zip(records, self._foreign.read(list(records.values())), strict=True):
                read = _request_or_error(item)
                if read is not None:
                    found[place] = read
        return found

    def is_foreign(self, value: bytes | None) -> bool:
        """Whether the value has a foreign schema that is already known."""
        return self._foreign_in(value) is not None

    def _foreign_in(self, value: bytes | None) -> Foreign | None:
        if not value or not value.startswith(FRAMED):
            return None
        try:
            found = self._schema_of(value)
        except (EnvelopeError, SchemaPendingError):
            return None
        return None if found is None or found[1] in our_schemas() else (found[1], value, found[0])

    def fields(self, value: bytes) -> dict[str, Any]:
        """All fields by name, unknown ones too, as JSON (``msgspec.Raw`` or plain). As `read`."""
        found = self._schema_of(value)
        if found is not None:
            start, schema = found
            return all_avro_fields(value, start, schema)
        _JSON.decode(value)
        return dict(_members_decoder.decode(value))

    def replace(self, value: bytes, changes: Mapping[str, Any]) -> bytes:
        """The same envelope in the same format with some fields replaced. As `read`."""
        found = self._schema_of(value)
        if found is not None:
            start, schema = found
            return replace_in_avro(value, start, schema, changes)
        _JSON.decode(value)
        return msgspec.json.encode({**_members_decoder.decode(value), **changes})

    def _schema_of(self, value: bytes) -> tuple[int, AvroSchema] | None:
        """Where the Avro begins, and its schema; None when the value is not Avro."""
        if value.startswith(SINGLE_OBJECT):
            fingerprint = value[len(SINGLE_OBJECT) : _SINGLE_OBJECT_START]
            schema = envelope_schemas().get(fingerprint)
            if schema is None:
                raise EnvelopeError(
                    "envelope",
                    f"is Avro by a schema that this version does not know (fingerprint {fingerprint.hex()})",
                    fix="use the schema in forebay_schemas, or a newer version here, or a Schema Registry",
                )
            return _SINGLE_OBJECT_START, schema
        if value.startswith(FRAMED) and len(value) >= _FRAMED_START and not value.startswith(_UTF_16_BE):
            schema_id = int.from_bytes(value[len(FRAMED) : _FRAMED_START], "big")
            if schema_id <= SCHEMA_ID_MAX:
                return _FRAMED_START, self._source.schema(schema_id)
        return None


def _request_or_error(found: Found) -> Request | EnvelopeError | None:
    if not isinstance(found, AvroFields):
        return found
    try:
        return request_of(found)
    except EnvelopeError as error:
        return error


def too_large(value: bytes | None, size_bytes: int, *, bytes_max: int) -> EnvelopeTooLargeError:
    """The error for a record of ``size_bytes`` where ``bytes_max`` are taken, with its id if that can be read soon."""
    request_id = None
    if value is not None and value[:1] == b"{":
        # All of it up to a size that takes a hundredth of a second, the first of it beyond.
        request_id = recover_request_id(value if len(value) <= _READ_FOR_ID_BYTES_MAX else value[:_ID_WITHIN_BYTES])
    elif value is not None and value.startswith(SINGLE_OBJECT):
        with suppress(EnvelopeError):
            request_id = EnvelopeReader(NoSchemas()).read(value).request_id
    return EnvelopeTooLargeError(
        "envelope",
        f"is in a record of {size_bytes:,} bytes, uncompressed, where {bytes_max:,} are taken",
        fix="send a reference to what is large, or less of it",
        request_id=request_id,
    )
