"""The verdict on a body of JSON, by the endpoint's shape. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, NoReturn

import msgspec

from forebay_schemas.contract.results import ERROR_BODY_BYTES_MAX
from forebay_worker.answers.endpoints import Shape
from forebay_worker.answers.errors import failure_of, is_give_up, is_rpc_error, lacking, reported_error
from forebay_worker.answers.verdict import (
    Completed,
    Failed,
    Verdict,
    bad_response,
    broken_off,
    completed,
    given_up,
)

_NOTHING: Final = msgspec.Raw(b"")
_PLAIN_ENDS: Final = frozenset({None, "stop", "length", "tool_calls", "content_filter", "function_call"})
_WHOLE_STATUSES: Final = frozenset({None, "completed", "incomplete"})
_UNFINISHED_STATUSES: Final = frozenset({"in_progress", "queued"})
# Where an array's last element would report an error.
_TAIL_BYTES: Final = 8_192
_EMPTY: Final[tuple[object, ...]] = (None, "", [], {})


class _Choice(msgspec.Struct, gc=False):
    message: msgspec.Raw = _NOTHING
    text: msgspec.Raw = _NOTHING
    finish_reason: str | None = None
    error: Any = None


class _Datum(msgspec.Struct, gc=False):
    embedding: msgspec.Raw = _NOTHING
    url: msgspec.Raw = _NOTHING
    b64_json: msgspec.Raw = _NOTHING


class _Beside(msgspec.Struct, gc=False):
    error: Any = None
    object: str | None = None
    type: str | None = None
    usage: Any = None


class _Choices(_Beside, kw_only=True):
    choices: list[_Choice]


class _Data(_Beside, kw_only=True):
    data: list[_Datum]


class _Response(_Beside, kw_only=True):
    output: msgspec.Raw
    status: str | None = None


class _Native(msgspec.Struct, gc=False):
    finish_reason: Any = None


class _Other(_Beside, kw_only=True):
    # SGLang's own /generate says here how it ended.
    meta_info: _Native | None = None
    done: Any = None
    success: Any = None


_choices_decoder = msgspec.json.Decoder(_Choices)
_data_decoder = msgspec.json.Decoder(_Data)
_response_decoder = msgspec.json.Decoder(_Response)
_other_decoder = msgspec.json.Decoder(_Other)
_raw_decoder = msgspec.json.Decoder(msgspec.Raw)
_encoder = msgspec.json.Encoder()


def judge_json(body: bytes, shape: Shape) -> Verdict | None:
    """The verdict on a body that should be JSON; None when it is none, which may be a stream in disguise.

    A good answer is told by a look at few fields and goes on as the bytes that came; only what is not one is decoded
    whole, to say what it is.
    """
    try:
        if not body.isascii():
            body.decode()  # the decoder skips what it does not need, and whoever reads the result would stumble
        if b"\\ud" in body or b"\\uD" in body:
            body = _with_whole_characters(body)
        completed_at_sight = _look(body, shape)
        if completed_at_sight is not None:
            return completed_at_sight
        verdict = judge_value(loads(body), shape, body=body)
        if isinstance(verdict, Failed) and verdict.status is not None and len(body) <= ERROR_BODY_BYTES_MAX:
            return replace(verdict, body=body)
        return verdict
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def judge_value(value: Any, shape: Shape, *, body: bytes | None = None) -> Verdict:
    """The verdict on a decoded answer; ``body``: as it came, else it is encoded again."""
    if shape is not Shape.OTHER and isinstance(value, list) and len(value) == 1:
        # Google's OpenAI-compatible endpoint wraps an error so.
        value = value[0] if isinstance(value[0], dict) and value[0].get("error") else value
    if isinstance(value, dict):
        failed = reported_error(value, shape)
        if failed is not None:
            return failed
    if shape is Shape.OTHER and isinstance(value, list) and value and is_rpc_error(value[-1]):
        # Google's own API streams an array; what broke it is its last element.
        return failure_of(value[-1]["error"])
    if shape is Shape.OTHER:
        return _judge_other(value, dumps(value) if body is None else body)
    shown = dumps(value) if body is None else body
    if not isinstance(value, dict):
        return bad_response("the answer is no object", shown=shown)
    failed = _judges[shape](value, shown)
    return completed(shown, value.get("usage")) if failed is None else failed


def loads(data: bytes) -> Any:
    """A JSON value. Half a surrogate pair is taken, which `dumps` mends. Raises ``ValueError``, ``RecursionError``."""
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError:
        if b"\\u" not in data:
            raise
        return _loads_leniently(data)


def dumps(value: Any) -> bytes:
    """JSON of a decoded value; halves of a surrogate pair that meet are joined, a lone one becomes U+FFFD."""
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError:
        return _encoder.encode(_mended(value))


def _look(body: bytes, shape: Shape) -> Completed | None:
    """The verdict on what is an answer beyond doubt, else None. Raises ``msgspec.DecodeError`` for what is no JSON."""
    try:
        if shape is Shape.CHAT or shape is Shape.COMPLETION:
            whole: _Beside = _choices_decoder.decode(body)
            good = _choices_are_plain(whole)
        elif shape is Shape.EMBEDDING or shape is Shape.IMAGE:
            whole = _data_decoder.decode(body)
            good = _data_are_plain(whole, shape)
        elif shape is Shape.RESPONSE:
            whole = _response_decoder.decode(body)
            good = _response_is_plain(whole)
        elif body.lstrip()[:1] == b"{":
            whole = _other_decoder.decode(body)
            good = _other_is_plain(whole)
        else:
            _raw_decoder.decode(body)
            return None if b'"error"' in body[-_TAIL_BYTES:] else completed(body, None)
    except msgspec.ValidationError:
        return None
    if not good or whole.error or whole.object == "error" or whole.type == "error":
        return None
    return completed(body, whole.usage)


def _choices_are_plain(whole: _Beside) -> bool:
    assert isinstance(whole, _Choices)
    for choice in whole.choices:
        if choice.finish_reason not in _PLAIN_ENDS or choice.error:
            return False
        if not _begins_with(choice.message, b"{") and not _begins_with(choice.text, b'"'):
            return False
    return bool(whole.choices)


def _data_are_plain(whole: _Beside, shape: Shape) -> bool:
    assert isinstance(whole, _Data)
    for datum in whole.data:
        values = (datum.embedding,) if shape is Shape.EMBEDDING else (datum.url, datum.b64_json)
        if not any(_is_filled(value, b'["') for value in values):
            return False
        if shape is Shape.EMBEDDING and b"null" in bytes(datum.embedding):
            return False
    return bool(whole.data)


def _response_is_plain(whole: _Beside) -> bool:
    assert isinstance(whole, _Response)
    return whole.status in _WHOLE_STATUSES and _begins_with(whole.output, b"[")


def _other_is_plain(whole: _Beside) -> bool:
    assert isinstance(whole, _Other)
    if whole.done is False or whole.success is False:
        return False
    return whole.meta_info is None or not is_give_up(whole.meta_info.finish_reason)


def _begins_with(value: msgspec.Raw, marks: bytes) -> bool:
    view = memoryview(value)
    return len(view) > 0 and view[0] in marks


def _is_filled(value: msgspec.Raw, marks: bytes) -> bool:
    """Whether it begins so and is not empty: a list that holds nothing is two characters long."""
    return _begins_with(value, marks) and len(memoryview(value)) > 2


def _judge_choices(value: dict[str, Any], shown: bytes) -> Failed | None:
    choices = value.get("choices")
    if not isinstance(choices, list) or not choices:
        return lacking("choices", value, shown=shown)
    for choice in choices:
        if not isinstance(choice, dict):
            return bad_response("a choice is no object", shown=shown)
        if choice.get("error"):
            # OpenRouter reports a provider's error in the choice that it broke.
            return failure_of(choice["error"], beside=choice)
        # Without a finish reason, or with null, it is an answer all the same: the body is whole by its framing, and
        # Ollama and SGLang write null where they have none.
        if is_give_up(choice.get("finish_reason")):
            return given_up(choice["finish_reason"])
        if not isinstance(choice.get("message"), dict) and not isinstance(choice.get("text"), str):
            return bad_response("a choice has neither message nor text", shown=shown)
    return None


def _judge_embeddings(value: dict[str, Any], shown: bytes) -> Failed | None:
    data = value.get("data")
    if not isinstance(data, list) or not data:
        return lacking("data", value, shown=shown)
    if any(not isinstance(datum, dict) or datum.get("embedding") in _EMPTY for datum in data):
        return bad_response("an element of data has no embedding", shown=shown)
    if any(isinstance(datum["embedding"], list) and None in datum["embedding"] for datum in data):
        # llama.cpp and others write null where the model made NaN.
        return bad_response("an embedding has null for a number", shown=shown)
    return None


def _judge_images(value: dict[str, Any], shown: bytes) -> Failed | None:
    data = value.get("data")
    if not isinstance(data, list) or not data:
        return lacking("data", value, shown=shown)
    for datum in data:
        if not isinstance(datum, dict) or (datum.get("url") in _EMPTY and datum.get("b64_json") in _EMPTY):
            return bad_response("an element of data has neither url nor b64_json", shown=shown)
    return None


def _judge_response(value: dict[str, Any], shown: bytes) -> Failed | None:
    status = value.get("status")
    if status is not None and not isinstance(status, str):
        return bad_response("the response's status is no text", shown=shown)
    if status == "failed":
        return failure_of("the response failed, and no error says why", beside=value)
    if status in _UNFINISHED_STATUSES:
        # Asked for with "background": true. Who asks again begins it anew, so it is not waited for.
        return bad_response(f"the response is {status}: background responses are not fetched", shown=shown)
    if status not in _WHOLE_STATUSES:
        return given_up(status)
    # The list may be empty, as the text of a chat may: llama.cpp writes no item where the model said nothing, and an
    # incomplete response may have spent its tokens on reasoning.
    return None if isinstance(value.get("output"), list) else lacking("output", value, shown=shown)


def _judge_other(value: Any, body: bytes) -> Verdict:
    if isinstance(value, dict):
        meta_info = value.get("meta_info")
        if isinstance(meta_info, dict) and is_give_up(meta_info.get("finish_reason")):
            reason = meta_info["finish_reason"]
            return given_up(reason.get("message") or reason["type"] if isinstance(reason, dict) else reason)
        if value.get("done") is False and ("response" in value or "message" in value):
            return broken_off("the stream broke off: its only line says done: false")  # Ollama's
        return completed(body, value.get("usage"))
    return completed(body, None)


_judges: Final[dict[Shape, Callable[[dict[str, Any], bytes], Failed | None]]] = {
    Shape.CHAT: _judge_choices,
    Shape.COMPLETION: _judge_choices,
    Shape.EMBEDDING: _judge_embeddings,
    Shape.IMAGE: _judge_images,
    Shape.RESPONSE: _judge_response,
}


def _with_whole_characters(body: bytes) -> bytes:
    """The body, written anew when an escape in it is half a surrogate pair, which no reader of a result takes."""
    try:
        msgspec.json.decode(body)
    except msgspec.DecodeError:
        return dumps(_loads_leniently(body))
    return body


def _loads_leniently(data: bytes) -> Any:
    return json.loads(data, parse_constant=_refuse, parse_float=_finite)


def _mended(value: Any) -> Any:
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_mended(item) for item in value]
    if isinstance(value, dict):
        return {_mended(name): _mended(field) for name, field in value.items()}
    return value


def _finite(number: str) -> float:
    value = float(number)
    if math.isinf(value):
        _refuse(number)
    return value


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")
