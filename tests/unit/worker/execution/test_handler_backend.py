"""Arguments of a handler, and handlers that can be loaded."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from forebay_schemas.contract.reasons import Reason
from forebay_schemas.errors import UsageError
from forebay_worker import HandlerAnswer, HandlerRequest, NotRetryableError
from forebay_worker.execution.handler_backend import HandlerBackend, load_handler
from forebay_worker.request.backend import BackendFailed
from simulated.works import make_work


def test_a_handler_is_given_the_request_and_its_answer_goes_on() -> None:
    async def handler(request: HandlerRequest) -> Any:
        return {"seen": [request.request_id, request.payload, request.tier, request.priority, request.attempt]}

    work = make_work(request_id="a", payload={"n": 1}, priority=6, headers=[("forebay-attempt", b"4")])
    answer = asyncio.run(HandlerBackend(handler).run(work))
    assert answer.body == {"seen": ["a", {"n": 1}, "mid", 6, 4]}


def test_a_handler_tells_how_many_tokens_it_made() -> None:
    async def handler(_: HandlerRequest) -> HandlerAnswer:
        return HandlerAnswer(body={"text": "hi"}, prompt_tokens=7, output_tokens=30)

    answer = asyncio.run(HandlerBackend(handler).run(make_work()))
    assert (answer.body, answer.prompt_tokens, answer.output_tokens) == ({"text": "hi"}, 7, 30)


@pytest.mark.parametrize("tokens", [-1, True, 2.0, "3"])
def test_tokens_that_are_no_number_of_tokens_fail_the_request_by_name(tokens: Any) -> None:
    async def handler(_: HandlerRequest) -> HandlerAnswer:
        return HandlerAnswer(body={}, output_tokens=tokens)

    with pytest.raises(BackendFailed) as failed:
        asyncio.run(HandlerBackend(handler).run(make_work()))
    assert failed.value.failure.error == (
        f"the handler's answer: output_tokens: is {tokens!r}; give how many tokens it took, an integer, or None"
    )
    assert not failed.value.failure.may_retry


class NoSuchVoiceError(NotRetryableError):
    """An error as a user may derive one."""


@pytest.mark.parametrize(
    ("error", "may_retry"),
    [(NotRetryableError("no such voice"), False), (NoSuchVoiceError("no such voice"), False), (ValueError("x"), True)],
)
def test_a_handler_says_what_is_not_to_be_tried_again(error: Exception, may_retry: bool) -> None:
    async def handler(_: HandlerRequest) -> Any:
        raise error

    with capture_logs(), pytest.raises(BackendFailed) as failed:
        asyncio.run(HandlerBackend(handler).run(make_work()))
    failure = failed.value.failure
    assert (failure.reason, failure.may_retry) == (Reason.HANDLER_FAILED, may_retry)
    assert failure.error == f"{type(error).__name__}: {error}"


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Arguments of a handler, and handlers that can be loaded."""
    (tmp_path / "some_handlers.py").write_text(
        "import functools\n"
        "async def good(request): return 1\n"
        "def plain(request): return 1\n"
        "class Callable:\n"
        "    async def __call__(self, request): return 2\n"
        "an_object = Callable()\n"
        "partly = functools.partial(good)\n"
        "number = 3\n"
    )
    (tmp_path / "broken_handlers.py").write_text("raise RuntimeError('no GPU')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("some_handlers", "broken_handlers"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return "some_handlers"


@pytest.mark.parametrize("name", ["good", "an_object", "partly"])
def test_a_handler_is_found_in_the_current_folder(module: str, name: str) -> None:
    assert callable(load_handler(f"{module}:{name}"))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("some_handlers", "is not module:function"),
        (":good", "is not module:function"),
        ("some_handlers:", "is not module:function"),
        ("some_handlers:missing", "FOREBAY_HANDLER: some_handlers has no missing; give module:function"),
        ("some_handlers:plain", "no async function"),
        ("some_handlers:number", "no async function"),
        # Calling a class makes an object, which nobody awaits.
        ("some_handlers:Callable", "no async function"),
        ("no_such_module:good", "cannot be imported: ModuleNotFoundError"),
        ("broken_handlers:good", "no GPU"),
        ("..relative:good", "cannot be imported"),
    ],
)
@pytest.mark.usefixtures("module")
def test_what_is_no_handler_is_refused_with_the_fix(name: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as raised:
        load_handler(name)
    assert raised.value.field == "FOREBAY_HANDLER"
    assert "async def" in raised.value.fix
