"""Outcomes and their reasons: stable codes that people script against. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum


class Status(StrEnum):
    """How a request ended. Every accepted request ends in exactly one of these."""

    COMPLETED = "completed"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    SHED = "shed"
    REJECTED = "rejected"


@dataclass(frozen=True, slots=True)
class ReasonFacts:
    """What there is to know of a reason. ``retryable``: trying the same request again can help."""

    code: str
    status: Status
    retryable: bool
    meaning: str
    action: str


class Reason(Enum):
    """Why a request ended as it did. ``Reason.X.code`` is what results and headers carry."""

    COMPLETED = ReasonFacts("completed", Status.COMPLETED, False, "The backend answered.", "Nothing.")
    DEADLINE_PASSED_WAITING = ReasonFacts(
        "deadline_passed_waiting",
        Status.EXPIRED,
        False,
        "The deadline passed before the request could be dispatched.",
        "Give it a longer deadline or a higher tier, or add capacity.",
    )
    DEADLINE_PASSED_RUNNING = ReasonFacts(
        "deadline_passed_running",
        Status.EXPIRED,
        False,
        "The deadline passed while the backend was working on it; the call was given up.",
        "Give it a longer deadline, or ask for fewer tokens.",
    )
    BACKEND_TIMEOUT = ReasonFacts(
        "backend_timeout",
        Status.FAILED,
        True,
        "The backend did not answer within the time limit.",
        "Look at the backend's latency; raise FOREBAY_BACKEND_TIMEOUT_SECONDS if answers take that long.",
    )
    BACKEND_UNAVAILABLE = ReasonFacts(
        "backend_unavailable",
        Status.FAILED,
        True,
        "The backend refused or dropped the connection, or answered 502, 503 or 529, while serving others.",
        "Look at the backend's own log at that time.",
    )
    BACKEND_OVERLOADED = ReasonFacts(
        "backend_overloaded",
        Status.FAILED,
        True,
        "The backend answered 429 while serving others.",
        "Lower FOREBAY_LIMIT_MAX, or raise the backend's own limit.",
    )
    BACKEND_ERROR = ReasonFacts(
        "backend_error",
        Status.FAILED,
        True,
        "The backend answered with an error of its own (5xx).",
        "Look at the backend's own log at that time.",
    )
    BACKEND_BAD_RESPONSE = ReasonFacts(
        "backend_bad_response",
        Status.FAILED,
        True,
        "The backend's answer broke off or is not what its API promises.",
        "Look at what sits between the worker and the backend.",
    )
    BACKEND_REJECTED = ReasonFacts(
        "backend_rejected",
        Status.FAILED,
        False,
        "The backend says that the request itself is wrong (4xx).",
        "Correct the payload; the error holds the backend's words.",
    )
    HANDLER_FAILED = ReasonFacts(
        "handler_failed",
        Status.FAILED,
        True,
        "The handler raised an exception.",
        "Look at the worker's log for the traceback.",
    )
    RESULT_TOO_LARGE = ReasonFacts(
        "result_too_large",
        Status.FAILED,
        False,
        "The answer is larger than a record of the results topic may be.",
        "Ask for less output, or let the backend return a reference.",
    )
    UNKNOWN_BIZ_TYPE = ReasonFacts(
        "unknown_biz_type",
        Status.REJECTED,
        False,
        "No backend path belongs to this biz_type.",
        "Use one of the worker's biz_types, or add it to FOREBAY_BIZ_PATHS.",
    )
    UNDECODABLE = ReasonFacts(
        "undecodable",
        Status.REJECTED,
        False,
        "The record is not a valid envelope.",
        "Read the error on the dead letter and correct the sender.",
    )

    @property
    def code(self) -> str:
        return self.value.code

    @property
    def status(self) -> Status:
        return self.value.status

    @property
    def retryable(self) -> bool:
        return self.value.retryable


REASONS_BY_CODE: dict[str, Reason] = {reason.code: reason for reason in Reason}
