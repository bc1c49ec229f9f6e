"""Handlers that yield their answer: its events, and the body that they make."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from forebay_schemas.contract.reasons import Reason
from forebay_worker import HandlerAnswer, HandlerRequest
from forebay_worker.execution.handler_backend import HandlerBackend
from forebay_worker.execution.handler_stream import call
from forebay_worker.request.backend import BackendFailed
from forebay_worker.request.work import Answer, Failure
from simulated.works import make_work


class Sink:
    """Keeps what it is given."""

    usage_added = False

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.had_text: list[bool] = []

    def add(self, name: bytes, data: bytes, choices: Any, rest: Any, has_text: bool) -> None:  # noqa: ARG002
        assert name == b""
        self.events.append(json.loads(data))
        self.had_text.append(has_text)


def run(*values: Any, sink: Sink | None = None) -> Answer | Failure:
    async def handler(_: HandlerRequest) -> AsyncGenerator[Any, None]:
        for value in values:
            if isinstance(value, Exception):
                raise value
            yield value

    async def scenario() -> Answer | Failure:
        work = make_work()
        work.stream = sink
        backend = HandlerBackend(handler)
        try:
            return await backend.run(work)
        except BackendFailed as failed:
            return failed.failure
        finally:
            await backend.close()

    with capture_logs():
        return asyncio.run(scenario())


def body_of(outcome: Answer | Failure) -> Any:
    assert isinstance(outcome, Answer), outcome
    body = outcome.body
    return json.loads(bytes(body)) if not isinstance(body, (dict, list, str, type(None))) else body


def chunk(text: str, finish: str | None = None) -> dict[str, Any]:
    return {"object": "chat.completion.chunk", "choices": [{"delta": {"content": text}, "finish_reason": finish}]}


def test_chunks_are_merged_as_an_engines_are() -> None:
    sink = Sink()
    outcome = run(chunk(""), chunk("a"), chunk("b", "stop"), sink=sink)
    assert sink.events == [chunk(""), chunk("a"), chunk("b", "stop")]
    assert sink.had_text == [False, True, True]
    message = {"content": "ab"}
    assert body_of(outcome) == {
        "object": "chat.completion",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
    }
    assert isinstance(outcome, Answer)
    assert (outcome.output_tokens_seen, outcome.output_tokens) == (2, None)
    assert outcome.first_token_seconds is not None


@pytest.mark.parametrize("values", [(), ("a", 1, None, {"x": [1.5]}), ({"choices": "no list"},)])
def test_other_values_are_the_list_of_them(values: tuple[Any, ...]) -> None:
    sink = Sink()
    assert body_of(run(*values, sink=sink)) == list(values) == sink.events


def test_a_handler_answer_at_the_end_is_the_answer_and_no_event() -> None:
    sink = Sink()
    outcome = run("a", "b", HandlerAnswer(body={"text": "ab"}, output_tokens=2), sink=sink)
    assert body_of(outcome) == {"text": "ab"}
    assert sink.events == ["a", "b"]
    assert isinstance(outcome, Answer)
    assert outcome.output_tokens == 2


@pytest.mark.parametrize(
    ("values", "reason", "error"),
    [
        ((HandlerAnswer(body=1), "a"), Reason.HANDLER_FAILED, "yields a value after a HandlerAnswer; yield that last"),
        (({1, 2},), Reason.HANDLER_FAILED, "yielded value: is a set"),
        ((float("nan"),), Reason.HANDLER_FAILED, "yielded value: is nan"),
        ((chunk("a"),), Reason.HANDLER_FAILED, "give each choice a finish_reason"),
        ((chunk("a"), {"choices": [1]}), Reason.HANDLER_FAILED, "the chunks cannot be merged"),
        ((HandlerAnswer(body=1, output_tokens=-1),), Reason.HANDLER_FAILED, "output_tokens"),
        (("x" * (5 << 20), "x" * (5 << 20)), Reason.RESULT_TOO_LARGE, "a record may have"),
        (("a", ValueError("no more")), Reason.HANDLER_FAILED, "ValueError: no more"),
    ],
)
def test_what_no_answer_can_be_made_of_fails_by_name(values: tuple[Any, ...], reason: Reason, error: str) -> None:
    outcome = run(*values)
    assert isinstance(outcome, Failure)
    assert outcome.reason is reason
    assert error in outcome.error
    assert outcome.may_retry is ("ValueError" in error)


def test_a_generator_is_closed_when_its_request_is_given_up() -> None:
    closed = []

    async def handler(_: HandlerRequest) -> AsyncGenerator[Any, None]:
        try:
            yield "a"
            await asyncio.sleep(60)
        finally:
            closed.append(True)

    async def scenario() -> None:
        task = asyncio.create_task(HandlerBackend(handler).run(make_work()))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())
    assert closed == [True]


def test_a_handler_that_returns_is_called_as_before() -> None:
    async def handler(request: HandlerRequest) -> Any:
        return {"id": request.request_id}

    request = HandlerRequest(
        request_id="a",
        biz_type="b",
        payload_json=msgspec.Raw(b"{}"),
        tier=make_work().tier,
        priority=5,
        tenant=None,
        attempt=1,
        deadline_ms=0,
    )
    assert asyncio.run(call(handler, request)) == {"id": "a"}
