"""Reads an envelope from a record's value, whatever format it is in: the bytes themselves say which.

JSON never begins with the bytes of Avro's single-object encoding, nor with a zero byte, which is how the serializers of
a Schema Registry begin. Pure, but for what a `SchemaSource` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

import msgspec

from forebay_schemas.contract.envelope import JsonCodec, Request
from forebay_schemas.errors import EnvelopeError, ForebayError
from forebay_schemas.formats.avro import (
    AVRO_CONTENT_TYPE,
    FINGERPRINT_BYTES,
    FRAMED,
    SCHEMA_ID_BYTES,
    SINGLE_OBJECT,
    AvroSchema,
    avro_fields,
    decode_avro,
    envelope_schemas,
    replace_in_avro,
)

SCHEMA_ID_MAX: Final = 2**31 - 1

_BRACE: Final = ord("{")
_SINGLE_OBJECT_START: Final = len(SINGLE_OBJECT) + FINGERPRINT_BYTES
_FRAMED_START: Final = len(FRAMED) + SCHEMA_ID_BYTES
_UTF_16_BE: Final = b"\x00{\x00"

_JSON: Final = JsonCodec()
_members_decoder: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


class SchemaPendingError(ForebayError):
    """The schema that the record names is not known yet: the registry has not answered. Nothing is wrong with it."""

    reason = "schema_pending"

    def __init__(self, schema_id: int) -> None:
        super().__init__(f"schema {schema_id} is not known yet; ask again")
        self.schema_id = schema_id


class SchemaSource(Protocol):
    """Where schemas are known by their ids in a Schema Registry."""

    def schema(self, schema_id: int) -> AvroSchema:
        """The schema that the id stands for.

        Raises ``SchemaPendingError`` as long as the registry has not told, ``EnvelopeError`` when there is none.
        """
        ...


class NoSchemas:
    """The source where no registry is configured."""

    def schema(self, schema_id: int) -> AvroSchema:
        """Raises ``EnvelopeError``."""
        raise EnvelopeError(
            "envelope",
            f"is framed for a Schema Registry (schema {schema_id}), and none is configured here",
            fix="set FOREBAY_SCHEMA_REGISTRY_URL",
        )


class EnvelopeReader:
    """Reads records of every format. Thread-safe when its source is."""

    __slots__ = ("_source",)

    def __init__(self, source: SchemaSource) -> None:
        self._source = source

    def read(self, value: bytes | None, *, content_type: str | None = None) -> Request:
        """The request in a record's value. ``content_type``: its header's, for the words about bytes that tell nothing.

        Raises ``EnvelopeError``; ``SchemaPendingError`` when its source does; nothing else, whatever the value is.
        """
        if not value or value[0] == _BRACE:
            return _JSON.decode(value)
        found = self._schema_of(value)
        if found is not None:
            start, schema = found
            return decode_avro(value, start, schema)
        if content_type is not None and content_type.partition(";")[0].strip().lower() == AVRO_CONTENT_TYPE:
            raise EnvelopeError(
                "envelope",
                f"is {AVRO_CONTENT_TYPE} by its header but does not begin with its schema's identity",
                fix="use Avro's single-object encoding, or the serializer of a Schema Registry",
            )
        return _JSON.decode(value)

    def fields(self, value: bytes) -> dict[str, Any]:
        """All fields by name, unknown ones too, as JSON would have them (``msgspec.Raw`` or plain). As `read`."""
        found = self._schema_of(value)
        if found is not None:
            start, schema = found
            return avro_fields(value, start, schema)
        _JSON.decode(value)
        return dict(_members_decoder.decode(value))

    def replace(self, value: bytes, changes: Mapping[str, Any]) -> bytes:
        """The same envelope in the same format with other values for some fields; all others stay. As `read`."""
        found = self._schema_of(value)
        if found is not None:
            start, schema = found
            return replace_in_avro(value, start, schema, changes)
        _JSON.decode(value)
        return msgspec.json.encode({**_members_decoder.decode(value), **changes})

    def _schema_of(self, value: bytes) -> tuple[int, AvroSchema] | None:
        """Where the Avro begins, and by which schema; None when the value is no Avro that says so."""
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
