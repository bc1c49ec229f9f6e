"""Errors for bytes that are not an envelope: one sentence for the sender, and the request id if readable. Pure."""

from __future__ import annotations

import json
import re
from typing import Final

import msgspec

from forebay_schemas.contract.tiers import PRIORITY_MAX, PRIORITY_MIN, TTL_MS_MAX
from forebay_schemas.errors import EnvelopeError

REQUEST_ID_CHARS_MAX: Final = 200
NAME_CHARS_MAX: Final = 200
ATTEMPTS_MAX: Final = 100

# A damaged record is searched for its id up to this size: parsed JSON takes up to thirty times its own size.
_SEARCHED_BYTES_MAX: Final = 64 * 1024

# Escaped, a longer text is up to ten times as long.
_WRITTEN_OUT_MAX: Final = 10_000

_ENVELOPE_FIX: Final = (
    'send {"request_id": "...", "biz_type": "chat_completion", "priority": 10, "ttl_ms": 5000, "payload": {...}}'
)

_FIXES: Final = {
    "request_id": f"give each request an id of its own, 1 to {REQUEST_ID_CHARS_MAX} printable characters, a UUID say",
    "biz_type": f"name the kind of request in 1 to {NAME_CHARS_MAX} printable characters, chat_completion say",
    "payload": "put the request body there as a JSON object",
    "priority": f"give high, mid, low or an integer from {PRIORITY_MIN} to {PRIORITY_MAX}, where more is more urgent",
    "ttl_ms": f"give the milliseconds the request may take, an integer from 1 to {TTL_MS_MAX} (seven days)",
    "expire_at": "give epoch milliseconds, an integer, 13 digits today",
    "sent_at": "give epoch milliseconds, an integer, 13 digits today",
    "tenant": f"give a string of 1 to {NAME_CHARS_MAX} printable characters, or leave it out",
    "max_attempts": f"give an integer from 1 to {ATTEMPTS_MAX}, or leave it out",
    "reply": "put JSON there, or leave it out",
}

# msgspec's type names, in ours.
_KINDS: Final = {
    "array": "a list",
    "bool": "a boolean",
    "float": "a number with a decimal point or an exponent",
    "int": "an integer",
    "null": "null",
    "object": "an object",
    "str": "a string",
}

_AT_FIELD = re.compile(r" - at `\$\.(\w+)")
_MISSING = re.compile(r"missing required field `(\w+)`")
_RULE = re.compile(r"([a-z_]+) (is .*)", re.DOTALL)
_GOT = re.compile(r"got `(\w+)`")
_SPACE = re.compile(r"[ \t\r\n]*")
_KEY_BYTES_MAX: Final = 4 * REQUEST_ID_CHARS_MAX


class _IdOnly(msgspec.Struct, frozen=True):
    request_id: str


_id_decoder = msgspec.json.Decoder(_IdOnly)


def _no_number(_digits: str) -> None:
    return None


# Lenient where it does not matter for finding the id: control characters in strings, NaN, numbers of any size.
_scanner = json.JSONDecoder(strict=False, parse_int=_no_number, parse_float=_no_number, parse_constant=_no_number)


def is_request_id(text: str) -> bool:
    """Whether the text is a valid request id: 1 to 200 printable characters.

    Printable: letters, marks, digits, punctuation, symbols (emoji too) and the plain space; no other space, no control
    or format character (zero-width joiner, direction mark).
    """
    return 0 < len(text) <= REQUEST_ID_CHARS_MAX and text.isprintable()


def request_id_in_key(key: bytes | None) -> str | None:
    """The id for the outcome of a record without a usable id: its key, if that is a valid id."""
    if key is None or len(key) > _KEY_BYTES_MAX:
        return None
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return None
    return text if is_request_id(text) else None


def shown(value: object) -> str:
    """An invalid value, short enough for a message."""
    if isinstance(value, str | bytes) and len(value) > _WRITTEN_OUT_MAX:
        return f"{repr(value[:60])[:60]}... ({len(value)} characters)"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}... ({len(text)} characters)"


