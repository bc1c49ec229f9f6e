"""The verdict on an answer, and the meaning of status codes. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from forebay_schemas.contract.reasons import Reason
from forebay_schemas.contract.results import ERROR_CHARS_MAX

TOKENS_MAX: Final = 10_000_000
"""No engine's context holds more; a larger count is an error, or meant to spoil what pacing learns."""

_SHOWN_CHARS: Final = 200

_PROXY_STATUSES: Final = {520: 502, 521: 502, 522: 502, 523: 502, 530: 502, 524: 504}
_KNOWN_5XX: Final = frozenset({500, 501, 502, 503, 504, 529})
_TOO_MANY: Final = 429
# text-generation-inference answers 424 when the generation failed, which is no fault of the request.
_GENERATION_FAILED: Final = 424
# 529 is what some providers answer for "overloaded".
_UNAVAILABLE: Final = frozenset({502, 503, 529})
_TIMED_OUT: Final = frozenset({408, 504})
# Of a 5xx the only one that no second try changes: the engine cannot do what the request asks for.
_NOT_IMPLEMENTED: Final = 501


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds on what is read. ``answer_bytes_max``: of the JSON that is the answer. ``stream_bytes_max``: of a
    stream's raw bytes, which are many times those of the answer that it amounts to."""

    answer_bytes_max: int
    stream_bytes_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """An answer. ``body``: JSON in UTF-8.

    ``prompt_tokens``, ``output_tokens``: as the backend counted them. ``content_chunks``: the chunks of a stream that
    carried text or tool calls, which stand for the output tokens where the backend counts none; None for no stream.
    """

    body: bytes
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    content_chunks: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """No answer. ``message``: for people, bounded, with the backend's words.

    ``status``: the HTTP status to treat it as: the response's own, or the one that the error in a 2xx names; None when
    nothing names one. ``gave_up``: the backend stopped in the midst of an answer, or said that it gave the request up:
    as a connection that broke off. ``body``: the whole body of an answer that is an error; None where it is not known.
    """

    reason: Reason
    message: str
    status: int | None = None
    gave_up: bool = False
    body: bytes | None = None


Verdict = Completed | Failed


class NoAnswerError(Exception):
    """Ends the reading of an answer; ``failed`` is the verdict."""

    def __init__(self, failed: Failed) -> None:
        super().__init__(failed.message)
        self.failed = failed


def bad_response(problem: str, *, shown: bytes = b"") -> Failed:
    """The verdict on what the endpoint's API does not promise; ``shown``: of which the beginning is quoted."""
    return Failed(reason=Reason.BACKEND_BAD_RESPONSE, message=with_words(problem, shown))


def broken_off(problem: str) -> Failed:
    """The verdict on an answer that has no end."""
    return Failed(reason=Reason.BACKEND_BAD_RESPONSE, message=bounded(problem), gave_up=True)


def given_up(words: object) -> Failed:
    """The verdict on a finish reason or status that says so."""
    return Failed(
        reason=Reason.BACKEND_BAD_RESPONSE, message=bounded(f"the engine gave the request up: {words}"), gave_up=True
    )


def too_large(kind: str, bytes_max: int) -> Failed:
    return Failed(reason=Reason.RESULT_TOO_LARGE, message=f"the {kind} is larger than {bytes_max} bytes")


def with_words(problem: str, shown: bytes) -> str:
    words = shown[: 4 * _SHOWN_CHARS].decode(errors="replace").strip()[:_SHOWN_CHARS]
    return bounded(f"{problem}: {words}" if words else problem)


def bounded(message: str) -> str:
    """At most ``ERROR_CHARS_MAX`` characters, without half surrogate pairs, which UTF-8 cannot carry."""
    return message[:ERROR_CHARS_MAX].encode(errors="replace").decode()


def effective_status(status: int) -> int:
    """The status that an error status is treated as.

    An unknown 5xx counts as 500 (RFC 9110, 15), a proxy's 520-523 and 530 as 502, its 524 as 504. A 4xx is itself, but
    for 424, with which text-generation-inference says that the generation failed.
    """
    if status == _GENERATION_FAILED:
        return 500
    if status < 500 or status in _KNOWN_5XX:
        return status
    return _PROXY_STATUSES.get(status, 500)


def reason_of_status(status: int) -> Reason:
    """The reason for an effective status of 4xx or 5xx; of any other it is a bad response."""
    if status == _TOO_MANY:
        return Reason.BACKEND_OVERLOADED
    if status in _UNAVAILABLE:
        return Reason.BACKEND_UNAVAILABLE
    if status in _TIMED_OUT:
        return Reason.BACKEND_TIMEOUT
    if 400 <= status < 500 or status == _NOT_IMPLEMENTED:
        return Reason.BACKEND_REJECTED
    if 500 <= status < 600:
        return Reason.BACKEND_ERROR
    return Reason.BACKEND_BAD_RESPONSE


def completed(body: bytes, usage: object, *, content_chunks: int | None = None) -> Completed:
    """The verdict on an answer with its ``usage``, of chat and completions or of responses and images."""
    return Completed(
        body=body,
        prompt_tokens=_count(usage, "prompt_tokens", "input_tokens"),
        output_tokens=_count(usage, "completion_tokens", "output_tokens"),
        content_chunks=content_chunks,
    )


def _count(usage: object, *names: str) -> int | None:
    if not isinstance(usage, dict):
        return None
    for name in names:
        count: Any = usage.get(name)
        if type(count) is int and 0 <= count <= TOKENS_MAX:
            return count
    return None
