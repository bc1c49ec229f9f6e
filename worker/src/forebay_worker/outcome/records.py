"""The records that carry a request on, to a retry topic, to the dead letters or to the high tier. Pure.

Key, value and foreign headers go on as the bytes that came. Our own headers replace one of the same name, so the
twentieth failure is no bigger than the first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from forebay_schemas.contract import headers as h
from forebay_schemas.contract.headers import Header, headers_size_bytes, record_headers, replace_headers
from forebay_schemas.contract.reasons import Reason
from forebay_worker.request.work import Work

ERROR_CHARS_MAX = 1_000
KEPT_KEY_BYTES_MAX = 1_000

NOTHING_MORE: Final[Mapping[str, str]] = MappingProxyType({})

_OURS = frozenset(
    (
        h.REASON,
        h.ATTEMPT,
        h.FIRST_ENQUEUED_AT,
        h.WORKER,
        h.DLT_ORIGINAL_TOPIC,
        h.DLT_ORIGINAL_PARTITION,
        h.DLT_ORIGINAL_OFFSET,
        h.DLT_ORIGINAL_TIMESTAMP,
        h.DLT_ORIGINAL_CONSUMER_GROUP,
        h.DLT_EXCEPTION_FQCN,
        h.DLT_EXCEPTION_MESSAGE,
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutRecord:
    """A record to be produced; key, value and headers as bytes. ``result``: the result to be written once a dead letter
    is delivered. ``partition``: None for the one of its key."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: list[Header]
    result: bytes | None = None
    partition: int | None = None

    @property
    def size_bytes(self) -> int:
        """Key, value and headers."""
        return len(self.key or b"") + len(self.value or b"") + headers_size_bytes(self.headers)


def dead_letter(
    work: Work,
    *,
    topic: str,
    group: str,
    worker_id: str,
    reason: Reason,
    error: str,
    onward: Mapping[str, str] = NOTHING_MORE,
) -> OutRecord:
    """The record that preserves a request nothing more will be tried for, with why and where it died.

    The error's text is cut to fit the headers' limit. ``onward``: headers of its trace.
    """
    record = work.record
    timestamp = record.timestamp()[1]
    ours = {
        **onward,
        h.REASON: reason.code,
        h.ATTEMPT: str(work.attempt),
        h.FIRST_ENQUEUED_AT: str(work.first_enqueued_at),
        h.WORKER: worker_id,
        h.DLT_ORIGINAL_TOPIC: record.topic(),
        h.DLT_ORIGINAL_PARTITION: str(record.partition()),
        h.DLT_ORIGINAL_OFFSET: str(record.offset()),
        h.DLT_ORIGINAL_TIMESTAMP: str(timestamp),
        h.DLT_ORIGINAL_CONSUMER_GROUP: group,
        h.DLT_EXCEPTION_FQCN: f"forebay.{reason.code}",
        h.DLT_EXCEPTION_MESSAGE: error[:ERROR_CHARS_MAX],
    }
    headers = replace_headers(record_headers(record), ours)
    over = headers_size_bytes(headers) - h.HEADERS_BYTES_MAX
    if over > 0:
        headers = replace_headers(record_headers(record), {**ours, h.DLT_EXCEPTION_MESSAGE: ""})
    return OutRecord(topic=topic, key=record.key(), value=record.value(), headers=headers)


def retry_record(
    work: Work, *, topic: str, not_before: int, reason: Reason, onward: Mapping[str, str] = NOTHING_MORE
) -> OutRecord:
    """The record that asks for the next execution, not before ``not_before`` (epoch milliseconds)."""
    record = work.record
    ours = {
        **onward,
        h.ATTEMPT: str(work.attempt + 1),
        h.FIRST_ENQUEUED_AT: str(work.first_enqueued_at),
        h.NOT_BEFORE: str(not_before),
        h.REASON: reason.code,
    }
    return OutRecord(
        topic=topic, key=record.key(), value=record.value(), headers=replace_headers(record_headers(record), ours)
    )


def expedited_record(work: Work, *, topic: str, onward: Mapping[str, str] = NOTHING_MORE) -> OutRecord:
    """The record that carries a request on to the high tier: it runs at once there, with the deadline that it had."""
    record = work.record
    ours = {
        **onward,
        h.ATTEMPT: str(work.attempt),
        h.FIRST_ENQUEUED_AT: str(work.first_enqueued_at),
        h.EXPEDITED_FROM: f"{record.topic()}:{record.partition()}:{record.offset()}",
        h.EXPEDITED_TIER: work.tier.value,
    }
    kept = [header for header in record_headers(record) if header[0] != h.NOT_BEFORE]
    return OutRecord(topic=topic, key=record.key(), value=record.value(), headers=replace_headers(kept, ours))


def without_content(letter: OutRecord) -> OutRecord:
    """What is left to say of a record that does not fit the dead letters: why it died, and where it still lies."""
    ours = {name: (value or b"").decode() for name, value in letter.headers if name in _OURS}
    place = ":".join(ours[name] for name in (h.DLT_ORIGINAL_TOPIC, h.DLT_ORIGINAL_PARTITION, h.DLT_ORIGINAL_OFFSET))
    note = f"too large for the dead letters, the record itself is only at {place}: "
    ours[h.DLT_EXCEPTION_MESSAGE] = note + ours[h.DLT_EXCEPTION_MESSAGE]
    key = letter.key if len(letter.key or b"") <= KEPT_KEY_BYTES_MAX else None
    return OutRecord(topic=letter.topic, key=key, value=None, headers=replace_headers(None, ours), result=letter.result)
