"""Record headers: names, and how the worker's own are read and written. Pure.

A record without any header is as good as one with all of them. Foreign headers are kept as they are.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

ATTEMPT: Final = "forebay-attempt"
FIRST_ENQUEUED_AT: Final = "forebay-first-enqueued-at"
NOT_BEFORE: Final = "forebay-not-before"
TENANT: Final = "forebay-tenant"
REASON: Final = "forebay-reason"
REPLAY_COUNT: Final = "forebay-replay-count"
TRACEPARENT: Final = "traceparent"
CONTENT_TYPE: Final = "content-type"

# Names that spring-kafka's DeadLetterPublishingRecoverer writes, so that existing tools read our dead letters.
DLT_ORIGINAL_TOPIC: Final = "kafka_dlt-original-topic"
DLT_ORIGINAL_PARTITION: Final = "kafka_dlt-original-partition"
DLT_ORIGINAL_OFFSET: Final = "kafka_dlt-original-offset"
DLT_ORIGINAL_TIMESTAMP: Final = "kafka_dlt-original-timestamp"
DLT_ORIGINAL_CONSUMER_GROUP: Final = "kafka_dlt-original-consumer-group"
DLT_EXCEPTION_FQCN: Final = "kafka_dlt-exception-fqcn"
DLT_EXCEPTION_MESSAGE: Final = "kafka_dlt-exception-message"

HEADERS_BYTES_MAX: Final = 32 * 1024
"""All headers of a record together, names and values."""

Header = tuple[str, bytes | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What a record's headers say of its past. Times are epoch milliseconds.

    ``attempt`` is the number of the execution that this record asks for: 1 for a first try.
    ``first_enqueued_at`` is None until a hop has written it down: then the record's own timestamp says it.
    """

    attempt: int = 1
    first_enqueued_at: int | None = None
    not_before: int | None = None
    tenant: str | None = None
    replay_count: int = 0
    traceparent: str | None = None
    content_type: str | None = None


NO_HISTORY = History()


def read_history(headers: Iterable[Header] | None) -> History:
    """Reads our headers; a value that cannot be one is taken as not there, since it must not stop a record."""
    if not headers:
        return NO_HISTORY
    last = dict(headers)
    return History(
        attempt=max(1, _integer(last.get(ATTEMPT)) or 1),
        first_enqueued_at=_integer(last.get(FIRST_ENQUEUED_AT)),
        not_before=_integer(last.get(NOT_BEFORE)),
        tenant=_text(last.get(TENANT)),
        replay_count=max(0, _integer(last.get(REPLAY_COUNT)) or 0),
        traceparent=_text(last.get(TRACEPARENT)),
        content_type=_text(last.get(CONTENT_TYPE)),
    )


def replace_headers(headers: Iterable[Header] | None, ours: dict[str, str]) -> list[Header]:
    """The headers with ``ours`` set, once each, and every other one as it was: a hop does not make them grow."""
    kept = [(name, value) for name, value in headers or () if name not in ours]
    return kept + [(name, value.encode()) for name, value in ours.items()]


def headers_size_bytes(headers: Iterable[Header] | None) -> int:
    """The size of the headers, names and values together."""
    return sum(len(name.encode()) + len(value or b"") for name, value in headers or ())


def _text(value: bytes | None) -> str | None:
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def _integer(value: bytes | None) -> int | None:
    # int() also takes b" 1_0 "; a header is written by programs, so only digits count.
    if value is None or not value.isdigit() or len(value) > 18:
        return None
    return int(value)
