"""The request envelope, and JSON as its default format. Pure.

A decoded request keeps its payload as the original bytes. Hops (retry, dead letter, replay) forward a record's value
unchanged, so that unknown fields survive.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from forebay_schemas.clock import EPOCH_MS_MAX, EPOCH_MS_MIN
from forebay_schemas.contract.envelope_problems import (
    ATTEMPTS_MAX,
    NAME_CHARS_MAX,
    explain,
    explain_null,
    is_request_id,
    shown,
)
from forebay_schemas.contract.tiers import (
    DEFAULT_PRIORITY,
    DEFAULT_TTL_MS,
    PRIORITY_MAX,
    PRIORITY_MIN,
    TIERS,
    TTL_MS_MAX,
    Tier,
    tier_of,
)
from forebay_schemas.errors import EnvelopeError

_TOKENS_MAX: Final = 10**9
_TOKENS_DIGITS_MAX: Final = 10

JSON_CONTENT_TYPE: Final = "application/json"

NO_JSON: Final = msgspec.Raw(b"null")
"""A missing field with raw JSON."""


class Request(msgspec.Struct, frozen=True, gc=False):
    """One inference request as its envelope says it.

    - ``request_id``: 1 to 200 printable characters; results, dead letters and the record's key carry it.
    - ``biz_type``: what kind of request it is, 1 to 200 printable characters; it decides the backend's path.
    - ``payload``: the backend's request body: a JSON object, kept as the bytes that came. One that is made in Python
      may be given as a mapping, which is encoded.
    - ``priority``: ``high``, ``mid``, ``low`` or 0 to 10, where more is more urgent.
    - ``ttl_ms``: milliseconds from the first enqueue to the deadline, 1 to ``TTL_MS_MAX``.
    - ``expire_at``, ``sent_at``: epoch milliseconds on the client's clock.
    - ``tenant``: whose request it is, 1 to 200 printable characters.
    - ``max_attempts``: executions at most, 1 to 100.
    - ``reply``: any JSON, for whoever answers the client, kept as the bytes that came; `NO_JSON` without.
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
    reply: msgspec.Raw = NO_JSON

    if TYPE_CHECKING:

        def __init__(
            self,
            request_id: str,
            biz_type: str,
            payload: msgspec.Raw | Mapping[str, Any],
            priority: int | str | None = None,
            ttl_ms: int | None = None,
            expire_at: int | None = None,
            sent_at: int | None = None,
            tenant: str | None = None,
            max_attempts: int | None = None,
            reply: Any = NO_JSON,
        ) -> None: ...

    def __post_init__(self) -> None:
        payload: object = self.payload
        if type(payload) is not msgspec.Raw:
            msgspec.structs.force_setattr(self, "payload", _encoded(payload))
        # msgspec turns a ValueError into its ValidationError; `explain` reads "field is ..." back from the text.
        if not is_request_id(self.request_id):
            raise ValueError(f"request_id is {shown(self.request_id)}")
        if not _is_name(self.biz_type):
            raise ValueError(f"biz_type is {shown(self.biz_type)}")
        priority = self.priority
        if priority is not None:
            known = PRIORITY_MIN <= priority <= PRIORITY_MAX if isinstance(priority, int) else priority in TIERS
            if not known:
                raise ValueError(f"priority is {shown(priority)}")
        if self.ttl_ms is not None and not 0 < self.ttl_ms <= TTL_MS_MAX:
            raise ValueError(f"ttl_ms is {shown(self.ttl_ms)}")
        if self.expire_at is not None and not EPOCH_MS_MIN <= self.expire_at <= EPOCH_MS_MAX:
            raise ValueError(f"expire_at is {_not_milliseconds(self.expire_at)}")
        if self.sent_at is not None and not EPOCH_MS_MIN <= self.sent_at <= EPOCH_MS_MAX:
            raise ValueError(f"sent_at is {_not_milliseconds(self.sent_at)}")
        if self.tenant is not None and not _is_name(self.tenant):
            raise ValueError(f"tenant is {shown(self.tenant)}")
        if self.max_attempts is not None and not 1 <= self.max_attempts <= ATTEMPTS_MAX:
            raise ValueError(f"max_attempts is {shown(self.max_attempts)}")
        if bytes(memoryview(self.payload)[:1]) != b"{":
            raise ValueError("payload is not an object")


