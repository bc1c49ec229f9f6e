"""A handler in a process of its own: it answers as in the worker's, and its death is reported. Starts processes."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from forebay_schemas.contract.reasons import Reason
from forebay_schemas.contract.topics import LATER_BYTES_MAX
from forebay_worker import HandlerRequest
from forebay_worker.execution.handler_backend import HandlerBackend, NoChildError
from forebay_worker.execution.handler_process import run_in_child
from forebay_worker.partition.claims import SUSPECT_CRASHES
from forebay_worker.request.backend import BackendFailed
from forebay_worker.request.work import Answer, Failure, Work
from simulated.works import make_work

HANDLERS = """
import asyncio, os, signal, sys, time
from forebay_worker import HandlerAnswer, NotRetryableError
async def echo(request):
    print("not an answer")
    return {"payload": request.payload, "tier": request.tier, "attempt": request.attempt, "pid": os.getpid()}
async def fail(request): raise ValueError("no such model")
async def reject(request): raise NotRetryableError("no such voice")
async def count(request): return HandlerAnswer(body={"text": "hi"}, prompt_tokens=7, output_tokens=30)
async def leave(request): sys.exit(7)
async def vanish(request): os._exit(7)
async def kill(request): os.kill(os.getpid(), signal.SIGKILL)
async def segfault(request): os.kill(os.getpid(), signal.SIGSEGV)
async def no_json(request): return object()
async def too_much(request): return "x" * LATER_BYTES_MAX_1
async def give_up(request): raise asyncio.CancelledError
async def sleep(request):
    open("pid", "w").write(str(os.getpid()))
    await asyncio.sleep(60)
""".replace("LATER_BYTES_MAX_1", str(LATER_BYTES_MAX + 1))


@pytest.fixture(autouse=True)
def handlers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current folder has handlers."""
    (tmp_path / "child_handlers.py").write_text(HANDLERS, encoding="utf-8")
    (tmp_path / "broken_child_handlers.py").write_text("raise RuntimeError('no room on the GPU')\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)


def run(function: str, *, module: str = "child_handlers") -> Any:
    """The end of a request: the body, the answer where it reports tokens, or the failure."""
    work = make_work(request_id="a", payload={"n": 1}, headers=[("forebay-attempt", b"2")])
    work.crashes = SUSPECT_CRASHES

    async def here(_request: HandlerRequest) -> Any:
        raise AssertionError("it must not run in this process")

    async def in_child(request: bytes) -> Answer:
        return await run_in_child(f"{module}:{function}", request)

    try:
        answer = asyncio.run(HandlerBackend(here, run_in_child=in_child).run(work))
    except BackendFailed as error:
        return error.failure
    if answer.output_tokens is not None:
        return answer
    return msgspec.json.decode(answer.body)


def test_a_suspect_runs_in_a_process_of_its_own_and_is_answered_as_ever() -> None:
    body = run("echo")
    assert body.pop("pid") != os.getpid()
    assert body == {"payload": {"n": 1}, "tier": "mid", "attempt": 2}


def test_how_many_tokens_it_made_and_what_is_not_to_be_tried_again_are_told_from_there() -> None:
    answer = run("count")
    assert isinstance(answer, Answer)
    assert (answer.body, answer.prompt_tokens, answer.output_tokens) == (msgspec.Raw(b'{"text":"hi"}'), 7, 30)
    rejected, failed = run("reject"), run("fail")
    assert (rejected.reason, rejected.may_retry) == (Reason.HANDLER_FAILED, False)
    assert rejected.error == "NotRetryableError: no such voice"
    assert failed.may_retry


@pytest.mark.parametrize(
    ("function", "reason", "error"),
    [
        ("fail", Reason.HANDLER_FAILED, "ValueError: no such model"),
        ("leave", Reason.HANDLER_FAILED, "SystemExit: 7"),
        ("no_json", Reason.HANDLER_FAILED, "the handler's answer: body: is a builtins.object, which JSON cannot say"),
        ("too_much", Reason.RESULT_TOO_LARGE, f"a record may have {LATER_BYTES_MAX}"),
        ("give_up", Reason.HANDLER_FAILED, "the handler cancelled itself"),
        ("kill", Reason.WORKER_CRASHED, "the process that ran it alone was ended by SIGKILL"),
        ("segfault", Reason.WORKER_CRASHED, "the process that ran it alone was ended by SIGSEGV"),
        ("vanish", Reason.WORKER_CRASHED, "the process that ran it alone ended with status 7"),
    ],
)
def test_how_a_request_ends_there(function: str, reason: Reason, error: str) -> None:
    failure = run(function)
    assert isinstance(failure, Failure)
    assert failure.reason is reason
    assert error in failure.error


def suspect() -> Work:
    work = make_work()
    work.crashes = SUSPECT_CRASHES
    return work


async def answer_here(request: HandlerRequest) -> Any:
    del request
    return "here"


def test_who_gets_no_process_of_its_own_runs_alone_in_this_one() -> None:
    """A second model does not fit, say: that is not the request's fault."""

    async def in_child(request: bytes) -> Answer:
        with pytest.raises(NoChildError, match="ended with status 1 before it had imported the handler"):
            await run_in_child("broken_child_handlers:any", request)
        raise NoChildError("as before")

    assert asyncio.run(HandlerBackend(answer_here, run_in_child=in_child).run(suspect())).body == "here"


def test_who_gets_no_process_when_others_run_again_is_another_attempt() -> None:
    work = suspect()

    async def in_child(_request: bytes) -> Answer:
        work.crashes = 0  # its time alone was over meanwhile
        raise NoChildError("killed")

    with pytest.raises(BackendFailed) as failed:
        asyncio.run(HandlerBackend(answer_here, run_in_child=in_child).run(work))
    assert failed.value.failure.may_retry


@pytest.mark.parametrize("crashes", [0, 1])
def test_only_suspects_get_one(crashes: int) -> None:
    work = make_work()
    work.crashes = crashes

    async def in_child(_request: bytes) -> Answer:
        raise AssertionError("it must run in this process")

    assert asyncio.run(HandlerBackend(answer_here, run_in_child=in_child).run(work)).body == "here"


def test_a_request_that_is_given_up_ends_its_process(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"

    async def give_up() -> int:
        request = HandlerRequest(
            request_id="a",
            biz_type="b",
            payload_json=msgspec.Raw(b"{}"),
            tier=make_work().tier,
            priority=0,
            tenant=None,
            attempt=1,
            deadline_ms=0,
        )
        task = asyncio.create_task(run_in_child("child_handlers:sleep", msgspec.json.encode(request)))
        while not (pid_file.exists() and pid_file.read_text()):  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return int(pid_file.read_text())

    pid = asyncio.run(give_up())
    until = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < until
        time.sleep(0.02)
