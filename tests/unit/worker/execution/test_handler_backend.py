"""What a handler is given, and which handlers can be loaded."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from forebay_schemas.errors import UsageError
from forebay_worker.execution.handler_backend import HandlerBackend, HandlerRequest, load_handler
from simulated.works import make_work


def test_a_handler_is_given_the_request_and_its_answer_goes_on() -> None:
    async def handler(request: HandlerRequest) -> Any:
        return {"seen": [request.request_id, request.payload, request.tier, request.priority, request.attempt]}

    work = make_work(request_id="a", payload={"n": 1}, priority=6, headers=[("forebay-attempt", b"4")])
    answer = asyncio.run(HandlerBackend(handler).run(work))
    assert answer.body == {"seen": ["a", {"n": 1}, "mid", 6, 4]}


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of handlers in the current folder."""
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
        ("some_handlers:missing", "no async function"),
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
