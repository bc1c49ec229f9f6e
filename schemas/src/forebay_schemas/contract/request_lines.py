"""Turns a line of a request file (an envelope, a bare body, a line of an OpenAI batch) into an envelope. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from forebay_schemas.contract.biz_types import DEFAULT_PATHS
from forebay_schemas.contract.envelope import Request
from forebay_schemas.contract.envelope_problems import REQUEST_ID_CHARS_MAX, is_request_id, shown
from forebay_schemas.errors import UsageError

BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
"""Some editors begin a file with it; it is not part of the first line. Concatenated files have several."""

_ENVELOPE_FIELDS: Final = frozenset(Request.__struct_fields__) - {"payload"}
_BATCH_FIELDS: Final = frozenset({"custom_id", "method", "url", "body"})

_RESPONSE_FIELDS: Final = frozenset(
    {"conversation", "include", "instructions", "max_output_tokens", "previous_response_id", "reasoning", "stream"}
    | {"temperature", "text", "tool_choice", "tools", "top_p"}
)
"""Missing from a body with ``input`` that is an embedding."""


def as_envelope(fields: Mapping[str, Any], *, biz_type: str | None) -> dict[str, Any]:
    """The envelope's fields; ``biz_type`` for what names none. An object without ``payload`` that has ``messages``,
    ``prompt`` or ``input`` is a body, one that has ``custom_id``, or ``url`` and ``body``, is a line of a batch.

    Raises ``UsageError`` for a batch line that cannot be, and for what may be meant in two ways.
    """
    envelope = dict(fields)
    if "payload" not in fields:
        if "custom_id" in fields or ("url" in fields and "body" in fields):
            envelope = _of_batch(fields, biz_type=biz_type)
        elif not fields.keys().isdisjoint(("messages", "prompt", "input")):
            envelope = _of_body(fields, biz_type=biz_type)
    if biz_type is not None:
        envelope.setdefault("biz_type", biz_type)
    return envelope


def _of_body(fields: Mapping[str, Any], *, biz_type: str | None) -> dict[str, Any]:
    """Known envelope fields belong to the envelope, all others to the body."""
    priority = fields.get("priority")
    if priority is not None and not isinstance(priority, str):
        # vLLM has a numeric field of that name, where the lowest comes first.
        problem = f"is {shown(priority)} in a bare body, where it may be the engine's or Forebay's"
        raise UsageError("priority", problem, fix="put the body into payload, and what is Forebay's beside it")
    envelope = {name: value for name, value in fields.items() if name in _ENVELOPE_FIELDS}
    body = {name: value for name, value in fields.items() if name not in _ENVELOPE_FIELDS}
    return {"biz_type": biz_type or _kind_of(body), **envelope, "payload": body}


def _kind_of(body: Mapping[str, Any]) -> str:
    if "messages" in body:
        return "chat_completion"
    if "prompt" in body:
        return "completion"
    given = body["input"]
    of_items = isinstance(given, list) and any(isinstance(item, dict) for item in given)
    return "response" if of_items or not _RESPONSE_FIELDS.isdisjoint(body) else "embedding"


def _of_batch(fields: Mapping[str, Any], *, biz_type: str | None) -> dict[str, Any]:
    """A line of a file for OpenAI's Batch API, with optional fields of the envelope."""
    body, method = fields.get("body"), fields.get("method", "POST")
    if not isinstance(body, dict):
        problem = "is missing" if body is None else f"is {shown(body)}"
        raise UsageError("body", problem, fix="put the request body there as a JSON object")
    if not isinstance(method, str) or method.upper() != "POST":
        raise UsageError("method", f"is {shown(method)}", fix="give POST, or leave it out")
    envelope = {name: value for name, value in fields.items() if name not in _BATCH_FIELDS}
    if envelope.get("biz_type") is None:
        envelope["biz_type"] = _kind_at(fields.get("url")) or biz_type
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
    """By the end of the path. The chat path comes first, as it also ends like the completions path."""
    path = url.partition("?")[0].rstrip("/") if isinstance(url, str) else ""
    known = (kind for kind, default in DEFAULT_PATHS.items() if path.endswith(default.removeprefix("/v1")))
    return next(known, None)
