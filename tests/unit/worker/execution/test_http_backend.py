"""Requests on the wire to an engine, and the outcome of each kind of answer."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from forebay_schemas.contract.reasons import Reason
from forebay_worker.execution.http_backend import HttpBackend
from forebay_worker.request.backend import BackendFailed
from forebay_worker.request.work import Answer, Failure, Work
from forebay_worker.settings import WorkerSettings, load_worker_settings
from forebay_worker.wiring.choices import http_options
from simulated.works import make_work

DATE = "Wed, 21 Oct 2015 07:28:00 GMT"
CHAT = b'{"choices": [{"message": {"content": "a"}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 3}}'


def call(
    answer: Callable[[web.Request], Awaitable[web.StreamResponse]], work: Work, *, path: str = "", **settings: object
) -> Answer | Failure:
    """Lets an HTTP backend run a request against a server that answers by ``answer``."""

    async def scenario() -> Answer | Failure:
        app = web.Application()
        app.router.add_route("*", "/{tail:.*}", answer)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        options = http_options(settings_for(f"http://127.0.0.1:{runner.addresses[0][1]}{path}", **settings))
        backend = HttpBackend(options)
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
    assert seen["headers"]["x-request-id"] == "r-r1-2"
    assert seen["headers"]["x-forebay-request-id"] == "r"
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
        return web.Response(body=CHAT, content_type="application/json")

    work = make_work(payload={"model": "m"}, priority="mid")
    assert isinstance(call(answer, work, engine_priority="lower_first"), Answer)
    assert bodies == [{"priority": 16, "model": "m"}]


def test_a_biz_type_without_a_path_is_rejected_without_a_call() -> None:
    async def answer(_: web.Request) -> web.Response:
        raise AssertionError("called")

    failure = call(answer, make_work(biz_type="poetry"))
    assert isinstance(failure, Failure)
    assert failure.reason is Reason.UNKNOWN_BIZ_TYPE
    assert "chat_completion, completion, embedding, image_generation, response" in failure.error


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
            backend = HttpBackend(http_options(settings_for(f"http://{address}")))
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
