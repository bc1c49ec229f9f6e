"""The records that carry a request on after a failure, to a retry topic or to the dead letters. Pure.

Key, value and foreign headers go on as the bytes that came. Our own headers replace one of the same name, so the
twentieth failure is no bigger than the first.
"""

from __future__ import annotations

from dataclasses import dataclass

from forebay_schemas import headers as h
from forebay_schemas.headers import Header, headers_size_bytes, record_headers, replace_headers
from forebay_schemas.reasons import Reason
from forebay_worker.work import Work

ERROR_CHARS_MAX = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class OutRecord:
    """A record to be produced; key, value and headers as bytes."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: list[Header]


def dead_letter(work: Work, *, topic: str, group: str, worker_id: str, reason: Reason, error: str) -> OutRecord:
    """The record that preserves a request nothing more will be tried for, with why and where it died.

    The error's text is cut to fit the headers' limit.
    """
    record = work.record
    timestamp = record.timestamp()[1]
    ours = {
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


def retry_record(work: Work, *, topic: str, not_before: int, reason: Reason) -> OutRecord:
    """The record that asks for the next execution, not before ``not_before`` (epoch milliseconds)."""
    record = work.record
    ours = {
        h.ATTEMPT: str(work.attempt + 1),
        h.FIRST_ENQUEUED_AT: str(work.first_enqueued_at),
        h.NOT_BEFORE: str(not_before),
        h.REASON: reason.code,
    }
    return OutRecord(
        topic=topic, key=record.key(), value=record.value(), headers=replace_headers(record_headers(record), ours)
    )
