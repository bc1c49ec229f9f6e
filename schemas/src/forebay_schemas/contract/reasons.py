"""Statuses and reason codes of outcomes: stable codes for scripts. Pure."""

from __future__ import annotations

from enum import Enum, StrEnum


class Status(StrEnum):
    """The status of an outcome. Every accepted request ends in exactly one."""

    COMPLETED = "completed"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    SHED = "shed"
    REJECTED = "rejected"


class Reason(Enum):
    """The reason of an outcome: code, status, retryable, meaning, action.

    ``code``: as in results and headers. ``retryable``: a retry of the same request can help. ``meaning`` and
    ``action``: for people.
    """

    COMPLETED = ("completed", Status.COMPLETED, False, "The backend answered.", "Nothing.")
    DEADLINE_PASSED_WAITING = (
        "deadline_passed_waiting",
        Status.EXPIRED,
        False,
        "The deadline passed before the request could be dispatched.",
        "Give it a longer deadline or a higher tier, or add capacity.",
    )
    DEADLINE_UNREACHABLE = (
        "deadline_unreachable",
        Status.EXPIRED,
        False,
        "It would have missed its deadline even if it had been dispatched at once, so it was dropped.",
        "Look at predicted_seconds; give it a longer deadline or ask for fewer tokens, or add capacity.",
    )
    DEADLINE_PASSED_RUNNING = (
        "deadline_passed_running",
        Status.EXPIRED,
        False,
        "The deadline passed while the backend was working on it; the call was cancelled.",
        "Give it a longer deadline, or ask for fewer tokens.",
    )
    RETRY_TOO_LATE = (
        "retry_too_late",
        Status.EXPIRED,
        False,
        "It failed, and its deadline would pass before it could be tried again.",
        "Look at the error; give it a longer deadline if such failures pass by themselves.",
    )
    SHED_OVERLOAD = (
        "shed_overload",
        Status.SHED,
        False,
        "More urgent requests waited too long, and this one was predicted to miss its deadline behind them.",
        "Submit it again when the load is over, with a longer deadline or a higher tier, or add capacity.",
    )
    CANCELLED = (
        "cancelled",
        Status.CANCELLED,
        False,
        "It was cancelled, with forebay cancel or the client library.",
        "Nothing; if that was a mistake, submit it again under a new id.",
    )
    BACKEND_TIMEOUT = (
        "backend_timeout",
        Status.FAILED,
        True,
        "The backend did not answer within the time limit.",
        "Look at the backend's latency; raise FOREBAY_BACKEND_TIMEOUT_SECONDS if answers take that long.",
    )
    BACKEND_UNAVAILABLE = (
        "backend_unavailable",
        Status.FAILED,
        True,
        "The backend refused or dropped the connection, or answered 502, 503, 529 or a proxy's 520 to 523 or 530, "
        "while serving others.",
        "Look at the backend's own log at that time.",
    )
    BACKEND_OVERLOADED = (
        "backend_overloaded",
        Status.FAILED,
        True,
        "The backend answered 429 while serving others.",
        "Lower FOREBAY_LIMIT_MAX, or raise the backend's own limit.",
    )
    BACKEND_ERROR = (
        "backend_error",
        Status.FAILED,
        True,
        "The backend answered with an error of its own (5xx).",
        "Look at the backend's own log at that time.",
    )
    BACKEND_BAD_RESPONSE = (
        "backend_bad_response",
        Status.FAILED,
        True,
        "The backend's answer broke off, was given up by the engine, or is not what its API promises.",
        "Look at the error: it names what was wrong; docs/engines.md says what counts as an answer.",
    )
    BACKEND_REJECTED = (
        "backend_rejected",
        Status.FAILED,
        False,
        "The backend says that the request is wrong (4xx), or that it cannot do such requests at all (501).",
        "Correct the payload; the error has the backend's own text.",
    )
    HANDLER_FAILED = (
        "handler_failed",
        Status.FAILED,
        True,
        "The handler raised an exception.",
        "Look at the worker's log for the traceback.",
    )
    WORKER_CRASHED = (
        "worker_crashed",
        Status.FAILED,
        False,
        "Two workers died while they ran it, and then the worker or process that ran it alone.",
        "Find what kills the worker, in its log and its memory figures, before you replay it.",
    )
    RESULT_TOO_LARGE = (
        "result_too_large",
        Status.FAILED,
        False,
        "The answer is larger than a record of the results topic may be.",
        "Ask for less output, or let the backend return a reference.",
    )
    UNKNOWN_BIZ_TYPE = (
        "unknown_biz_type",
        Status.REJECTED,
        False,
        "No backend path belongs to this biz_type.",
        "Use one of the worker's biz_types, or add it to FOREBAY_BIZ_PATHS.",
    )
    UNDECODABLE = (
        "undecodable",
        Status.REJECTED,
        False,
        "The record is not a valid envelope.",
        "Read the error on the dead letter and correct the sender.",
    )

    REQUEST_TOO_LARGE = (
        "request_too_large",
        Status.REJECTED,
        False,
        "The record is larger than 8 MiB, uncompressed.",
        "Send a reference to what is large; set compression.type=uncompressed on the request topics.",
    )

    def __init__(self, code: str, status: Status, retryable: bool, meaning: str, action: str) -> None:
        self.code = code
        self.status = status
        self.retryable = retryable
        self.meaning = meaning
        self.action = action

    # Enum's own hash is written in Python, and each request uses it several times.
    __hash__ = object.__hash__


REASONS_BY_CODE: dict[str, Reason] = {reason.code: reason for reason in Reason}
