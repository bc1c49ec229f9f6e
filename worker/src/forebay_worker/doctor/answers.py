"""The requests that a doctor sends to an OpenAI-compatible backend, and the meaning of the answers. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from forebay_schemas.doctor.findings import Finding, failed, named, ok, warning
from forebay_worker.answers.verdict import Completed, Failed, Verdict

BACKEND: Final = "backend"

_SHOWN_CHARACTERS: Final = 200
_NO_SUCH_MODEL: Final = re.compile(
    r"(?is)model.*(not.?found|not exist|no such|unknown|not available)|(unknown|no such|invalid) model"
)
_UNAUTHORIZED: Final = frozenset({401, 403})
_OVERLOADED: Final = frozenset({429, 502, 503, 504, 529})
# A server of embeddings has no chat, and a model without a chat template says so with 400.
_NOT_THIS_PATH: Final = frozenset({400, 404, 405, 422, 501})


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A minimal request."""

    path: str
    payload: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """An answer. ``status``: of the response. ``verdict``: a worker's judgement of it, without secrets. ``location``:
    the target of a redirect, without a password."""

    status: int
    verdict: Verdict
    seconds: float
    location: str | None = None


def calls_for(paths: Mapping[str, str], model: str | None) -> list[Call]:
    """A chat completion of one token; if there is none a completion; if there is none either, an embedding.

    ``paths``: by biz_type.
    """
    named_model = {} if model is None else {"model": model}
    message = {"role": "user", "content": "ping"}
    return [
        Call(path=paths["chat_completion"], payload={**named_model, "messages": [message], "max_tokens": 1}),
        Call(path=paths["completion"], payload={**named_model, "prompt": "ping", "max_tokens": 1}),
        Call(path=paths["embedding"], payload={**named_model, "input": "ping"}),
    ]


def next_is_worth_it(answered: Answered) -> bool:
    """Whether the backend may serve another path instead."""
    verdict = answered.verdict
    if isinstance(verdict, Completed):
        return False
    status = _status(answered, verdict)
    return _is_success(status) or (status in _NOT_THIS_PATH and not _lacks_model(status, verdict))


def answer_finding(answered: Answered, call: Call, *, url: str, models: Sequence[str], has_key: bool) -> Finding:
    """The finding for an answer. ``models``: those that the backend lists."""
    where = f"{url}{call.path}"
    model = call.payload.get("model")
    verdict = answered.verdict
    if isinstance(verdict, Completed):
        return ok(BACKEND, f"{where} answered in {answered.seconds:.3f} s, model {model or 'not named'}")
    shown = " ".join(verdict.message[:_SHOWN_CHARACTERS].split())
    status = _status(answered, verdict)
    said = f"{where}: {shown}"
    if _is_success(status):
        fix = "correct FOREBAY_BACKEND_URL: it names the server of an OpenAI-compatible API"
        return failed(BACKEND, f"{where} answers, but not as that API does: {shown}", fix=fix)
    if 300 <= status < 400:
        fix = "name the server itself in FOREBAY_BACKEND_URL; a worker follows no redirect"
        return failed(BACKEND, f"{where}: HTTP {status}, redirects to {answered.location or 'nowhere'}", fix=fix)
    if status in _UNAUTHORIZED:
        fix = "correct FOREBAY_BACKEND_API_KEY" if has_key else "set FOREBAY_BACKEND_API_KEY"
        return failed(BACKEND, f"it refuses us: {said}", fix=fix)
    if _lacks_model(status, verdict):
        fix = f"it serves {named(models)}; name one of them in requests (here: --model)" if models else "give --model"
        return failed(BACKEND, f"it does not serve model {model or '(none was named)'}: {said}", fix=fix)
    if status in _OVERLOADED:
        fix = "it is overloaded or still loads its model; a worker waits for it, so look again"
        return warning(BACKEND, f"it takes nothing now: {said}", fix=fix)
    if status in (404, 405):
        fix = "correct FOREBAY_BACKEND_URL, or the path in FOREBAY_BIZ_PATHS"
        return failed(BACKEND, f"no OpenAI-compatible API is there: {said}", fix=fix)
    if status >= 500:
        return failed(BACKEND, f"it fails: {said}", fix="look at the backend's own log")
    fix = "look at what it says; --model names the model to ask for"
    return failed(BACKEND, f"it refuses a plain request: {said}", fix=fix)


def _status(answered: Answered, verdict: Failed) -> int:
    """The response's own status, or the one named by an error with status 200."""
    return answered.status if verdict.status is None else verdict.status


def _is_success(status: int) -> bool:
    return 200 <= status < 300


def _lacks_model(status: int, verdict: Failed) -> bool:
    return status in (400, 404, 422) and _NO_SUCH_MODEL.search(verdict.message) is not None
