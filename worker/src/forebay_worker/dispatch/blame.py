"""What a failure speaks of: its request, the backend, or whichever of the two the next answers show. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum
from http import HTTPStatus
from typing import Final

from forebay_schemas.contract.envelope import payload_hints
from forebay_schemas.contract.reasons import Reason
from forebay_worker.request.replies import names_model
from forebay_worker.request.work import Failure, Retry, Work

HINTS_BYTES_MAX: Final = 64 * 1024
"""Of a larger payload the model is not looked up: decoding one of 8 MiB takes the event loop some 10 ms."""

_CREDENTIALS: Final = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})


class Blame(Enum):
    """Whose fault a failure is."""

    REQUEST = "request"
    """The request's own: it is charged."""
    BACKEND = "backend"
    """The backend's, unless it serves others: refused, reset, 429, 502, 503, 529."""
    SHARED = "shared"
    """The request's own, unless different requests get the like and none is answered: 401, 403, 404, 3xx, 5xx."""


class Cause(StrEnum):
    """Why a backend serves nobody: the values of a metric's label."""

    UNAVAILABLE = "unavailable"
    """Refused or reset connections, 429, 502, 503, 529."""
    CREDENTIALS = "credentials"
    """401 or 403."""
    REDIRECT = "redirect"
    """3xx."""
    NOT_FOUND = "not_found"
    """404 that names no model."""
    ERROR = "error"
    """Any other 5xx."""


ADVICE: Final = {
    Cause.UNAVAILABLE: "see whether the backend runs, and its own log",
    Cause.CREDENTIALS: "see whether FOREBAY_BACKEND_API_KEY is the key that the backend takes now, and what it allows",
    Cause.REDIRECT: "give FOREBAY_BACKEND_URL as the address that the backend redirects to; nothing is followed",
    Cause.NOT_FOUND: "see whether FOREBAY_BACKEND_URL and FOREBAY_BIZ_PATHS are the backend's addresses",
    Cause.ERROR: "look at the backend's own log; it may have to be restarted",
}

Kind = tuple[str, str | None, str | None]
"""What tells requests apart where some of them alone may fail: biz_type, tenant, model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """Why the backend serves nobody. ``words``: for log, /status and /readyz, without a word of its answers."""

    cause: Cause
    words: str

    @property
    def advice(self) -> str:
        """What to do about it."""
        return ADVICE[self.cause]


def blame_of(failure: Failure, *, retries_by_hand: bool = False) -> Blame:
    """``retries_by_hand``: FOREBAY_RETRY_STATUSES was given. Then a 5xx that it leaves out is the request's own fault,
    whoever else gets it: somebody has said that another try of it is of no use."""
    if failure.of_backend:
        return Blame.BACKEND
    status = failure.http_status
    if status is None:
        return Blame.REQUEST
    if status in _CREDENTIALS or 300 <= status < 400:
        return Blame.SHARED
    if status == HTTPStatus.NOT_FOUND:
        return Blame.REQUEST if names_model(failure) else Blame.SHARED
    if 500 <= status < 600:
        return Blame.REQUEST if retries_by_hand and failure.retry is Retry.FORBIDDEN else Blame.SHARED
    return Blame.REQUEST


def is_at_the_door(failure: Failure) -> bool:
    """Whether it was refused before it ran (401, 403, 404, 3xx): what was let in before goes on being answered."""
    return failure.http_status is not None and failure.http_status < 500


def trouble_of(failure: Failure) -> Trouble:
    """What to tell of a failure that all requests get."""
    status = failure.http_status
    if status is None:
        # Words about a connection are the client library's; the backend's own may echo a payload.
        said = failure.error if failure.reason is Reason.BACKEND_UNAVAILABLE else failure.reason.code
        return Trouble(cause=Cause.UNAVAILABLE, words=said)
    words = f"HTTP {status} ({failure.reason.code})"
    if failure.of_backend:
        return Trouble(cause=Cause.UNAVAILABLE, words=words)
    if status in _CREDENTIALS:
        return Trouble(cause=Cause.CREDENTIALS, words=words)
    if status == HTTPStatus.NOT_FOUND:
        return Trouble(cause=Cause.NOT_FOUND, words=words)
    return Trouble(cause=Cause.REDIRECT if status < 400 else Cause.ERROR, words=words)


def kind_of(work: Work) -> Kind:
    """The kind of a request that could be decoded."""
    request = work.request
    assert request is not None
    if work.prediction is not None:
        model = work.prediction.model
    else:
        model = payload_hints(request).model if work.size_bytes <= HINTS_BYTES_MAX else None
    return request.biz_type, request.tenant, model
