"""Record headers: names, and how the worker's own are read and written. Pure, except for one log warning.

All headers are optional. Foreign headers are kept unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import methodcaller
from typing import Any, Final, Protocol

import msgspec
import structlog

from forebay_schemas.clock import EPOCH_MS_MAX, EPOCH_MS_MIN
from forebay_schemas.contract.tiers import TIERS, Tier

ATTEMPT: Final = "forebay-attempt"
FIRST_ENQUEUED_AT: Final = "forebay-first-enqueued-at"
NOT_BEFORE: Final = "forebay-not-before"
TENANT: Final = "forebay-tenant"
REASON: Final = "forebay-reason"
REPLAY_COUNT: Final = "forebay-replay-count"
REPLAY_OF: Final = "forebay-replay-of"
"""Identifies the replayed dead letter, as ``topic id/partition/offset``. There is one such replay of each."""

WORKER: Final = "forebay-worker"
EXPEDITED_FROM: Final = "forebay-expedited-from"
EXPEDITED_TIER: Final = "forebay-expedited-tier"
TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
PREVIOUS_SPAN: Final = "forebay-previous-span"
"""The span of the last attempt, as a traceparent: the next attempt links to it."""

CONTENT_TYPE: Final = "content-type"

# Names written by spring-kafka's DeadLetterPublishingRecoverer, so that existing tools read our dead letters.
DLT_ORIGINAL_TOPIC: Final = "kafka_dlt-original-topic"
DLT_ORIGINAL_PARTITION: Final = "kafka_dlt-original-partition"
DLT_ORIGINAL_OFFSET: Final = "kafka_dlt-original-offset"
DLT_ORIGINAL_TIMESTAMP: Final = "kafka_dlt-original-timestamp"
DLT_ORIGINAL_CONSUMER_GROUP: Final = "kafka_dlt-original-consumer-group"
DLT_EXCEPTION_FQCN: Final = "kafka_dlt-exception-fqcn"
DLT_EXCEPTION_MESSAGE: Final = "kafka_dlt-exception-message"

_WRITTEN_BY_HOPS: Final = frozenset((ATTEMPT, FIRST_ENQUEUED_AT, NOT_BEFORE, REASON, WORKER))

HEADERS_BYTES_MAX: Final = 32 * 1024
"""Limit for all headers of a record together, names and values."""

Header = tuple[str, bytes | None]

HEADERS_MAX: Final = 1_000
"""A record with more counts as one without headers: our producer writes five, a hop a dozen."""

# More than any name, content type or trace context that is read here can have.
_TEXT_BYTES_MAX: Final = 1_000

_log = structlog.get_logger("forebay.headers")


def is_of_hops(name: str) -> bool:
    """Whether a retry or a dead letter added the header; a replay leaves it out."""
    return name in _WRITTEN_BY_HOPS or name.startswith("kafka_dlt-")


class HasHeaders(Protocol):
    """The headers of confluent-kafka's Message."""

    def headers(self) -> Any: ...
    def set_headers(self, value: Any, /) -> Any: ...


class Record(HasHeaders, Protocol):
    """A record, as confluent-kafka's Message."""

    def partition(self) -> Any: ...
    def offset(self) -> Any: ...
    def key(self) -> Any: ...
    def value(self) -> Any: ...
    def timestamp(self) -> Any: ...


# Called through C: there CPython (3.11, measured) checks a C method's result, but not in hot bytecode.
_headers_of = methodcaller("headers")


def record_headers(record: HasHeaders) -> list[Header]:
    """The record's headers as they came. Nothing may read a record's headers but through this.

    A client in C, Go or Rust can write a name that is not UTF-8. For such a record confluent-kafka (2.16.1, measured)
    returns a tuple with a NULL in it and leaves an exception pending: touching the tuple kills the process. None of the
    record's headers can be had, so it counts as a record without any, and so does one with more than `HEADERS_MAX`.
    """
    try:
        headers: list[Header] = _headers_of(record) or []
        if len(headers) > HEADERS_MAX:
            # 8 MiB can hold four million headers, which are 260 MB as Python objects.
            record.set_headers([])
            _log.warning("a record's headers are left out: there are too many", headers=len(headers), most=HEADERS_MAX)
            return []
        return headers
    except SystemError:
        record.set_headers([])
        _log.warning("a record's headers are left out: a name is not UTF-8")
        return []


class History(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What a record's headers say of its past.

    - ``attempt``: the number of the execution that this record asks for, 1 for a first try.
    - ``first_enqueued_at``: epoch milliseconds; None until a hop has written it down, then the record's own timestamp
      says it.
    - ``not_before``: epoch milliseconds before which it is not to run.
    - ``tenant``: whose request it is, printable.
    - ``replay_count``: how many times it came back from the dead letters.
    - ``expedited_tier``: the tier it was moved to the high one from; its default deadline goes on to count.
    - ``traceparent``, ``content_type``: as the headers of these names have them.
    """

    attempt: int = 1
    first_enqueued_at: int | None = None
    not_before: int | None = None
    tenant: str | None = None
    replay_count: int = 0
    expedited_tier: Tier | None = None
    traceparent: str | None = None
    content_type: str | None = None


NO_HISTORY = History()


def read_history(headers: Iterable[Header] | None) -> History:
    """Reads our headers; the last of equal names counts.

    Never raises: an invalid value counts as missing, as it must not block a record.
    """
    if not headers:
        return NO_HISTORY
    last = dict(headers)
    return History(
        attempt=max(1, _integer(last.get(ATTEMPT)) or 1),
        first_enqueued_at=_epoch_ms(last.get(FIRST_ENQUEUED_AT)),
        not_before=_epoch_ms(last.get(NOT_BEFORE)),
        tenant=_text(last.get(TENANT)),
        replay_count=_integer(last.get(REPLAY_COUNT)) or 0,
        expedited_tier=_tier(last.get(EXPEDITED_TIER)),
        traceparent=_text(last.get(TRACEPARENT)),
        content_type=_text(last.get(CONTENT_TYPE)),
    )


def replace_headers(headers: Iterable[Header] | None, ours: Mapping[str, str]) -> list[Header]:
    """The headers with ``ours`` set, once each; all others are kept. Hops do not add up.

    Text that UTF-8 cannot encode (half a surrogate pair in a backend's error) gets question marks.
    """
    kept = [(name, value) for name, value in headers or () if name not in ours]
    return kept + [(name, value.encode(errors="replace")) for name, value in ours.items()]


def headers_size_bytes(headers: Iterable[Header] | None) -> int:
    """The size of the headers in bytes, names and values together."""
    return sum(len(name.encode()) + len(value or b"") for name, value in headers or ())


def _text(value: bytes | None) -> str | None:
    if not value or len(value) > _TEXT_BYTES_MAX:
        return None
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return None
    return text if text.isprintable() else None


def _tier(value: bytes | None) -> Tier | None:
    text = _text(value)
    return Tier(text) if text in TIERS else None


def _integer(value: bytes | None) -> int | None:
    # int() also accepts b" 1_0 "; headers are written by programs, so only digits count. 18 of them fit 64 bits.
    if value is None or not value.isdigit() or len(value) > 18:
        return None
    return int(value)


def _epoch_ms(value: bytes | None) -> int | None:
    number = _integer(value)
    return number if number is not None and EPOCH_MS_MIN <= number <= EPOCH_MS_MAX else None
