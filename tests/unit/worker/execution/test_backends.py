"""What a backend's answers and refusals mean, what goes over the wire to it, and which handlers can be loaded."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from forebay_schemas.contract.reasons import Reason
from forebay_schemas.errors import UsageError
from forebay_worker.execution.handler_backend import HandlerBackend, HandlerRequest, load_handler
from forebay_worker.execution.http_backend import HttpBackend, _read_answer, _refusal, _Reply, _retry_after_seconds
from forebay_worker.request.backend import BackendFailed
from forebay_worker.request.work import Answer, Failure, Work
from forebay_worker.settings import WorkerSettings, load_worker_settings
from simulated.works import make_work


@pytest.mark.parametrize(
    ("status", "reason", "of_backend"),
    [
        (429, Reason.BACKEND_OVERLOADED, True),
        (502, Reason.BACKEND_UNAVAILABLE, True),
        (503, Reason.BACKEND_UNAVAILABLE, True),
        (529, Reason.BACKEND_UNAVAILABLE, True),
        (408, Reason.BACKEND_TIMEOUT, False),
        (400, Reason.BACKEND_REJECTED, False),
        (401, Reason.BACKEND_REJECTED, False),
        (404, Reason.BACKEND_REJECTED, False),
        (413, Reason.BACKEND_REJECTED, False),
        (422, Reason.BACKEND_REJECTED, False),
        (500, Reason.BACKEND_ERROR, False),
        (501, Reason.BACKEND_ERROR, False),
        (504, Reason.BACKEND_TIMEOUT, False),
        (201, Reason.BACKEND_BAD_RESPONSE, False),
        (204, Reason.BACKEND_BAD_RESPONSE, False),
        (304, Reason.BACKEND_BAD_RESPONSE, False),
    ],
)
def test_what_each_status_means(status: int, reason: Reason, of_backend: bool) -> None:
    reply = _Reply(status=status, content_type="text/plain", retry_after_seconds=2.0, body=b" the engine's words \n")
    failure = _refusal(reply, may_retry=True)
    assert (failure.reason, failure.of_backend, failure.reached) == (reason, of_backend, True)
    assert failure.error == f"HTTP {status}: the engine's words"
    assert failure.retry_after_seconds == 2.0, "a retry obeys it too"


@pytest.mark.parametrize("may_retry", [True, False])
def test_whether_a_status_may_be_tried_again_is_the_settings_to_say(may_retry: bool) -> None:
    reply = _Reply(status=501, content_type="text/plain", retry_after_seconds=None, body=b"")
    assert _refusal(reply, may_retry=may_retry).may_retry is may_retry


def test_the_engines_words_are_cut_and_may_be_no_text() -> None:
    reply = _Reply(status=500, content_type="", retry_after_seconds=None, body=b"\xff" + b"x" * 10_000)
    error = _refusal(reply, may_retry=True).error
    assert len(error) < 2_100
    assert error.startswith("HTTP 500: \ufffdx")


DATE = "Wed, 21 Oct 2015 07:28:00 GMT"


@pytest.mark.parametrize(
    ("retry_after", "date", "seconds"),
    [
        (None, DATE, None),
        ("7", None, 7.0),
        (" 7 ", None, 7.0),
        ("0", None, 0.0),
        ("1.5", None, 1.5),
        ("99999999999999999999", None, 1e20),
        ("Wed, 21 Oct 2015 07:28:30 GMT", DATE, 30.0),
        ("Wednesday, 21-Oct-15 07:29:00 GMT", DATE, 60.0),
        ("Wed Oct 21 07:28:10 2015", "Wed Oct 21 07:28:00 2015", 10.0),
        ("Wed, 21 Oct 2015 07:27:00 GMT", DATE, 0.0),
        ("Wed, 21 Oct 2015 07:28:30 GMT", None, None),
        ("Wed, 21 Oct 2015 07:28:30 GMT", "today", None),
        # One with a zone and one without cannot be compared.
        ("Wed Oct 21 07:28:10 2015", DATE, None),
        ("soon", DATE, None),
        ("", DATE, None),
        ("-5", DATE, None),
        ("nan", DATE, None),
        ("inf", DATE, None),
        ("1e3", DATE, None),
        ("²", DATE, None),
    ],
)
def test_both_forms_of_retry_after_are_read(retry_after: str | None, date: str | None, seconds: float | None) -> None:
    assert _retry_after_seconds(retry_after, date) == seconds


@pytest.mark.parametrize(
    ("body", "prompt_tokens", "output_tokens"),
    [
        (b'{"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}}', 3, 4),
        (b'{"data": [], "usage": {"prompt_tokens": 3, "total_tokens": 3}}', 3, None),
        (b"{}", None, None),
        (b'{"usage": null}', None, None),
        (b'{"usage": {"prompt_tokens": 3.5, "completion_tokens": "4"}}', None, None),
        (b'{"usage": {"prompt_tokens": -1, "completion_tokens": true}}', None, None),
        (b'{"usage": {"prompt_tokens": 10000001, "completion_tokens": ' + b"9" * 400 + b"}}", None, None),
        (b'{"usage": [1]}', None, None),
        ('{"choices": "ä€"}'.encode(), None, None),
    ],
)
def test_an_answer_goes_on_as_the_bytes_that_came(
    body: bytes, prompt_tokens: int | None, output_tokens: int | None
) -> None:
    answer = _read_answer(body, "application/json")
    assert bytes(answer.body) == body
    assert (answer.prompt_tokens, answer.output_tokens) == (prompt_tokens, output_tokens)


@pytest.mark.parametrize(
    "body",
    [b"", b"<html>", b'{"choices": [', b'{"text": "\xff"}', b'{"a": 1} {"b": 2}', b"[1]", b"null", b"[" * 100_000],
)
def test_an_answer_that_is_no_json_is_a_bad_response(body: bytes) -> None:
    with pytest.raises(BackendFailed) as raised:
        _read_answer(body, "application/json")
    failure = raised.value.failure
    assert (failure.reason, failure.of_backend) == (Reason.BACKEND_BAD_RESPONSE, False)
    assert len(failure.error) < 600


def test_a_stream_is_answered_as_a_whole() -> None:
    stream = b'data: {"choices": [{"delta": {"content": "a"}}], "usage": {"completion_tokens": 1}}\n\ndata: [DONE]\n\n'
    answer = _read_answer(stream, "text/event-stream")
    assert msgspec.json.decode(answer.body)["choices"][0]["message"] == {"content": "a"}
    assert answer.output_tokens == 1
    with pytest.raises(BackendFailed, match="broke off"):
        _read_answer(stream[:-14], "text/event-stream")


# Over the wire


def call(
    answer: Callable[[web.Request], Awaitable[web.StreamResponse]], work: Work, *, path: str = "", **settings: object
) -> Answer | Failure:
    """Lets an HTTP backend run a request against a server that answers as told."""

    async def scenario() -> Answer | Failure:
        app = web.Application()
        app.router.add_route("*", "/{tail:.*}", answer)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        backend = HttpBackend(settings_for(f"http://127.0.0.1:{runner.addresses[0][1]}{path}", **settings))
        try:
            return await backend.run(work)
        except BackendFailed as error:
            return error.failure
        finally:
            await backend.close()
            await runner.cleanup()

    return asyncio.run(scenario())


def settings_for(url: str, **settings: object) -> WorkerSettings:
    return load_worker_settings(flags={"backend_url": url, **settings}, config=None)


def test_the_payload_goes_to_its_path_as_the_bytes_that_came() -> None:
    seen: dict[str, Any] = {}

    async def answer(request: web.Request) -> web.Response:
        seen.update(path=request.path, body=await request.read(), headers=request.headers, method=request.method)
        return web.Response(body=b'{"ok": 1}', content_type="application/json")

    payload = b'{"model":  "m", "odd": [1.0, "\\u00e4"]}'
    trace = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    work = make_work(
        value=b'{"request_id": "r", "biz_type": "rerank", "payload": ' + payload + b"}",
        headers=[("traceparent", trace), ("forebay-attempt", b"2"), ("forebay-replay-count", b"1")],
    )
    settings = {"biz_paths": {"rerank": "/v1/rerank"}, "backend_api_key": "s3cret", "worker_id": "w-7"}
    given = call(answer, work, path="/base/", **settings)
    assert isinstance(given, Answer)
    assert bytes(given.body) == b'{"ok": 1}'
    assert (seen["method"], seen["path"], seen["body"]) == ("POST", "/base/v1/rerank", payload)
    assert seen["headers"]["x-request-id"] == "r"
    assert seen["headers"]["traceparent"] == trace.decode()
    # An engine's log then tells a retry or a replay from a repetition.
    assert (seen["headers"]["x-forebay-worker"], seen["headers"]["x-forebay-attempt"]) == ("w-7", "2")
    assert seen["headers"]["x-forebay-replay-count"] == "1"
    assert seen["headers"]["authorization"] == "Bearer s3cret"
    assert seen["headers"]["content-type"] == "application/json"


def test_an_engine_that_takes_a_priority_is_told_the_tier() -> None:
    bodies: list[Any] = []

    async def answer(request: web.Request) -> web.Response:
        bodies.append(await request.json())
        return web.Response(body=b"{}", content_type="application/json")

    work = make_work(payload={"model": "m"}, priority="mid")
    assert isinstance(call(answer, work, engine_priority="lower_first"), Answer)
    assert bodies == [{"priority": 16, "model": "m"}]


def test_a_biz_type_without_a_path_is_rejected_without_a_call() -> None:
    async def answer(_: web.Request) -> web.Response:
        raise AssertionError("called")

    failure = call(answer, make_work(biz_type="poetry"))
    assert isinstance(failure, Failure)
    assert failure.reason is Reason.UNKNOWN_BIZ_TYPE
    assert "chat_completion, completion, embedding" in failure.error


def test_a_date_in_retry_after_counts_from_the_servers_own_clock() -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=503, headers={"retry-after": "Wed, 21 Oct 2015 07:28:09 GMT", "date": DATE})

    failure = call(answer, make_work())
    assert isinstance(failure, Failure)
    assert (failure.retry_after_seconds, failure.of_backend) == (9.0, True)


def test_an_answer_cut_off_in_the_middle_speaks_of_the_backend() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-length": "100"})
        await response.prepare(request)
        await response.write(b'{"choices"')
        assert request.transport is not None
        request.transport.close()
        return response

    failure = call(answer, make_work())
    assert isinstance(failure, Failure)
    assert (failure.reason, failure.of_backend) == (Reason.BACKEND_BAD_RESPONSE, True)
    assert failure.reached


@pytest.mark.parametrize(("status", "may_retry"), [(425, True), (500, False)])
def test_which_statuses_are_tried_again_is_a_setting(status: int, may_retry: bool) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status)

    failure = call(answer, make_work(), retry_statuses=[425])
    assert isinstance(failure, Failure)
    assert failure.may_retry is may_retry


def test_an_answer_that_does_not_come_in_time_is_a_timeout() -> None:
    async def answer(_: web.Request) -> web.Response:
        await asyncio.sleep(0.5)
        return web.Response()

    failure = call(answer, make_work(), backend_timeout_seconds=0.05)
    assert isinstance(failure, Failure)
    assert (failure.reason, failure.of_backend) == (Reason.BACKEND_TIMEOUT, False)


def test_a_refused_connection_speaks_of_the_backend() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"

        async def scenario() -> None:
            backend = HttpBackend(settings_for(f"http://{address}"))
            try:
                await backend.run(make_work())
            finally:
                await backend.close()

        with pytest.raises(BackendFailed) as raised:
            asyncio.run(scenario())
    failure = raised.value.failure
    assert (failure.reason, failure.of_backend) == (Reason.BACKEND_UNAVAILABLE, True)
    assert failure.error == f"no connection to {address}: connection refused"
    assert not failure.reached, "no byte of the request: it cannot have been its fault"


# Handlers


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
