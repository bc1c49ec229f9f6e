"""A codec of one's own, as ARCHITECTURE.md explains it: MessagePack behind a byte that no other format begins with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from forebay_schemas.contract.envelope import JsonCodec, Request
from forebay_schemas.errors import EnvelopeError
from forebay_schemas.formats.envelope_reader import EnvelopeReader

MAGIC = b"\xc1"
_JSON = JsonCodec()


class MessagePackCodec:
    """Implements `Codec`."""

    content_type = "application/vnd.msgpack"

    def encode(self, fields: Mapping[str, Any]) -> bytes:
        """Raises ``EnvelopeError`` for whatever a worker would refuse: the JSON codec has the rules."""
        return MAGIC + msgspec.msgpack.encode(msgspec.json.decode(_JSON.encode(fields)))


class MessagePackReader(EnvelopeReader):
    """Reads MessagePack beside all other formats: the first byte tells."""

    __slots__ = ()

    def read(self, value: bytes | None, *, content_type: str | None = None) -> Request:
        """Raises ``EnvelopeError``, whatever the bytes are."""
        if value is None or not value.startswith(MAGIC):
            return super().read(value, content_type=content_type)
        try:
            fields = msgspec.msgpack.decode(value[len(MAGIC) :])
            as_json = msgspec.json.encode(fields)
        except (msgspec.MsgspecError, UnicodeDecodeError, TypeError) as error:
            raise EnvelopeError(
                "envelope", f"is no MessagePack: {error}", fix="write it with MessagePackCodec"
            ) from None
        return _JSON.decode(as_json)
