"""Who waits for a request's outcome, and which failures are the answer to it rather than a dead letter. Pure."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from forebay_schemas.contract.envelope import NO_JSON
from forebay_schemas.contract.reasons import Reason
from forebay_schemas.contract.reply import Reply, read_reply
from forebay_worker.request.work import Failure, Work

_ANSWERS: Final = frozenset(
    {
        HTTPStatus.BAD_REQUEST,
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
        HTTPStatus.UNPROCESSABLE_ENTITY,
    }
)


def reply_of(work: Work) -> Reply | None:
    """Where the outcome is awaited; None for a request that does not say so."""
    request = work.request
    if request is None or request.reply is NO_JSON:
        return None
    return read_reply(request.reply)


def awaited_partition(work: Work) -> int | None:
    """The partition of the results topic that its outcome is awaited in; None for the one of its key."""
    reply = reply_of(work)
    return None if reply is None else reply.partition


def names_model(failure: Failure) -> bool:
    """Whether a 404 is about a model: a server that knows the path says so, one that does not has no such word."""
    return "model" in failure.error.lower()


def is_answer(failure: Failure) -> bool:
    """Whether the backend says that the request is wrong: whoever sent it learns so from the result, and nothing is
    gained by keeping it."""
    if failure.reason is not Reason.BACKEND_REJECTED:
        return False
    status = failure.http_status
    return status in _ANSWERS or (status == HTTPStatus.NOT_FOUND and names_model(failure))
