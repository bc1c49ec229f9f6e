"""Parses a line of `forebay submit`: an envelope, an OpenAI request body, or a line of an OpenAI batch. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from forebay_producer.cli.line_source import LINE_BYTES_MAX, Line
from forebay_producer.errors import RecordTooLargeError
from forebay_schemas.contract.envelope_problems import explain
from forebay_schemas.contract.request_lines import as_envelope
from forebay_schemas.contract.tiers import DEFAULT_TTL_MS, TTL_MS_MAX, Tier
from forebay_schemas.contract.topics import REQUEST_BYTES_MAX

_decoder = msgspec.json.Decoder(dict[str, Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class LineDefaults:
    """Values from the command's options, for lines that lack them."""

    ttl_ms: int | None
    biz_type: str | None


def is_blank(line: Line) -> bool:
    """Whether there is nothing on the line."""
    return line.text is not None and not line.text.strip()


def envelope_on(line: Line, defaults: LineDefaults) -> dict[str, Any]:
    """The envelope's fields. Raises ``UsageError`` (``EnvelopeError``, ``RecordTooLargeError``)."""
    if line.text is None:
        raise RecordTooLargeError(record_bytes=LINE_BYTES_MAX + 1, bytes_max=REQUEST_BYTES_MAX)
    try:
        fields = _decoder.decode(line.text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise explain(error, line.text) from None
    fields = as_envelope(fields, biz_type=defaults.biz_type)
    if defaults.ttl_ms is not None and fields.get("ttl_ms") is None and fields.get("expire_at") is None:
        fields["ttl_ms"] = defaults.ttl_ms
    return fields


def ttl_ms_of(
    fields: Mapping[str, Any], *, tier: Tier, enqueued_at: int, default_ttl_ms: Mapping[Tier, int] = DEFAULT_TTL_MS
) -> int:
    """Milliseconds from the enqueue to the deadline of what was accepted into ``tier``, as workers count."""
    if (ttl_ms := fields.get("ttl_ms")) is not None:
        return int(ttl_ms)
    if (expire_at := fields.get("expire_at")) is None:
        return default_ttl_ms[tier]
    sent_at = fields.get("sent_at")
    return min(int(expire_at) - int(enqueued_at if sent_at is None else sent_at), TTL_MS_MAX)
