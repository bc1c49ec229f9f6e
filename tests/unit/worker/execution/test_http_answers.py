"""Forms of answers over real HTTP: which are completed, with what, and which are not, and whose fault that is."""

from __future__ import annotations

import asyncio
import gzip
import time
import tracemalloc
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from forebay_schemas.contract.reasons import Reason
from forebay_schemas.contract.topics import LATER_BYTES_MAX
from forebay_worker.request.work import Answer, Failure
from harness.http_backends import ask, asking, outcome_of
from harness.raw_engine import AnswerRaw, RawRequest, chunk, chunked, response, written
from simulated.works import make_work

DONE = b"data: [DONE]\n\n"
MIB = 1024 * 1024


def event(value: Any, *, name: str = "") -> bytes:
    start = f"event: {name}\n" if name else ""
    return f"{start}data: ".encode() + msgspec.json.encode(value) + b"\n\n"


def piece(delta: dict[str, Any] | None = None, finish_reason: str | None = None, **beside: Any) -> bytes:
    """An event of a streamed chat."""
    choice = {"index": 0, "delta": delta or {}, "finish_reason": finish_reason, **beside}
    return event({"id": "c", "object": "chat.completion.chunk", "choices": [choice]})


TEXT = (piece({"role": "assistant", "content": ""}), piece({"content": "a"}), piece({"content": "b"}))
STOP = piece(finish_reason="stop")
USAGE = event({"id": "c", "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}})
CHAT_BODY: dict[str, Any] = {"choices": [{"index": 0, "message": {"content": "ab"}, "finish_reason": "stop"}]}


def body_of(answered: Answer | Failure) -> Any:
    assert isinstance(answered, Answer), answered
    return msgspec.json.decode(answered.body)


def message_of(answered: Answer | Failure) -> Any:
    return body_of(answered)["choices"][0]["message"]


def json_response(value: Any, *, status: int = 200) -> bytes:
    return response(msgspec.json.encode(value), status=status)


@pytest.mark.parametrize(
    "events",
    [
        [*TEXT, STOP, USAGE, DONE],
        # text-generation-inference and others end without [DONE].
        [*TEXT, STOP, USAGE],
        [*TEXT, STOP],
        [b"data: null\n\n", *TEXT, b": keep-alive\n\n", STOP, DONE],
    ],
)
def test_a_whole_stream_is_one_answer(events: Sequence[bytes]) -> None:
    answered = ask(written(chunked(*events)))
    assert message_of(answered) == {"role": "assistant", "content": "ab"}
    assert isinstance(answered, Answer)
    assert answered.output_tokens == (2 if USAGE in events else None)


@pytest.mark.parametrize(
    ("events", "seconds_max"),
    [([*TEXT, STOP, USAGE, DONE], 0.5), ([*TEXT, STOP, USAGE], 1.5)],
    ids=["done", "grace"],
)
def test_a_whole_stream_is_not_waited_for_when_its_connection_stays_open(
    events: Sequence[bytes], seconds_max: float
) -> None:
    started = time.monotonic()
    answered = ask(written(chunked(*events, is_ended=False)), grace_seconds=0.3)
    assert message_of(answered)["content"] == "ab"
    assert time.monotonic() - started < seconds_max


def test_what_comes_within_the_grace_belongs_to_the_answer() -> None:
    async def answer(_: RawRequest, writer: Any) -> None:
        writer.write(chunked(*TEXT, STOP, is_ended=False))
        await asyncio.sleep(0.1)
        writer.write(chunk(USAGE) + chunk(DONE))

    answered = ask(answer, grace_seconds=5.0)
    assert isinstance(answered, Answer)
    assert answered.output_tokens == 2


def test_a_connection_whose_stream_ended_in_order_serves_the_next_request() -> None:
    async def scenario() -> list[int]:
        async with asking(written(chunked(*TEXT, STOP, DONE))) as (backend, engine):
            for _ in range(3):
                await backend.run(make_work())
            return [request.connection for request in engine.requests]

    assert asyncio.run(scenario()) == [0, 0, 0]


def test_the_rest_of_a_stream_after_its_end_does_not_reach_the_next_answer() -> None:
    async def scenario() -> list[int]:
        async with asking(written(chunked(*TEXT, STOP, DONE, is_ended=False))) as (backend, engine):
            for _ in range(2):
                await backend.run(make_work())
            return [request.connection for request in engine.requests]

    assert asyncio.run(scenario()) == [0, 1], "a connection without an end is closed"


def test_a_stream_that_ends_with_its_last_event_and_without_a_last_chunk_is_whole() -> None:
    answered = ask(written(chunked(*TEXT, STOP, DONE, is_ended=False), then_close=True))
    assert message_of(answered)["content"] == "ab"


ABORTED: dict[str, bytes] = {
    "stream aborted": chunked(*TEXT, piece(finish_reason="abort"), DONE),
    "json aborted": json_response({"choices": [{"message": {"content": "a"}, "finish_reason": "abort"}]}),
    "json error": json_response({"choices": [{"message": {"content": "a"}, "finish_reason": "error"}]}),
    "no finish_reason": chunked(*TEXT),
    "no finish_reason but [DONE]": chunked(*TEXT, DONE),
    "cut in a chunk": chunked(*TEXT, is_ended=False),
    "cut in JSON": json_response(CHAT_BODY)[:-10],
    "response unfinished": json_response({"object": "response", "status": "cancelled", "output": []}),
}


@pytest.mark.parametrize("answer", ABORTED.values(), ids=ABORTED)
def test_an_engine_that_gave_up_is_as_a_connection_that_broke_off(answer: bytes) -> None:
    biz_type = "response" if b'"response"' in answer else "chat_completion"
    failure = ask(written(answer, then_close=True), biz_type=biz_type)
    assert isinstance(failure, Failure)
    assert (failure.reason, failure.of_backend, failure.may_retry) == (Reason.BACKEND_BAD_RESPONSE, True, True)
    assert failure.reached


ERRORS: dict[str, tuple[bytes, int | None, Reason, bool]] = {
    "lmstudio": (json_response({"error": "Unexpected endpoint or method"}), None, Reason.BACKEND_BAD_RESPONSE, True),
    "openrouter": (
        json_response({"error": {"message": "provider", "code": 502}}),
        502,
        Reason.BACKEND_UNAVAILABLE,
        True,
    ),
    "null choices": (
        json_response({"choices": None, "error": {"message": "m", "code": 429}}),
        429,
        Reason.BACKEND_OVERLOADED,
        True,
    ),
    "object error": (
        json_response({"object": "error", "message": "too long", "code": 400}),
        400,
        Reason.BACKEND_REJECTED,
        False,
    ),
    "no choices": (json_response({"choices": []}), None, Reason.BACKEND_BAD_RESPONSE, True),
    "empty": (json_response({}), None, Reason.BACKEND_BAD_RESPONSE, True),
    "detail": (json_response({"detail": "Not Found"}), None, Reason.BACKEND_BAD_RESPONSE, True),
    "a page": (response(b"<html>welcome", content_type="text/html"), None, Reason.BACKEND_BAD_RESPONSE, True),
    "an array": (json_response([1]), None, Reason.BACKEND_BAD_RESPONSE, True),
    "depth": (response(b"[" * 100_000), None, Reason.BACKEND_BAD_RESPONSE, True),
    "no UTF-8": (response(b'{"choices": "\xff"}'), None, Reason.BACKEND_BAD_RESPONSE, True),
    "no body": (response(b""), None, Reason.BACKEND_BAD_RESPONSE, True),
    "no content": (response(b"", status=204), 204, Reason.BACKEND_BAD_RESPONSE, True),
    "proxy": (response(b"origin", status=520, content_type="text/html"), 502, Reason.BACKEND_UNAVAILABLE, True),
    "not implemented": (json_response({"error": "no tools"}, status=501), 501, Reason.BACKEND_REJECTED, False),
    "error 400 in a stream": (
        chunked(event({"error": {"message": "too long", "code": 400}}), DONE),
        400,
        Reason.BACKEND_REJECTED,
        False,
    ),
    "error field": (
        chunked(*TEXT, b'error: {"code": 500, "message": "slot"}\n\n'),
        500,
        Reason.BACKEND_ERROR,
        True,
    ),
    "bare JSON in a stream": (
        chunked(b'{"error": {"message": "busy", "code": 503}}\n'),
        503,
        Reason.BACKEND_UNAVAILABLE,
        True,
    ),
    "an error event": (
        chunked(event({"message": "m", "code": 500}, name="error"), DONE),
        500,
        Reason.BACKEND_ERROR,
        True,
    ),
    "no JSON in a stream": (chunked(b"data: rubbish\n\n"), None, Reason.BACKEND_BAD_RESPONSE, True),
    "[DONE] alone": (chunked(DONE), None, Reason.BACKEND_BAD_RESPONSE, True),
}


@pytest.mark.parametrize(("answer", "status", "reason", "may_retry"), ERRORS.values(), ids=ERRORS)
def test_what_is_no_answer_is_a_failure_with_the_status_that_it_names(
    answer: bytes, status: int | None, reason: Reason, may_retry: bool
) -> None:
    failure = ask(written(answer))
    assert isinstance(failure, Failure)
    assert (failure.http_status, failure.reason, failure.may_retry) == (status, reason, may_retry)
    assert failure.of_backend is (status in (429, 502, 503, 529))
    assert len(failure.error) < 600


ANSWERS: dict[str, tuple[str, Any]] = {
    "chat_completion": ("/v1/chat/completions", CHAT_BODY),
    "completion": ("/v1/completions", {"choices": [{"text": "ab", "finish_reason": "length"}]}),
    "embedding": ("/v1/embeddings", {"data": [{"embedding": [0.5]}]}),
    "response": ("/v1/responses", {"object": "response", "status": "completed", "output": [{"type": "message"}]}),
    "image_generation": ("/v1/images/generations", {"data": [{"b64_json": "aGk="}]}),
}


@pytest.mark.parametrize("status", [200, 201])
@pytest.mark.parametrize("biz_type", ANSWERS)
def test_each_biz_type_goes_to_its_path_and_its_answer_goes_on_as_it_came(biz_type: str, status: int) -> None:
    path, value = ANSWERS[biz_type]

    async def scenario() -> tuple[Answer, str]:
        async with asking(written(json_response(value, status=status))) as (backend, engine):
            return await backend.run(make_work(biz_type=biz_type)), engine.requests[0].path

    answered, asked = asyncio.run(scenario())
    assert bytes(answered.body) == msgspec.json.encode(value)
    assert asked == path


def test_a_response_that_is_streamed_is_what_its_last_event_holds() -> None:
    done = {"object": "response", "status": "completed", "output": [], "usage": {"input_tokens": 5, "output_tokens": 6}}
    events = [
        event({"type": "response.created", "response": {"status": "in_progress"}}, name="response.created"),
        event({"type": "response.output_text.delta", "delta": "a"}, name="response.output_text.delta"),
        event({"type": "response.completed", "response": done}, name="response.completed"),
    ]
    # It has no [DONE]; the connection may stay open.
    answered = ask(written(chunked(*events, is_ended=False)), biz_type="response")
    assert body_of(answered) == done
    assert isinstance(answered, Answer)
    assert (answered.prompt_tokens, answered.output_tokens) == (5, 6)


def test_nothing_of_a_stream_is_lost_when_it_is_put_together() -> None:
    calls = [
        {"index": 0, "id": "call_a", "function": {"name": "read", "arguments": "{}"}},
        {"index": 0, "id": "call_b", "function": {"name": "read", "arguments": '{"p": 1}'}},
    ]
    answered = ask(
        written(
            chunked(
                piece({"content": "alpha"}, logprobs={"content": [{"token": "alpha"}]}),
                piece({"content": " beta"}, logprobs={"content": [{"token": " beta"}]}),
                b'data: {"choices": [{"index": 0, "delta": {"content": " \\ud83d"}}]}\n\n',
                b'data: {"choices": [{"index": 0, "delta": {"content": "\\ude00"}}]}\n\n',
                *(piece({"tool_calls": [call]}) for call in calls),
                piece({"vendor_field": [1]}),
                piece({"vendor_field": [2]}),
                STOP,
                DONE,
            )
        )
    )
    [choice] = body_of(answered)["choices"]
    assert choice["message"]["content"] == "alpha beta 😀"
    assert [one["token"] for one in choice["logprobs"]["content"]] == ["alpha", " beta"]
    assert [call["id"] for call in choice["message"]["tool_calls"]] == ["call_a", "call_b"]
    assert choice["message"]["vendor_field"] == [1, 2]


# What has no end


def without_end(head: bytes, piece_: bytes, sent: list[int]) -> AnswerRaw:
    async def answer(_: RawRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        while True:
            writer.write(piece_)
            await writer.drain()
            sent[0] += len(piece_)

    return answer


ENDLESS: dict[str, tuple[bytes, Callable[[], bytes]]] = {
    "empty lines": (chunked(content_type="application/json", is_ended=False), lambda: chunk(b"\n" * 65_536)),
    "JSON": (chunked(b'{"choices": "', content_type="application/json", is_ended=False), lambda: chunk(b"x" * 65_536)),
    "one event": (chunked(b"data: ", is_ended=False), lambda: chunk(b"x" * 65_536)),
    "text": (chunked(is_ended=False), lambda: chunk(piece({"content": "x" * 65_536}))),
    "no length": (b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n", lambda: b" " * 65_536),
}


@pytest.mark.parametrize(("head", "more"), ENDLESS.values(), ids=ENDLESS)
def test_an_answer_without_end_is_read_up_to_the_bound_alone(head: bytes, more: Callable[[], bytes]) -> None:
    sent = [0]
    tracemalloc.start()
    try:
        failure = ask(without_end(head, more(), sent))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert isinstance(failure, Failure)
    assert (failure.reason, failure.may_retry) == (Reason.RESULT_TOO_LARGE, False)
    assert sent[0] < 5 * LATER_BYTES_MAX
    assert peak_bytes < 8 * LATER_BYTES_MAX


def test_answers_without_end_to_many_requests_at_a_time_cost_the_memory_of_a_few() -> None:
    async def scenario() -> list[Answer | Failure]:
        head, more = ENDLESS["JSON"]
        async with asking(without_end(head, more(), [0])) as (backend, _):
            return await asyncio.gather(*(outcome_of(backend) for _ in range(16)))

    tracemalloc.start()
    try:
        outcomes = asyncio.run(scenario())
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [outcome.reason for outcome in outcomes if isinstance(outcome, Failure)] == [Reason.RESULT_TOO_LARGE] * 16
    assert peak_bytes < 12 * LATER_BYTES_MAX, "16 answers of that size came at a time"


def test_a_compressed_answer_counts_as_what_it_decompresses_to() -> None:
    packed = gzip.compress(b" " * (256 * MIB), compresslevel=1)
    assert len(packed) < LATER_BYTES_MAX
    tracemalloc.start()
    try:
        failure = ask(written(response(packed, headers={"content-encoding": "gzip"})))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert isinstance(failure, Failure)
    assert failure.reason is Reason.RESULT_TOO_LARGE
    assert peak_bytes < 64 * MIB


def test_a_compressed_answer_is_read() -> None:
    packed = gzip.compress(msgspec.json.encode(CHAT_BODY))
    assert body_of(ask(written(response(packed, headers={"content-encoding": "gzip"})))) == CHAT_BODY
