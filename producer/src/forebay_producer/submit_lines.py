"""What a line of `forebay submit` means: an envelope, or a bare OpenAI request body. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from forebay_producer.errors import RecordTooLargeError
from forebay_producer.line_source import LINE_BYTES_MAX, Line
from forebay_schemas.envelope_problems import explain
from forebay_schemas.topics import REQUEST_BYTES_MAX

_decoder = msgspec.json.Decoder(dict[str, Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class LineDefaults:
    """What the command's options say of lines that do not say it themselves."""

    ttl_ms: int | None
    biz_type: str | None


def is_blank(line: Line) -> bool:
    """Whether there is nothing on the line."""
    return line.text is not None and not line.text.strip()


def envelope_on(line: Line, defaults: LineDefaults) -> dict[str, Any]:
    """The envelope's fields. An object with ``messages`` or ``prompt`` and without ``payload`` is a body.

    Raises ``EnvelopeError`` and ``RecordTooLargeError``.
    """
    if line.text is None:
        raise RecordTooLargeError(record_bytes=LINE_BYTES_MAX + 1, bytes_max=REQUEST_BYTES_MAX)
    try:
        fields = _decoder.decode(line.text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise explain(error, line.text) from None
    if "payload" not in fields and ("messages" in fields or "prompt" in fields):
        kind = "chat_completion" if "messages" in fields else "completion"
        fields = {"biz_type": defaults.biz_type or kind, "payload": fields}
    elif defaults.biz_type is not None:
        fields.setdefault("biz_type", defaults.biz_type)
    if defaults.ttl_ms is not None and fields.get("ttl_ms") is None and fields.get("expire_at") is None:
        fields["ttl_ms"] = defaults.ttl_ms
    return fields
