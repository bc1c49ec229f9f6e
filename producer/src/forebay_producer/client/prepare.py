"""Makes the record of a request: fills in the request id and the deadline, picks the tier.

Pure but for the random part of new ids; the time is passed in.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from forebay_producer.errors import PastDeadlineError
from forebay_schemas.clock import EPOCH_MS_MAX, EPOCH_MS_MIN
from forebay_schemas.contract.envelope import JSON_CONTENT_TYPE, NO_JSON, Codec, Request
from forebay_schemas.contract.headers import CONTENT_TYPE, TENANT, TRACEPARENT, Header
from forebay_schemas.contract.tiers import DEFAULT_TTL_MS, PRIORITY_MAX, PRIORITY_MIN, TIERS, TTL_MS_MAX, Tier, tier_of
from forebay_schemas.errors import EnvelopeError, UsageError

_REQUEST_FIELDS = Request.__struct_fields__


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A request ready to be produced to its tier's topic under the key ``request_id``. ``ttl_ms``: its deadline, from
    the enqueue on."""

    request_id: str
    tier: Tier
    value: bytes
    headers: list[Header]
    ttl_ms: int = 0
    tenant: str | None = None


def time_ordered_id(now_ms: int) -> str:
    """A UUID of version 7 (RFC 9562): 48 bits of epoch milliseconds, then 74 random ones."""
    bits = int.from_bytes(os.urandom(10), "big") >> 6
    number = (
        (now_ms & 0xFFFF_FFFF_FFFF) << 80 | 0x7 << 76 | (bits >> 62) << 64 | 0b10 << 62 | bits & 0x3FFF_FFFF_FFFF_FFFF
    )
    text = f"{number:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def prepare(
    request: Request | Mapping[str, Any],
    *,
    tier: Tier | str | None,
    traceparent: str | None,
    codecs: Mapping[Tier, Codec],
    now_ms: int,
    default_ttl_ms: Mapping[Tier, int] = DEFAULT_TTL_MS,
    reply: Mapping[str, Any] | None = None,
    new_id: Callable[[int], str] = time_ordered_id,
) -> Prepared:
    """Makes the record of one request. Unknown fields are kept.

    - ``request_id``: generated when missing.
    - Tier: ``tier``, else that of ``priority``, else mid. Raises ``UsageError`` when the two disagree.
    - Deadline: ``ttl_ms``, else the time left until ``expire_at``, else the tier's default. The record carries
      ``ttl_ms``, ``expire_at`` and ``sent_at``, so that a wrong clock can be detected. Raises ``PastDeadlineError``
      unless ``sent_at`` is given: then both count from the enqueue, and this machine's clock does not matter.

    ``codecs``: the codec of each tier's topic. A header names any format but JSON.
    ``default_ttl_ms``: the tiers' default deadlines. ``now_ms``: epoch milliseconds. ``reply``: fields for the
    envelope's ``reply``, beside the request's own.

    Raises ``EnvelopeError`` for any other request that a worker would refuse.
    """
    fields = _fields_of(request)
    if fields.get("request_id") is None:
        fields["request_id"] = new_id(now_ms)
    if reply is not None:
        fields["reply"] = _with_reply(fields.get("reply"), reply)
    # An invalid value passes here; the codec refuses it, with the right message.
    chosen = _tier(fields.get("priority"), tier)
    _fill_deadline(fields, default_ttl_ms=default_ttl_ms[chosen], now_ms=now_ms)
    codec = codecs[chosen]
    value = codec.encode(fields)
    headers: list[Header] = []
    if codec.content_type != JSON_CONTENT_TYPE:
        headers.append((CONTENT_TYPE, codec.content_type.encode()))
    if (tenant := fields.get("tenant")) is not None:
        headers.append((TENANT, tenant.encode()))
    if traceparent is not None:
        headers.append((TRACEPARENT, traceparent.encode()))
    return Prepared(
        request_id=fields["request_id"],
        tier=chosen,
        value=value,
        headers=headers,
        ttl_ms=fields.get("ttl_ms", 0),
        tenant=fields.get("tenant"),
    )


def _with_reply(own: object, reply: Mapping[str, Any]) -> object:
    if isinstance(own, msgspec.Raw):
        own = msgspec.json.decode(own)
    if own is None:
        return dict(reply)
    # What is no object is somebody else's.
    return {**reply, **own} if isinstance(own, Mapping) else own


def names_deadline(request: Request | Mapping[str, Any]) -> bool:
    """Whether the request names its own deadline."""
    names = ("ttl_ms", "expire_at")
    if isinstance(request, Mapping):
        return any(request.get(name) is not None for name in names)
    return any(getattr(request, name, None) is not None for name in names)


def _fields_of(request: Request | Mapping[str, Any]) -> dict[str, Any]:
    if type(request) is dict:
        return request.copy()
    if isinstance(request, Request):
        given = ((name, getattr(request, name)) for name in _REQUEST_FIELDS)
        return {name: value for name, value in given if value is not None and value is not NO_JSON}
    if not isinstance(request, Mapping):
        raise EnvelopeError("envelope", f"is a {type(request).__name__}", fix="give a mapping or a Request")
    return dict(request)


def _tier(priority: object, asked: Tier | str | None) -> Tier:
    named = None
    if type(priority) is int and PRIORITY_MIN <= priority <= PRIORITY_MAX:
        named = tier_of(priority)
    elif isinstance(priority, str) and priority in TIERS:
        named = Tier(priority)
    if asked is None:
        return named or Tier.MID
    if asked not in TIERS:
        raise UsageError("tier", f"is {asked!r}", fix="give high, mid or low")
    tier = Tier(asked)
    if named is not None and named is not tier:
        raise UsageError(
            "priority",
            f"is {priority!r}, which is tier {named}, and tier {tier} was asked for",
            fix="give one of the two, or let them agree",
        )
    return tier


def _fill_deadline(fields: dict[str, Any], *, default_ttl_ms: int, now_ms: int) -> None:
    told_when_sent = fields.get("sent_at") is not None
    if not told_when_sent:
        fields["sent_at"] = now_ms
    ttl_ms, expire_at, sent_at = fields.get("ttl_ms"), fields.get("expire_at"), fields["sent_at"]
    if not _is_time(sent_at):
        return
    if expire_at is None:
        if ttl_ms is None:
            ttl_ms = fields["ttl_ms"] = default_ttl_ms
        if type(ttl_ms) is int and 0 < ttl_ms <= TTL_MS_MAX:
            fields["expire_at"] = sent_at + ttl_ms
    elif ttl_ms is None and _is_time(expire_at):
        if not told_when_sent and expire_at <= now_ms:
            raise PastDeadlineError(
                "expire_at",
                f"past deadline: {expire_at} was {datetime.fromtimestamp(expire_at // 1000, UTC).isoformat()}",
                fix="give a time ahead, in epoch milliseconds, or ttl_ms, or neither for the tier's default",
            )
        if expire_at <= sent_at:
            raise UsageError("sent_at", f"is {sent_at}, which is not before expire_at", fix="leave it out")
        fields["ttl_ms"] = min(expire_at - sent_at, TTL_MS_MAX)


def _is_time(value: object) -> bool:
    # type() rather than isinstance(): True is no time.
    return type(value) is int and EPOCH_MS_MIN <= value <= EPOCH_MS_MAX
