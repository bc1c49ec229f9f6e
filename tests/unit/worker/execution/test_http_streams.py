"""Streams over HTTP: their events as they come, their usage, and the time to their first token."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from forebay_schemas.contract.reasons import Reason
from forebay_worker.answers.verdict import Limits
from forebay_worker.execution import http_backend
from forebay_worker.request.backend import BackendFailed
from forebay_worker.request.work import Answer, Failure, Work
from forebay_worker.streaming.run import Run
from harness.http_backends import asking
from harness.raw_engine import RawRequest, chunk, chunked, response
from simulated.answers import DONE, event
from simulated.streams import MemoryOutlet, make_run, shown
from simulated.works import make_work

STREAM: dict[str, Any] = {"stream": True, "n": 1}
ASKED = b'{"stream_options":{"include_usage":true},"stream":true,"n":1}'
USAGE = event({"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 9}})


def text(*parts: str) -> bytes:
    said = b"".join(event({"choices": [{"delta": {"content": part}}]}) for part in parts)
    return said + event({"choices": [{"delta": {}, "finish_reason": "stop"}]})


def run_all(answer: Any, *works: Work, **settings: Any) -> tuple[list[Answer | Failure], list[RawRequest]]:
    async def scenario() -> tuple[list[Answer | Failure], list[RawRequest]]:
        outcomes: list[Answer | Failure] = []
        async with asking(answer, **settings) as (backend, engine):
            for work in works:
                try:
                    outcomes.append(await backend.run(work))
                except BackendFailed as failed:
                    outcomes.append(failed.failure)
            return outcomes, engine.requests

    return asyncio.run(scenario())


def test_a_stream_is_asked_for_its_usage_which_its_readers_do_not_see() -> None:
    async def answer(_: RawRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(chunked(text("a", "b") + USAGE + DONE))

    outlet, work = MemoryOutlet(), make_work(payload=STREAM)
    run = work.stream = make_run(outlet)
    (outcome,), requests = run_all(answer, work)
    run.end()
    assert [request.body for request in requests] == [ASKED]
    assert isinstance(outcome, Answer)
    assert (outcome.prompt_tokens, outcome.output_tokens, outcome.usage_added) == (4, 9, True)
    assert all("usage" not in value for value in shown(outlet.pieces).values())
    assert json.loads(bytes(outcome.body))["usage"]["completion_tokens"] == 9


@pytest.mark.parametrize("status", [400, 422])
def test_an_engine_that_refuses_to_be_asked_is_asked_without_and_left_alone(status: int) -> None:
    async def answer(request: RawRequest, writer: asyncio.StreamWriter) -> None:
        if b"stream_options" in request.body:
            writer.write(response(b'{"error": {"message": "unknown field stream_options"}}', status=status))
        else:
            writer.write(chunked(text("a", "b", "c") + DONE))

    outcomes, requests = run_all(answer, make_work(payload=STREAM), make_work(payload=STREAM, offset=1))
    assert [b"stream_options" in request.body for request in requests] == [True, False, False]
    for outcome in outcomes:
        assert isinstance(outcome, Answer)
        assert (outcome.output_tokens, outcome.output_tokens_seen, outcome.usage_added) == (None, 3, False)


def test_a_request_that_is_refused_either_way_says_nothing_of_the_engine() -> None:
    async def answer(request: RawRequest, writer: asyncio.StreamWriter) -> None:
        if b"bad" in request.body:
            writer.write(response(b'{"error": {"message": "no such thing"}}', status=400))
        else:
            writer.write(chunked(text("a") + USAGE + DONE))

    outcomes, requests = run_all(answer, make_work(payload={**STREAM, "bad": 1}), make_work(payload=STREAM, offset=1))
    assert isinstance(outcomes[0], Failure)
    assert outcomes[0].http_status == 400
    assert [b"stream_options" in request.body for request in requests] == [True, False, True]


def test_the_setting_turns_it_off() -> None:
    async def answer(_: RawRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(chunked(text("a") + DONE))

    (outcome,), requests = run_all(answer, make_work(payload=STREAM), stream_usage=False)
    assert [request.body for request in requests] == [b'{"stream":true,"n":1}']
    assert isinstance(outcome, Answer)
    assert not outcome.usage_added


def test_events_go_on_while_the_answer_is_made_and_the_first_token_is_timed() -> None:
    goes_on_at: list[float] = []
    has_piece = asyncio.Event()

    class Noting(MemoryOutlet):
        """Tells of the first piece."""

        def send(self, run: Run, value: bytes) -> bool:
            has_piece.set()
            return super().send(run, value)

    outlet, work = Noting(), make_work(payload=STREAM)
    run = work.stream = make_run(outlet)

    async def answer(_: RawRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(chunked(event({"choices": [{"delta": {"content": "a"}}]}), is_ended=False))
        await has_piece.wait()
        goes_on_at.append(time.monotonic())
        writer.write(chunk(text("b") + DONE) + chunk(b""))

    started_at = time.monotonic()
    (outcome,), _ = run_all(answer, work)
    run.end()
    assert isinstance(outcome, Answer)
    assert outcome.first_token_seconds is not None
    assert 0 < outcome.first_token_seconds <= goes_on_at[0] - started_at
    assert shown(outlet.pieces).text() == "ab"


def test_an_answer_that_is_no_stream_has_no_first_token() -> None:
    async def answer(_: RawRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(response(b'{"choices": [{"message": {"content": "a"}, "finish_reason": "stop"}]}'))

    (outcome,), _ = run_all(answer, make_work(payload={"n": 1}))
    assert isinstance(outcome, Answer)
    assert (outcome.first_token_seconds, outcome.content_chunks) == (None, None)


HOSTILE: dict[str, tuple[bytes, Reason]] = {
    "a stream that never ends": (event({"choices": [{"delta": {"content": "x"}}]}), Reason.RESULT_TOO_LARGE),
    "events without an answer that never end": (b": still here\n\n", Reason.RESULT_TOO_LARGE),
    "an event without an end": (b"data: " + b"x" * 1_000, Reason.RESULT_TOO_LARGE),
    "empty lines without an end": (b"\n" * 1_000, Reason.RESULT_TOO_LARGE),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_stream_ends_the_attempt_by_name_and_its_connection(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_backend, "ANSWER_LIMITS", Limits(answer_bytes_max=10_000, stream_bytes_max=200_000))
    piece, reason = HOSTILE[name]
    is_closed = asyncio.Event()

    async def answer(_: RawRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(chunked(is_ended=False))
        try:
            while True:
                writer.write(chunk(piece))
                await writer.drain()
                await asyncio.sleep(0)
        except ConnectionError:
            is_closed.set()

    async def scenario() -> Answer | Failure:
        async with asking(answer) as (backend, _):
            outlet, work = MemoryOutlet(), make_work(payload=STREAM)
            run = work.stream = make_run(outlet)
            try:
                return await backend.run(work)
            except BackendFailed as failed:
                await asyncio.wait_for(is_closed.wait(), 10)
                run.break_off()
                assert not any(piece.last for piece in outlet.pieces)
                assert not outlet.pieces or outlet.pieces[-1].error == "stream_broken"
                return failed.failure

    outcome = asyncio.run(scenario())
    assert isinstance(outcome, Failure)
    assert outcome.reason is reason


@pytest.mark.parametrize("lines", [1, 100_000])
def test_headers_without_an_end_end_the_attempt_by_name_and_the_connection(lines: int) -> None:
    is_closed = asyncio.Event()

    async def answer(_: RawRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n")
        try:
            for number in range(lines):
                writer.write(b"x-%d: %b\r\n" % (number, b"y" * (1_000_000 if lines == 1 else 100)))
                await writer.drain()
            await asyncio.sleep(30)
        except ConnectionError:
            is_closed.set()

    async def scenario() -> Answer | Failure:
        async with asking(answer, backend_timeout_seconds=20) as (backend, _):
            try:
                return await backend.run(make_work(payload=STREAM))
            except BackendFailed as failed:
                return failed.failure

    outcome = asyncio.run(scenario())
    assert isinstance(outcome, Failure)
    assert outcome.reason is Reason.BACKEND_BAD_RESPONSE