def _encoded(payload: object) -> msgspec.Raw:
    if not isinstance(payload, Mapping):
        raise ValueError("payload is not an object")
    try:
        return msgspec.Raw(msgspec.json.encode(payload))
    except (TypeError, RecursionError) as error:
        raise ValueError(f"payload cannot be written as JSON: {error}") from None


def _is_name(text: str) -> bool:
    return 0 < len(text) <= NAME_CHARS_MAX and text.isprintable()


def _not_milliseconds(timestamp: int) -> str:
    unit = "seconds" if timestamp < EPOCH_MS_MIN else "microseconds or nanoseconds"
    return f"{shown(timestamp)}, which looks like {unit}"


def priority_in(request: Request, *, tier: Tier) -> int:
    """The request's integer priority (0 to 10) within ``tier``, the tier of the topic it lies in."""
    priority = request.priority
    if priority is None:
        return DEFAULT_PRIORITY[tier]
    return priority if isinstance(priority, int) else DEFAULT_PRIORITY[Tier(priority)]


def tier_for(request: Request) -> Tier:
    """The tier that a producer sends the request to; ``mid`` without a priority."""
    priority = request.priority
    if priority is None:
        return Tier.MID
    return tier_of(priority) if isinstance(priority, int) else Tier(priority)


def deadline_ms(
    request: Request, *, tier: Tier, first_enqueued_at: int, default_ttl_ms: Mapping[Tier, int] = DEFAULT_TTL_MS
) -> int:
    """The deadline, epoch milliseconds on the broker's clock: afterwards the outcome is worthless.

    ``ttl_ms`` wins over ``expire_at``, which wins over the tier's default. With ``sent_at``, ``expire_at`` counts from
    the first enqueue, too, so that a client with a wrong clock expires nothing. The deadline is at most ``TTL_MS_MAX``
    after ``first_enqueued_at`` (epoch milliseconds). ``default_ttl_ms``: the pool's defaults (`TierTimes.ttl_ms`).
    """
    if request.ttl_ms is not None:
        return first_enqueued_at + request.ttl_ms
    if request.expire_at is None:
        return first_enqueued_at + default_ttl_ms[tier]
    wanted = request.expire_at
    if request.sent_at is not None:
        wanted += first_enqueued_at - request.sent_at
    return min(wanted, first_enqueued_at + TTL_MS_MAX)


class PayloadHints(msgspec.Struct, frozen=True, gc=False):
    """The fields of a payload that the worker reads. All others are between client and engine.

    A field has its default when the payload lacks it, or has it in a form that the engine would refuse. Token counts
    are 1 to 10^9.
    """

    model: str | None = None
    stream: bool = False
    max_tokens: int | None = None
    max_completion_tokens: int | None = None


class _UsualHints(msgspec.Struct, frozen=True, gc=False):
    model: str | None = None
    stream: bool | None = False
    max_tokens: int | None = None
    max_completion_tokens: int | None = None


class _RawHints(msgspec.Struct, frozen=True, gc=False):
    """The same for a payload with another form in one of these fields, which may be as large as the payload."""

    model: msgspec.Raw = NO_JSON
    stream: msgspec.Raw = NO_JSON
    max_tokens: msgspec.Raw = NO_JSON
    max_completion_tokens: msgspec.Raw = NO_JSON


_usual_hints_decoder = msgspec.json.Decoder(_UsualHints)
_raw_hints_decoder = msgspec.json.Decoder(_RawHints)
_NO_HINTS = PayloadHints()


def payload_hints(request: Request) -> PayloadHints:
    """The payload's hints. Never raises: the engine judges the payload. The result is small, whatever the payload
    holds."""
    try:
        usual = _usual_hints_decoder.decode(request.payload)
    except msgspec.ValidationError:
        return _hints_one_by_one(request)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _NO_HINTS
    return PayloadHints(
        usual.model, usual.stream is True, _token_count(usual.max_tokens), _token_count(usual.max_completion_tokens)
    )


def _hints_one_by_one(request: Request) -> PayloadHints:
    try:
        raw = _raw_hints_decoder.decode(request.payload)
        model, stream = bytes(raw.model), bytes(raw.stream)
        return PayloadHints(
            msgspec.json.decode(model, type=str) if model.startswith(b'"') else None,
            stream == b"true",
            _token_count_in(bytes(raw.max_tokens)),
            _token_count_in(bytes(raw.max_completion_tokens)),
        )
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _NO_HINTS


