"""Computes a request's time to live from its record, by the worker's rules. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from forebay_schemas.contract.envelope import deadline_ms
from forebay_schemas.contract.headers import read_history, record_headers
from forebay_schemas.contract.tiers import Tier
from forebay_schemas.errors import EnvelopeError
from forebay_schemas.formats.envelope_reader import EnvelopeReader, NoSchemas

_ENVELOPES: Final = EnvelopeReader(NoSchemas())


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifetime:
    """``since_ms``: the first enqueue, epoch milliseconds. ``ttl_ms``: from then to the request's own deadline; None
    for a request without one, and for an unreadable one. ``expedited_tier``: the tier whose default then counts instead
    of its topic's."""

    since_ms: int
    ttl_ms: int | None
    expedited_tier: Tier | None = None


def lifetime_of(message: Any) -> Lifetime:
    """The lifetime of a record of a request topic. Never raises.

    A value that needs a Schema Registry is not read: it counts as a request without a deadline.
    """
    history = read_history(record_headers(message))
    written_ms: int = message.timestamp()[1]
    # A header cannot make a request younger than its record.
    since_ms = min(written_ms, written_ms if history.first_enqueued_at is None else history.first_enqueued_at)
    try:
        request = _ENVELOPES.read(message.value(), content_type=history.content_type)
    except EnvelopeError:
        return Lifetime(since_ms=since_ms, ttl_ms=None, expedited_tier=history.expedited_tier)
    ttl_ms = None
    if request.ttl_ms is not None or request.expire_at is not None:
        # The tiers' defaults are not used: the request names its deadline.
        ttl_ms = max(0, deadline_ms(request, tier=Tier.MID, first_enqueued_at=since_ms) - since_ms)
    return Lifetime(since_ms=since_ms, ttl_ms=ttl_ms, expedited_tier=history.expedited_tier)
