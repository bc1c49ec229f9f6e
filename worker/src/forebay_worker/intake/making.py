"""Makes a request of this worker from a record: its history, deadline and delay. Pure."""

from __future__ import annotations

from forebay_schemas.contract.headers import Header, headers_size_bytes, read_history, record_headers
from forebay_worker.partition.assignment import Assignment
from forebay_worker.request.work import Record, Work


def work_of(record: Record, assignment: Assignment) -> Work:
    """The request, not decoded yet."""
    headers = record_headers(record)
    history = read_history(headers)
    first_enqueued_at = enqueued_at = record.timestamp()[1]
    if history.first_enqueued_at is not None:
        # Any client can write that header. A request cannot be enqueued first after this record of it was.
        first_enqueued_at = min(history.first_enqueued_at, enqueued_at)
    return Work(
        record=record,
        assignment=assignment,
        offset=record.offset(),
        size_bytes=_size_bytes(record, headers),
        history=history,
        first_enqueued_at=first_enqueued_at,
        crashes=assignment.crashes_of(record.offset()),
    )


def wait_seconds_of(work: Work, *, now_ms: int) -> float:
    """Remaining delay of a retry; at most its topic's delay, whatever the clocks say."""
    not_before = work.history.not_before
    if not_before is None:
        not_before = work.record.timestamp()[1] + work.assignment.retry_delay_seconds * 1000
    return min(max(0.0, (not_before - now_ms) / 1000), float(work.assignment.retry_delay_seconds))


def _size_bytes(record: Record, headers: list[Header]) -> int:
    size_bytes = len(record.value() or b"") + len(record.key() or b"")
    return size_bytes + headers_size_bytes(headers) if headers else size_bytes
