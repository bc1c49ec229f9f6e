"""The producer's own errors, beside those of the contract. Pure."""

from __future__ import annotations

from typing import Final

from forebay_schemas.contract.envelope_problems import REQUEST_ID_CHARS_MAX, shown
from forebay_schemas.contract.results import Result
from forebay_schemas.errors import ForebayError, UsageError

SENT_BEFORE_HINT: Final = "If an id was sent before, its outcome may be older: forebay results --id"
"""A request id follows. A finished request does not run again, and only outcomes after the submit are read."""


class ProducerError(ForebayError):
    """Base class of the producer package's own errors."""


class QueueFullError(ProducerError):
    """The local queue was full for the whole delivery timeout. The request was not sent."""

    reason = "queue_full"


class NotDeliveredError(ProducerError):
    """The producer was closed before the broker acknowledged. The broker may still have stored the request."""

    reason = "not_delivered"


class ProducerClosedError(ProducerError):
    """The producer was closed, or created before a fork."""

    reason = "producer_closed"


class OutcomeTimeoutError(ProducerError):
    """No outcome arrived in time. ``missing``: the ids of requests without one; their outcomes may still arrive."""

    reason = "outcome_timeout"

    def __init__(self, message: str, *, missing: list[str]) -> None:
        super().__init__(message)
        self.missing = missing


class StreamDiffersError(ProducerError):
    """The result of a streamed request is not the answer whose pieces were shown. ``result`` is the one that counts."""

    reason = "stream_differs"

    def __init__(self, message: str, *, result: Result) -> None:
        super().__init__(message)
        self.result = result


class PastDeadlineError(ProducerError, UsageError):
    """The request's ``expire_at`` is in the past."""

    reason = "past_deadline"


class AdmissionRefusedError(ProducerError):
    """Admission refused the request; it was not sent.

    ``code``: the reason, one of `RefusalReason`. ``value`` reached ``threshold``. ``http_status``: what a front end
    answers. ``retry_after_seconds``: when to try again; None where the same request would be refused again.
    """

    reason = "admission_refused"

    def __init__(
        self,
        message: str,
        *,
        code: str,
        http_status: int,
        value: float,
        threshold: float,
        retry_after_seconds: float | None,
    ) -> None:
        again = "" if retry_after_seconds is None else f"; try again in {retry_after_seconds:.1f} s"
        super().__init__(f"refused ({code}): {message}{again}")
        self.code = code
        self.http_status = http_status
        self.value = value
        self.threshold = threshold
        self.retry_after_seconds = retry_after_seconds


class RecordTooLargeError(ProducerError, UsageError):
    """The record exceeds the size limit of the request topics."""

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
    """The error for a value that is neither a request nor a request id."""
    fix = f"give 1 to {REQUEST_ID_CHARS_MAX} printable characters, or what submit returned"
    return UsageError("request_id", f"is {shown(given)}", fix=fix)


def as_argument(error: UsageError) -> UsageError:
    """The same error with the setting named as in Python: kafka_properties for --kafka-properties."""
    if not error.field.startswith("--"):
        return error
    return UsageError(error.field.removeprefix("--").replace("-", "_"), error.problem, fix=error.fix)
