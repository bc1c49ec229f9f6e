"""The request envelope and its codecs: what a record's value means. Pure.

A decoded request keeps its payload as the bytes that came. Hops (retry, dead letter, replay) forward a record's
value as it is, so fields that this version does not know survive them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from forebay_schemas.errors import EnvelopeError
from forebay_schemas.tiers import DEFAULT_PRIORITY, DEFAULT_TTL_MS, PRIORITY_MAX, PRIORITY_MIN, TIERS, Tier, tier_of

REQUEST_ID_CHARS_MAX = 200
NAME_CHARS_MAX = 200

# 10^11 ms is March 1973 as milliseconds and the year 5138 as seconds: whoever sends less meant seconds.
_EPOCH_MS_MIN = 100_000_000_000

_ENVELOPE_FIX = (
    'send {"request_id": "...", "biz_type": "chat_completion", "priority": 10, "ttl_ms": 5000, "payload": {...}}'
)


class Request(msgspec.Struct, frozen=True, gc=False):
    """One inference request as its envelope says it.

    Times are epoch milliseconds, ``ttl_ms`` is milliseconds. ``payload`` is a JSON object, kept as bytes.
    """

    request_id: str
    biz_type: str
    payload: msgspec.Raw
    priority: int | str | None = None
    ttl_ms: int | None = None
    expire_at: int | None = None
    sent_at: int | None = None
    tenant: str | None = None
    max_attempts: int | None = None
    reply: Any = None

    def __post_init__(self) -> None:
        # ValueError is what msgspec turns into its ValidationError; the text starts with the field's name.
        if not self.request_id or len(self.request_id) > REQUEST_ID_CHARS_MAX or not self.request_id.isprintable():
            raise ValueError(f"request_id must be 1 to {REQUEST_ID_CHARS_MAX} printable characters")
        if not self.biz_type or len(self.biz_type) > NAME_CHARS_MAX:
            raise ValueError(f"biz_type must be 1 to {NAME_CHARS_MAX} characters")
        priority = self.priority
        if type(priority) is int:
            if not PRIORITY_MIN <= priority <= PRIORITY_MAX:
                raise ValueError(f"priority must be high, mid, low or {PRIORITY_MIN} to {PRIORITY_MAX}")
        elif priority is not None and priority not in TIERS:
            raise ValueError(f"priority must be high, mid, low or {PRIORITY_MIN} to {PRIORITY_MAX}")
        if self.ttl_ms is not None and self.ttl_ms <= 0:
            raise ValueError("ttl_ms must be above 0")
        if self.expire_at is not None and self.expire_at < _EPOCH_MS_MIN:
            raise ValueError("expire_at must be epoch milliseconds, this looks like seconds")
        if self.sent_at is not None and self.sent_at < _EPOCH_MS_MIN:
            raise ValueError("sent_at must be epoch milliseconds, this looks like seconds")
        if self.tenant is not None and len(self.tenant) > NAME_CHARS_MAX:
            raise ValueError(f"tenant must be at most {NAME_CHARS_MAX} characters")
        if self.max_attempts is not None and not 1 <= self.max_attempts <= 100:
            raise ValueError("max_attempts must be 1 to 100")
        if bytes(memoryview(self.payload)[:1]) != b"{":
            raise ValueError("payload must be a JSON object")


def priority_in(request: Request, *, tier: Tier) -> int:
    """The request's integer priority (0 to 10) within ``tier``, the tier of the topic it lies in."""
    priority = request.priority
    if priority is None:
        return DEFAULT_PRIORITY[tier]
    return priority if isinstance(priority, int) else DEFAULT_PRIORITY[Tier(priority)]


def tier_for(request: Request) -> Tier:
    """The tier whose topic a producer sends the request to; ``mid`` when it names no priority."""
    priority = request.priority
    if priority is None:
        return Tier.MID
    return tier_of(priority) if isinstance(priority, int) else Tier(priority)


