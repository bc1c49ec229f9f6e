"""What can go wrong on the producer's side, beyond what the contract's own errors say. Pure."""

from __future__ import annotations

from typing import Final

from forebay_schemas.contract.envelope_problems import REQUEST_ID_CHARS_MAX, shown
from forebay_schemas.errors import ForebayError, UsageError

SENT_BEFORE_HINT: Final = "If an id was sent before, its outcome may be older: forebay results --id"
"""To be followed by an id. A request that is done is not run again, and only what comes after the submit is read."""


class ProducerError(ForebayError):
    """The root of the producer package's own errors."""


class QueueFullError(ProducerError):
    """The local queue was full for the whole delivery timeout. The request was not sent."""

    reason = "queue_full"


class NotDeliveredError(ProducerError):
    """The producer was closed before the broker acknowledged; the broker may have the request all the same."""

    reason = "not_delivered"


class ProducerClosedError(ProducerError):
    """The producer was closed, or made by the process that this one was forked from."""

    reason = "producer_closed"


class OutcomeTimeoutError(ProducerError):
    """No outcome came in time. ``missing`` are the request ids without one; they may still come."""

    reason = "outcome_timeout"

    def __init__(self, message: str, *, missing: list[str]) -> None:
        super().__init__(message)
        self.missing = missing


class PastDeadlineError(ProducerError, UsageError):
    """The request's ``expire_at`` lies in the past: nobody waits for its outcome any more."""

    reason = "past_deadline"


class RecordTooLargeError(ProducerError, UsageError):
    """The record is larger than the request topics take."""

    reason = "record_too_large"

    def __init__(self, *, record_bytes: int, bytes_max: int) -> None:
        super().__init__(
            "payload",
            f"makes a record of {record_bytes:,} bytes; with about 100 bytes of framing, {bytes_max:,} is the limit",
            fix="send less, or a reference to where it lies",
        )
        self.record_bytes = record_bytes
        self.bytes_max = bytes_max


def no_request_id(given: object) -> UsageError:
    """The error for what was given as a request and is none."""
    fix = f"give 1 to {REQUEST_ID_CHARS_MAX} printable characters, or what submit returned"
    return UsageError("request_id", f"is {shown(given)}", fix=fix)


def as_argument(error: UsageError) -> UsageError:
    """The same error, naming the setting as it was typed in Python: --kafka-properties is kafka_properties there."""
    if not error.field.startswith("--"):
        return error
    return UsageError(error.field.removeprefix("--").replace("-", "_"), error.problem, fix=error.fix)
