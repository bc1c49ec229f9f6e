"""What a failed HTTP answer means for its request and for the backend. Pure."""

from __future__ import annotations

import re
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Final

import msgspec
from yarl import URL

from forebay_worker.answers.verdict import Failed
from forebay_worker.request.retry_policy import RetryStatuses
from forebay_worker.request.work import Failure, FailureScope, Retry

_LOCATION_CHARS_MAX: Final = 300
# A day: of digits without end a float is infinite.
_RETRY_AFTER_SECONDS_MAX: Final = 86_400.0
_SECONDS: Final = re.compile(r"[0-9]+(\.[0-9]+)?")
# 529 is what some providers answer for "overloaded".
_OVERLOAD: Final = frozenset({429, 503, 529})
_BOM: Final = b"\xef\xbb\xbf"


def failure_of(
    failed: Failed,
    *,
    status: int,
    location: str | None,
    retry_after_seconds: float | None,
    retry_statuses: RetryStatuses,
) -> Failure:
    """The failure that a verdict amounts to. ``status``, ``location``: of the response itself.

    An answer that broke off, and a request that the engine gave up, are as a connection that was lost: a backend that
    goes away in the midst of its answers charges nobody.
    """
    error = failed.message
    if 300 <= status < 400:
        error = f"HTTP {status}: redirects to {location_shown(location)}; redirects are not followed"
    said = failed.status
    return Failure(
        reason=failed.reason,
        error=error,
        scope=_scope_of(failed),
        http_status=said,
        # Only an error status can be listed: for any other the reason decides.
        retry=Retry.BY_REASON if said is None or said < 400 else retry_statuses.retry_for(said, status),
        retry_after_seconds=retry_after_seconds,
        given_status=status if status >= HTTPStatus.BAD_REQUEST else said,
        error_body=None if failed.body is None else error_body_of(failed.body),
    )


def error_body_of(body: bytes) -> msgspec.Raw | None:
    """An error's body for the result: its JSON as it came, any other text as a JSON string; None for an empty one."""
    body = body.removeprefix(_BOM).strip()
    if not body:
        return None
    try:
        msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return msgspec.Raw(msgspec.json.encode(body.decode(errors="replace")))
    return msgspec.Raw(body)


def _scope_of(failed: Failed) -> FailureScope:
    if failed.status in _OVERLOAD:
        return FailureScope.OVERLOAD
    if failed.gave_up or failed.status == HTTPStatus.BAD_GATEWAY:
        return FailureScope.BACKEND
    return FailureScope.REQUEST


def retry_after_seconds(retry_after: str | None, date: str | None) -> float | None:
    """Both forms of Retry-After: seconds, and a date, which counts from the response's own date: clocks differ."""
    if retry_after is None:
        return None
    if _SECONDS.fullmatch(retry_after.strip()):
        return min(float(retry_after), _RETRY_AFTER_SECONDS_MAX)
    try:
        seconds = (parsedate_to_datetime(retry_after) - parsedate_to_datetime(date or "")).total_seconds()
    except (ValueError, TypeError, OverflowError, IndexError):
        return None  # the parser raises all of them
    return min(max(0.0, seconds), _RETRY_AFTER_SECONDS_MAX)


def location_shown(location: str | None) -> str:
    """Without a name and password in it, and cut."""
    if not location:
        return "nowhere (no Location)"
    try:
        text = str(URL(location).with_user(None)) if "//" in location else location
    except ValueError:
        return "what is no URL"
    return text[:_LOCATION_CHARS_MAX]
