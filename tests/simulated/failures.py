"""Failures for the failure policy. Pure."""

from __future__ import annotations

from forebay_schemas.contract.reasons import Reason
from forebay_worker.answers.verdict import reason_of_status
from forebay_worker.request.work import Failure, FailureScope

STATE_OF_THE_BACKEND = frozenset({429, 502, 503, 529})
DEADLINE_SECONDS = 3_600.0


def failure(status: int | None, *, error: str = "words", retry_after_seconds: float | None = None) -> Failure:
    """A failure as the HTTP backend makes it; None: a refused connection."""
    if status is None:
        return Failure(
            reason=Reason.BACKEND_UNAVAILABLE, error="no connection: connection refused", scope=FailureScope.CONNECTION
        )
    return Failure(
        reason=reason_of_status(status),
        error=f"HTTP {status}: {error}",
        http_status=status,
        scope=FailureScope.BACKEND if status in STATE_OF_THE_BACKEND else FailureScope.REQUEST,
        retry_after_seconds=retry_after_seconds,
    )
