"""The result record on the results topic: one for every request that ended. Pure."""

from __future__ import annotations

import json
from typing import Any, Final, NoReturn

import msgspec

from forebay_schemas.contract.reasons import Status
from forebay_schemas.errors import ForebayError

ERROR_CHARS_MAX = 2_000
"""A result's error text is cut to this length."""

ERROR_BODY_BYTES_MAX: Final = 16 * 1024
"""A larger error body of a backend is left out."""

# Python's own bound for int() is 4,300 digits, and int() of many is slow.
_DIGITS_MAX = 300


def _null() -> None:
    return None


def _first_attempt() -> int:
    return 1


def _no_replay() -> int:
    return 0


# Fields of the first version are always written: msgspec leaves out what is a default, and does not ask a factory.
_NULL: Any = msgspec.field(default_factory=_null)


class Result(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """How one request ended. The record's key is the request id.

    - ``status``, ``reason``: how and why; ``reason`` is a `Reason` code, which a later version may add to.
    - ``tier``: high, mid or low. ``attempt``: the number of the last execution. ``worker``: who says so.
    - ``replay_count``: how many times it had come back from the dead letters: 0 for the outcome of what was
      submitted, 1 for that of its first replay. Of equal id and count the first result is the outcome.
    - ``queue_seconds``: first enqueue to last dispatch. ``service_seconds``: the last execution.
    - ``predicted_seconds``: how long it was expected to take when it was dropped for that, else None.
    - ``prompt_tokens``, ``output_tokens``: as the backend counted them.
    - ``finished_at``: epoch milliseconds on the brokers' clock.
    - ``error``: for people, at most ``ERROR_CHARS_MAX`` characters.
    - ``body``: the backend's JSON answer, else None. A number in it that is beyond Python's is an infinity.

    Written only where they are known:

    - ``tenant``: as in the envelope. ``reply``: its reply, JSON, as `Reply.echo` has it.
    - ``http_status``, ``error_body``: the backend's, of an answer that is an error. The body is JSON; above
      ``ERROR_BODY_BYTES_MAX`` encoded it is left out.
    - ``first_token_seconds``: from the last dispatch to the first token of a streamed answer.
    - ``usage_added``: whether Forebay asked the backend for the usage of a stream whose payload did not.
    """

    request_id: str
    status: Status
    reason: str
    tier: str | None = _NULL
    attempt: int = msgspec.field(default_factory=_first_attempt)
    replay_count: int = msgspec.field(default_factory=_no_replay)
    worker: str | None = _NULL
    queue_seconds: float | None = _NULL
    service_seconds: float | None = _NULL
    predicted_seconds: float | None = _NULL
    prompt_tokens: int | None = _NULL
    output_tokens: int | None = _NULL
    finished_at: int
    error: str | None = _NULL
    body: Any = _NULL
    tenant: str | None = None
    http_status: int | None = None
    error_body: Any = None
    first_token_seconds: float | None = None
    usage_added: bool | None = None
    reply: Any = None


class ResultError(ForebayError, ValueError):
    """Bytes that are not a result, or a result that cannot be encoded as JSON."""

    reason = "undecodable"


class _Unread(Result, frozen=True, gc=False, kw_only=True):
    body: msgspec.Raw = msgspec.Raw(b"null")
    error_body: msgspec.Raw = msgspec.Raw(b"null")
    reply: msgspec.Raw = msgspec.Raw(b"null")


class ResultOf(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The request that a result belongs to: the submitted one (0), or its n-th replay."""

    request_id: str
    replay_count: int = 0


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Result)
_unread_decoder = msgspec.json.Decoder(_Unread)
_of_decoder = msgspec.json.Decoder(ResultOf)


def encode_result(result: Result) -> bytes:
    """The record value; its ``error`` is cut to ``ERROR_CHARS_MAX`` characters.

    ``body``, ``error_body`` and ``reply`` may be ``msgspec.Raw``: JSON bytes that go in as they are, unchecked. NaN and
    infinities become null. An ``error_body`` that is too large or no JSON is left out.
    Raises ``ResultError`` for a body that is no JSON, as a user's handler may return one.
    """
    error = result.error
    if error is not None and (len(error) > ERROR_CHARS_MAX or not error.isascii()):
        # Half a surrogate pair in a backend's text must not prevent an outcome.
        clean = error[:ERROR_CHARS_MAX].encode(errors="replace").decode()
        result = msgspec.structs.replace(result, error=clean)
    if result.error_body is not None and not _fits(result.error_body):
        result = msgspec.structs.replace(result, error_body=None)
    try:
        return _encoder.encode(result)
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as problem:
        raise ResultError(f"body: cannot be written as JSON: {problem}") from None


def with_reply(value: bytes, reply: msgspec.Raw, *, bytes_max: int) -> bytes:
    """A result's value with another ``reply``; as it is if it cannot be read, or would have more than ``bytes_max``."""
    try:
        result = _unread_decoder.decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return value
    changed = _encoder.encode(msgspec.structs.replace(result, reply=reply))
    return changed if len(changed) <= bytes_max else value


def _fits(error_body: Any) -> bool:
    try:
        return len(_encoder.encode(error_body)) <= ERROR_BODY_BYTES_MAX
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError):
        return False


def decode_result(value: bytes | None) -> Result:
    """The result in a record value; fields that this version does not know are left out.

    Raises ``ResultError``, and nothing else, whatever the value is.
    """
    if value is None:
        raise ResultError("not a result: a null value")
    try:
        return _decoder.decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        try:
            return _with_strange_numbers(value)
        except (ValueError, RecursionError):  # msgspec's errors and UnicodeDecodeError are ValueErrors
            raise ResultError(f"not a result: {error}") from None


def _with_strange_numbers(value: bytes) -> Result:
    """The result in which a JSON field holds 1e999 or an integer of thousands of digits, which msgspec does not read.
    Whoever waits for it must learn of it all the same."""
    unread = _unread_decoder.decode(value)
    fields = {name: getattr(unread, name) for name in Result.__struct_fields__}
    for name in ("body", "error_body", "reply"):
        fields[name] = json.loads(bytes(fields[name]), parse_int=_int_of, parse_constant=_refuse)
    return Result(**fields)


def _int_of(digits: str) -> float:
    return int(digits) if len(digits) <= _DIGITS_MAX else float(digits)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


def decode_result_of(value: bytes | None) -> ResultOf | None:
    """The request that a result belongs to, without decoding the rest; None for anything but a result."""
    if value is None:
        return None
    try:
        return _of_decoder.decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
