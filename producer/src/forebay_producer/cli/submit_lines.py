"""What a line of `forebay submit` means: an envelope, an OpenAI request body, or a line of OpenAI's batches. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from forebay_producer.cli.line_source import LINE_BYTES_MAX, Line
from forebay_producer.errors import RecordTooLargeError
from forebay_schemas.contract.biz_types import DEFAULT_PATHS
from forebay_schemas.contract.envelope import Request
from forebay_schemas.contract.envelope_problems import REQUEST_ID_CHARS_MAX, explain, is_request_id, shown
from forebay_schemas.contract.tiers import DEFAULT_TTL_MS, TTL_MS_MAX, Tier
from forebay_schemas.contract.topics import REQUEST_BYTES_MAX
from forebay_schemas.errors import UsageError

_decoder = msgspec.json.Decoder(dict[str, Any])

_ENVELOPE_FIELDS: Final = frozenset(Request.__struct_fields__) - {"payload"}
_BATCH_FIELDS: Final = frozenset({"custom_id", "method", "url", "body"})

_RESPONSE_FIELDS: Final = frozenset(
    {"conversation", "include", "instructions", "max_output_tokens", "previous_response_id", "reasoning", "stream"}
    | {"temperature", "text", "tool_choice", "tools", "top_p"}
)
"""Of a body with ``input``: an embedding has none of these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineDefaults:
    """What the command's options say of lines that do not say it themselves."""

    ttl_ms: int | None
    biz_type: str | None


def is_blank(line: Line) -> bool:
    """Whether there is nothing on the line."""
    return line.text is not None and not line.text.strip()


def envelope_on(line: Line, defaults: LineDefaults) -> dict[str, Any]:
    """The envelope's fields. An object without ``payload`` that has ``messages``, ``prompt`` or ``input`` is a body,
    one that has ``custom_id``, or ``url`` and ``body``, is a line of a batch.

    Raises ``UsageError`` (``EnvelopeError``, ``RecordTooLargeError``).
    """
    if line.text is None:
        raise RecordTooLargeError(record_bytes=LINE_BYTES_MAX + 1, bytes_max=REQUEST_BYTES_MAX)
    try:
        fields = _decoder.decode(line.text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise explain(error, line.text) from None
    if "payload" not in fields:
        if "custom_id" in fields or ("url" in fields and "body" in fields):
            fields = _of_batch(fields, defaults)
        elif not fields.keys().isdisjoint(("messages", "prompt", "input")):
            fields = _of_body(fields, defaults)
    if defaults.biz_type is not None:
        fields.setdefault("biz_type", defaults.biz_type)
    if defaults.ttl_ms is not None and fields.get("ttl_ms") is None and fields.get("expire_at") is None:
        fields["ttl_ms"] = defaults.ttl_ms
    return fields


def _of_body(fields: Mapping[str, Any], defaults: LineDefaults) -> dict[str, Any]:
    """What the envelope knows is the envelope's, all else is the body."""
    priority = fields.get("priority")
    if priority is not None and not isinstance(priority, str):
        # vLLM has a number of that name, of which the lowest comes first.
        problem = f"is {shown(priority)} in a bare body, where it may be the engine's or Forebay's"
        raise UsageError("priority", problem, fix="put the body into payload, and what is Forebay's beside it")
    envelope = {name: value for name, value in fields.items() if name in _ENVELOPE_FIELDS}
    body = {name: value for name, value in fields.items() if name not in _ENVELOPE_FIELDS}
    return {"biz_type": defaults.biz_type or _kind_of(body), **envelope, "payload": body}


def _kind_of(body: Mapping[str, Any]) -> str:
    if "messages" in body:
        return "chat_completion"
    if "prompt" in body:
        return "completion"
    given = body["input"]
    of_items = isinstance(given, list) and any(isinstance(item, dict) for item in given)
    return "response" if of_items or not _RESPONSE_FIELDS.isdisjoint(body) else "embedding"


def _of_batch(fields: Mapping[str, Any], defaults: LineDefaults) -> dict[str, Any]:
    """A line of a file for OpenAI's Batch API. Fields of the envelope may stand beside its own."""
    body, method = fields.get("body"), fields.get("method", "POST")
    if not isinstance(body, dict):
        problem = "is missing" if body is None else f"is {shown(body)}"
        raise UsageError("body", problem, fix="put the request body there as a JSON object")
    if not isinstance(method, str) or method.upper() != "POST":
        raise UsageError("method", f"is {shown(method)}", fix="give POST, or leave it out")
    envelope = {name: value for name, value in fields.items() if name not in _BATCH_FIELDS}
    if envelope.get("biz_type") is None:
        envelope["biz_type"] = _kind_at(fields.get("url")) or defaults.biz_type
        if envelope["biz_type"] is None:
            problem = "is missing" if fields.get("url") is None else f"is {shown(fields['url'])}"
            fix = f"give one of {', '.join(DEFAULT_PATHS.values())}, or name the kind of request with --biz-type"
            raise UsageError("url", problem, fix=fix)
    if (custom_id := fields.get("custom_id")) is not None:
        if not isinstance(custom_id, str) or not is_request_id(custom_id):
            fix = f"give 1 to {REQUEST_ID_CHARS_MAX} printable characters; it becomes the request_id"
            raise UsageError("custom_id", f"is {shown(custom_id)}", fix=fix)
        if envelope.setdefault("request_id", custom_id) != custom_id:
            raise UsageError("custom_id", "is another than request_id", fix="give one of the two")
    return {**envelope, "payload": body}


def _kind_at(url: object) -> str | None:
    """By the end of the path. The chat's is looked for first, since it also ends as the completions' does."""
    path = url.partition("?")[0].rstrip("/") if isinstance(url, str) else ""
    known = (kind for kind, default in DEFAULT_PATHS.items() if path.endswith(default.removeprefix("/v1")))
    return next(known, None)


def ttl_ms_of(fields: Mapping[str, Any], *, tier: Tier, enqueued_at: int) -> int:
    """Milliseconds from the enqueue to the deadline of what was accepted into ``tier``, as workers count."""
    if (ttl_ms := fields.get("ttl_ms")) is not None:
        return int(ttl_ms)
    if (expire_at := fields.get("expire_at")) is None:
        return DEFAULT_TTL_MS[tier]
    sent_at = fields.get("sent_at")
    return min(int(expire_at) - int(enqueued_at if sent_at is None else sent_at), TTL_MS_MAX)