def explain_null() -> EnvelopeError:
    """The error for a record whose value is null."""
    return EnvelopeError("envelope", "is a null value", fix=_ENVELOPE_FIX)


def explain(error: Exception, value: bytes) -> EnvelopeError:
    """The error for a value that msgspec or the UTF-8 check refused with ``error``, with its id if readable."""
    request_id = recover_request_id(value)
    problem = str(error)
    if isinstance(error, msgspec.ValidationError):
        if _RULE.fullmatch(problem):
            return explain_rule(problem, request_id=request_id)
        if missing := _MISSING.search(problem):
            return EnvelopeError(missing[1], "is missing", fix=_FIXES[missing[1]], request_id=request_id)
        if at := _AT_FIELD.search(problem):
            return EnvelopeError(at[1], _kind_of(problem), fix=_FIXES[at[1]], request_id=request_id)
        return EnvelopeError("envelope", _kind_of(problem), fix=_ENVELOPE_FIX, request_id=request_id)
    return EnvelopeError("envelope", _why_unreadable(error, value), fix=_ENVELOPE_FIX, request_id=request_id)


def explain_rule(problem: str, *, request_id: str | None) -> EnvelopeError:
    """The error for a field that breaks a rule; ``problem`` is the text from `Request`: "ttl_ms is 0"."""
    rule = _RULE.fullmatch(problem)
    assert rule is not None
    return EnvelopeError(rule[1], rule[2], fix=_FIXES[rule[1]], request_id=request_id)


def _kind_of(problem: str) -> str:
    got = _GOT.search(problem)
    return f"is {_KINDS[got[1]]}" if got and got[1] in _KINDS else "has a number out of range"


def _why_unreadable(error: Exception, value: bytes) -> str:
    if not value:
        return "is empty"
    if value.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\x00" in value[:2]:
        return "is not UTF-8, it looks like UTF-16"
    if value.startswith(b"\xef\xbb\xbf"):
        return "starts with a byte order mark"
    if isinstance(error, RecursionError):
        return "is nested too deeply"
    if isinstance(error, UnicodeDecodeError):
        return f"is not UTF-8 (byte {error.start})"
    problem = str(error).removeprefix("JSON is malformed: ")
    # msgspec reports an escaped half of a surrogate pair as truncated input; no other whole JSON causes that.
    if "surrogate" in problem or ("truncated" in problem and value.rstrip().endswith(b"}")):
        return "breaks off, or holds half of a surrogate pair (\\ud800 to \\udfff)"
    if "truncated" in problem:
        return "breaks off before its end"
    return f"is not JSON: {problem}"


def recover_request_id(value: bytes) -> str | None:
    """The request id in a value that is not an envelope, if certain.

    An id inside the payload or any other field is never used: its outcome would end another request.
    """
    try:
        found: object = _id_decoder.decode(value).request_id
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        found = _scan_for_request_id(value)
    return found if isinstance(found, str) and is_request_id(found) else None


def _scan_for_request_id(value: bytes) -> object:
    """Reads member after member up to the damage."""
    # Bytes that are not UTF-8 become lone surrogates, which are not printable and so never part of an id.
    text = value[:_SEARCHED_BYTES_MAX].decode("utf-8-sig", "surrogateescape")
    found: object = None
    at = _after_space(text, 0)
    separator = "{"
    try:
        while text[at : at + 1] == separator:
            name, at = _scanner.raw_decode(text, _after_space(text, at + 1))
            at = _after_space(text, at)
            if text[at : at + 1] != ":":
                break
            item, at = _scanner.raw_decode(text, _after_space(text, at + 1))
            if name == "request_id":
                found = item
            at = _after_space(text, at)
            separator = ","
    except (ValueError, RecursionError):
        pass
    return found


def _after_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match is not None
    return match.end()