def deadline_ms(request: Request, *, tier: Tier, first_enqueued_at: int) -> int:
    """Epoch milliseconds on the broker's clock after which the request's outcome is worth nothing.

    ``ttl_ms`` wins over ``expire_at``, which wins over the tier's default. With ``sent_at`` beside it, ``expire_at``
    counts from the first enqueue as well, so a client whose clock is wrong expires nothing.
    """
    if request.ttl_ms is not None:
        return first_enqueued_at + request.ttl_ms
    if request.expire_at is not None:
        if request.sent_at is not None:
            return first_enqueued_at + (request.expire_at - request.sent_at)
        return request.expire_at
    return first_enqueued_at + DEFAULT_TTL_MS[tier]


class PayloadHints(msgspec.Struct, frozen=True, gc=False):
    """What the worker reads of a payload; all else is between the client and the engine."""

    model: str | None = None
    stream: bool = False
    max_tokens: int | None = None
    max_completion_tokens: int | None = None


_hints_decoder = msgspec.json.Decoder(PayloadHints)
_NO_HINTS = PayloadHints()


def payload_hints(request: Request) -> PayloadHints:
    """The payload's hints; none at all when a field has an unexpected type: judging it is the engine's business."""
    try:
        return _hints_decoder.decode(request.payload)
    except msgspec.MsgspecError:
        return _NO_HINTS


class Codec(Protocol):
    """A format of record values. Every codec carries the same fields."""

    @property
    def content_type(self) -> str:
        """The value of the ``content-type`` header that names this format."""
        ...

    def encode(self, fields: Mapping[str, Any]) -> bytes:
        """The record value for an envelope's fields, unknown ones included.

        Raises ``EnvelopeError`` for whatever ``decode`` would refuse.
        """
        ...

    def decode(self, value: bytes) -> Request:
        """The request in a record value. Raises ``EnvelopeError``."""
        ...


class _IdOnly(msgspec.Struct, frozen=True):
    request_id: str


_request_decoder = msgspec.json.Decoder(Request)
_id_decoder = msgspec.json.Decoder(_IdOnly)
_encoder = msgspec.json.Encoder()

_FIXES = {
    "request_id": "give each request an id of its own, a UUID say",
    "biz_type": "name the kind of request, chat_completion say",
    "payload": "put the request body there as a JSON object",
    "priority": "give high, mid or low, or an integer from 0 to 10 where more is more urgent",
    "ttl_ms": "give the milliseconds the request may take, 5000 say",
    "expire_at": "give epoch milliseconds, 13 digits today",
    "sent_at": "give epoch milliseconds, 13 digits today",
    "tenant": "give a short name as a string, or leave it out",
    "max_attempts": "give an integer from 1 to 100, or leave it out",
}

_FIELD_IN_MESSAGE = re.compile(r"`\$\.(\w+)|field `(\w+)`|^(\w+) must ")


class JsonCodec:
    """The default format: a JSON object in UTF-8."""

    __slots__ = ()

    content_type = "application/json"

    def encode(self, fields: Mapping[str, Any]) -> bytes:
        try:
            value = _encoder.encode(fields)
        except (TypeError, ValueError, msgspec.MsgspecError) as error:
            raise EnvelopeError("payload", f"cannot be written as JSON ({error})", fix="use plain JSON types") from None
        self.decode(value)
        return value

    def decode(self, value: bytes) -> Request:
        try:
            return _request_decoder.decode(value)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise _explain(error, value) from None


def _explain(error: Exception, value: bytes) -> EnvelopeError:
    problem = str(error)
    request_id = None
    try:
        found = _id_decoder.decode(value).request_id
        if found and len(found) <= REQUEST_ID_CHARS_MAX and found.isprintable():
            request_id = found
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass
    match = _FIELD_IN_MESSAGE.search(problem)
    field = next((group for group in match.groups() if group), "") if match else ""
    if field not in _FIXES:
        return EnvelopeError("envelope", f"is not one ({problem})", fix=_ENVELOPE_FIX, request_id=request_id)
    problem = problem.removeprefix(f"{field} ")
    problem = problem[0].lower() + problem[1:]
    return EnvelopeError(field, problem, fix=_FIXES[field], request_id=request_id)
