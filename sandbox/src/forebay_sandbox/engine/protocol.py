"""The simulated engine's wire format: OpenAI's request bodies, answers, stream chunks and errors. Pure."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from enum import Enum
from typing import Any

from forebay_schemas.errors import UsageError

DEFAULT_OUTPUT_TOKENS = 16  # OpenAI's own default for completions
TOKEN_TEXT = "flow "  # noqa: S105 - the text of every token put out


class Endpoint(Enum):
    """One of the two ways to ask; the value is the `object` of an answer."""

    CHAT = "chat.completion"
    COMPLETION = "text_completion"

    @property
    def id_prefix(self) -> str:
        return "chatcmpl-" if self is Endpoint.CHAT else "cmpl-"

    @property
    def chunk_object(self) -> str:
        return "chat.completion.chunk" if self is Endpoint.CHAT else "text_completion"


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceRequest:
    """A parsed body. `model` is None when the body does not name one."""

    endpoint: Endpoint
    model: str | None
    prompt_tokens: int
    output_tokens: int
    finish_reason: str
    """`length` when the output ends at max_tokens, else `stop`."""
    stream: bool
    include_usage: bool


def parse_request(endpoint: Endpoint, raw: bytes) -> InferenceRequest:
    """Read a body. Lengths come from its `forebay_sandbox` object where it has one, else the prompt counts one token
    for four characters and the output is max_tokens long. UsageError names the field that is wrong."""
    try:
        body = json.loads(raw)
    except ValueError as error:
        raise UsageError("body", f"is not JSON ({error})", fix="send a JSON object") from None
    if not isinstance(body, dict):
        raise UsageError("body", f"is {_json_kind(body)}", fix="send a JSON object")
    model = body.get("model")
    if model is not None and not isinstance(model, str):
        raise UsageError("model", f"is {_json_kind(model)}", fix="give the model's name as a string")
    characters = _chat_characters(body) if endpoint is Endpoint.CHAT else _prompt_characters(body)
    exact = _lengths(body)
    max_tokens = _positive(body, "max_completion_tokens") or _positive(body, "max_tokens")
    limit = max_tokens or (None if "output_tokens" in exact else DEFAULT_OUTPUT_TOKENS)
    lengths = [length for length in (exact.get("output_tokens"), limit) if length is not None]
    output_tokens = min(lengths)
    stream = _flag(body, "stream")
    return InferenceRequest(
        endpoint=endpoint,
        model=model,
        prompt_tokens=exact.get("prompt_tokens") or max(1, math.ceil(characters / 4)),
        output_tokens=output_tokens,
        finish_reason="length" if output_tokens == limit else "stop",
        stream=stream,
        include_usage=_include_usage(body, stream=stream),
    )


def _chat_characters(body: dict[str, Any]) -> int:
    fix = "give a list of objects with role and content"
    messages = body.get("messages")
    if not isinstance(messages, list):
        problem = "is missing" if messages is None else f"is {_json_kind(messages)}"
        raise UsageError("messages", problem, fix=fix)
    characters = 0
    for index, message in enumerate(messages):
        field = f"messages[{index}]"
        if not isinstance(message, dict):
            raise UsageError(field, f"is {_json_kind(message)}", fix=fix)
        if not isinstance(message.get("role"), str):
            raise UsageError(f"{field}.role", "is missing or not a string", fix="give user, system or assistant")
        content = message.get("content")
        if isinstance(content, str):
            characters += len(content)
        elif isinstance(content, list):
            characters += sum(len(str(part.get("text", ""))) for part in content if isinstance(part, dict))
        elif content is not None:
            raise UsageError(f"{field}.content", f"is {_json_kind(content)}", fix="give a string or a list of parts")
    return characters


def _prompt_characters(body: dict[str, Any]) -> int:
    prompt = body.get("prompt")
    if isinstance(prompt, str):
        return len(prompt)
    if isinstance(prompt, list) and all(isinstance(token, int) for token in prompt):
        return 4 * len(prompt)
    problem = "is missing" if prompt is None else f"is {_json_kind(prompt)}"
    raise UsageError("prompt", problem, fix="give one string, or one list of token ids")


def _lengths(body: dict[str, Any]) -> dict[str, int]:
    """The exact lengths that a replayed trace gives, under `forebay_sandbox`."""
    lengths = body.get("forebay_sandbox")
    if lengths is None:
        return {}
    if not isinstance(lengths, dict):
        raise UsageError("forebay_sandbox", f"is {_json_kind(lengths)}", fix="give an object")
    known = ("prompt_tokens", "output_tokens")
    for name in lengths:
        if name not in known:
            raise UsageError(f"forebay_sandbox.{name}", "is unknown", fix=f"known are {', '.join(known)}")
    values = {name: _positive(lengths, name, prefix="forebay_sandbox.") for name in known}
    return {name: value for name, value in values.items() if value is not None}


def _positive(body: dict[str, Any], name: str, *, prefix: str = "") -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UsageError(prefix + name, f"is {json.dumps(value)}", fix="give a whole number of at least 1")
    return value


def _flag(body: dict[str, Any], name: str) -> bool:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise UsageError(name, f"is {json.dumps(value)}", fix="give true or false")
    return bool(value)


def _include_usage(body: dict[str, Any], *, stream: bool) -> bool:
    options = body.get("stream_options")
    if options is None:
        return False
    if not stream:
        raise UsageError("stream_options", "is given without stream", fix="set stream to true, or leave it out")
    if not isinstance(options, dict):
        raise UsageError("stream_options", f"is {_json_kind(options)}", fix="give an object")
    return _flag(options, "include_usage")


def _json_kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    return names.get(type(value), "null")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Writes the answer to one request, whole or in stream chunks (each with its `data:` line)."""

    request: InferenceRequest
    request_id: str
    model: str
    created_seconds: int

    def whole(self) -> bytes:
        text = TOKEN_TEXT * self.request.output_tokens
        choice: dict[str, Any] = {"index": 0, "finish_reason": self.request.finish_reason, "logprobs": None}
        if self.request.endpoint is Endpoint.CHAT:
            choice["message"] = {"role": "assistant", "content": text}
        else:
            choice["text"] = text
        body = self._head(self.request.endpoint.value) | {"choices": [choice], "usage": self._usage()}
        return json.dumps(body).encode()

    def first_chunk(self) -> bytes:
        """The chunk before the first token: in a chat it says whose turn it is, else there is none."""
        if self.request.endpoint is Endpoint.CHAT:
            return self._chunk({"delta": {"role": "assistant", "content": ""}}, finish_reason=None)
        return b""

    def token_chunk(self) -> bytes:
        """The same for every token."""
        if self.request.endpoint is Endpoint.CHAT:
            return self._chunk({"delta": {"content": TOKEN_TEXT}}, finish_reason=None)
        return self._chunk({"text": TOKEN_TEXT}, finish_reason=None)

    def last_chunks(self) -> bytes:
        """The reason it ends, the usage where it was asked for, and the end mark."""
        empty: dict[str, Any] = {"delta": {}} if self.request.endpoint is Endpoint.CHAT else {"text": ""}
        chunks = self._chunk(empty, finish_reason=self.request.finish_reason)
        if self.request.include_usage:
            usage = self._head(self.request.endpoint.chunk_object) | {"choices": [], "usage": self._usage()}
            chunks += _event(usage)
        return chunks + b"data: [DONE]\n\n"

    def _chunk(self, choice: dict[str, Any], *, finish_reason: str | None) -> bytes:
        body = self._head(self.request.endpoint.chunk_object)
        body["choices"] = [{"index": 0, **choice, "logprobs": None, "finish_reason": finish_reason}]
        if self.request.include_usage:
            body["usage"] = None
        return _event(body)

    def _head(self, object_name: str) -> dict[str, Any]:
        return {
            "id": self.request.endpoint.id_prefix + self.request_id,
            "object": object_name,
            "created": self.created_seconds,
            "model": self.model,
        }

    def _usage(self) -> dict[str, int]:
        prompt, output = self.request.prompt_tokens, self.request.output_tokens
        return {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}


def _event(body: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def error_body(*, message: str, kind: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """OpenAI's error shape."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}