def _token_count_in(text: bytes) -> int | None:
    # isdigit() of bytes knows only ASCII; longer numbers are out of range, and int() of many digits is slow.
    return _token_count(int(text)) if text.isdigit() and len(text) <= _TOKENS_DIGITS_MAX else None


def _token_count(value: int | None) -> int | None:
    return value if value is not None and 0 < value <= _TOKENS_MAX else None


class Codec(Protocol):
    """A format of record values. Every format carries the same fields; `EnvelopeReader` reads all."""

    @property
    def content_type(self) -> str:
        """The value of the ``content-type`` header that names this format."""
        ...

    def encode(self, fields: Mapping[str, Any]) -> bytes:
        """Encodes an envelope's fields, unknown ones included. Raises ``EnvelopeError`` for all that a worker would
        refuse."""
        ...


_request_decoder = msgspec.json.Decoder(Request)
_encoder = msgspec.json.Encoder()
_KNOWN: Final = Request.__struct_fields__


class JsonCodec:
    """The default format: a JSON object in UTF-8, without a byte order mark. The last of equal names counts."""

    __slots__ = ()

    content_type = JSON_CONTENT_TYPE

    def encode(self, fields: Mapping[str, Any]) -> bytes:
        """As `Codec.encode`: the first part of `encode_checked`."""
        return encode_checked(fields)[0]

    def decode(self, value: bytes | None) -> Request:
        """Decodes a record value. Raises only ``EnvelopeError``, whatever the value is.

        Text that is not UTF-8 is refused anywhere: it could not be forwarded as JSON.
        """
        if value is None:
            raise explain_null()
        try:
            if not value.isascii():
                value.decode()
            return _request_decoder.decode(value)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise explain(error, value) from None


def encode_checked(fields: Mapping[str, Any]) -> tuple[bytes, Request]:
    """Encodes an envelope's fields and returns the JSON and the request. Raises ``EnvelopeError``.

    Known fields come first, in the order of `Request`, then the others by name. A payload may be ``msgspec.Raw``: JSON
    that is inserted unchanged. Objects keep the order of their names, which may matter to an engine (a JSON schema for
    guided decoding). NaN and infinities are refused: JSON has none.
    """
    try:
        ordered = {name: fields[name] for name in _KNOWN if name in fields}
        if len(ordered) < len(fields):
            others = fields.keys() - ordered.keys()
            if not all(isinstance(name, str) for name in others):
                raise _unwritable(fields)
            ordered |= {name: fields[name] for name in sorted(others)}
        value = _encoder.encode(ordered)
    except (TypeError, ValueError, AttributeError, RecursionError, msgspec.MsgspecError):
        raise _unwritable(fields) from None
    # msgspec writes NaN and infinities as null; checking only where a null was written costs nothing else.
    if b"null" in value:
        for name, item in ordered.items():
            if _holds_non_finite(item):
                raise EnvelopeError(name, "holds NaN or an infinity, which JSON cannot say", fix="leave it out")
    return value, _JSON.decode(value)


def _unwritable(fields: object) -> EnvelopeError:
    fix = "use JSON types only: strings, numbers, true, false, null, lists and objects with strings as names"
    if not isinstance(fields, Mapping) or not all(isinstance(name, str) for name in fields):
        return EnvelopeError("envelope", "is not a mapping with strings as names", fix=fix)
    for name, item in fields.items():
        try:
            _encoder.encode({name: item})
        except RecursionError:
            return EnvelopeError(name, "is nested too deeply, or holds itself", fix="make it flatter")
        except UnicodeEncodeError:
            return EnvelopeError(
                name, "holds half of a surrogate pair, which UTF-8 cannot say", fix="correct that text"
            )
        except (TypeError, ValueError, msgspec.MsgspecError):
            return EnvelopeError(name, "cannot be written as JSON", fix=fix)
    return EnvelopeError("envelope", "cannot be written as JSON", fix=fix)


def _holds_non_finite(item: object) -> bool:
    if isinstance(item, float):
        return not math.isfinite(item)
    if isinstance(item, Mapping):
        return any(map(_holds_non_finite, item.values()))
    return isinstance(item, list | tuple) and any(map(_holds_non_finite, item))


_JSON: Final = JsonCodec()
