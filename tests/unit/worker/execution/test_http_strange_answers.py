"""Strange forms of answers that are answers all the same, over real HTTP."""

from __future__ import annotations

import asyncio
import gzip
from typing import Any

import pytest

from forebay_worker.request.work import Answer, Failure
from harness.http_backends import asking
from harness.raw_engine import RawRequest, chunk, chunked, response, written
from harness.strange_answers import (
    AZURE_NOTE,
    BAD,
    CHAT,
    CHAT_BODY,
    DONE,
    LLAMA,
    MESSAGE,
    OLLAMA,
    STOP,
    TGI,
    UNAVAILABLE,
    A,
    B,
    body_of,
    encoded,
    event,
    outcome,
    packed_pieces,
    piece,
    raw,
    raw_deflate,
    said,
)
from simulated.works import make_work

COMPLETED: dict[str, bytes] = {
    # On the wire
    "deflate without a zlib header": response(raw_deflate(CHAT_BODY), headers={"content-encoding": "deflate"}),
    "gzip in two members": response(
        gzip.compress(CHAT_BODY[:9]) + gzip.compress(CHAT_BODY[9:]), headers={"content-encoding": "GZIP"}
    ),
    "identity": response(CHAT_BODY, headers={"content-encoding": "identity"}),
    "a packed stream that stays open": chunked(
        *packed_pieces(A, B, STOP, DONE), headers={"content-encoding": "gzip"}, is_ended=False
    ),
    "early hints": raw(status=b"HTTP/1.1 103 Early Hints", body=b"HTTP/1.1 102 Processing\r\n\r\n")
    + response(CHAT_BODY),
    "no words behind the status": raw(b"content-length: %d" % len(CHAT_BODY), status=b"HTTP/1.1 200"),
    "chunk extensions and trailers": raw(
        b"transfer-encoding: chunked",
        body=b"%X;a=b\r\n%b\r\n0\r\ngrpc-status: 13\r\n\r\n" % (len(CHAT_BODY), CHAT_BODY),
    ),
    "a content type that is none": response(CHAT_BODY, content_type=";;; ,"),
    "a content type said twice": chunked(A, B, STOP, DONE, content_type="text/event-stream, text/event-stream"),
    # Events
    "[DONE] in quotes": chunked(A, B, STOP, event(b'"[DONE]"')),
    "a ping with a date": chunked(A, event(b"2026-01-01 12:00:00", name="ping"), B, STOP, DONE),
    "a heartbeat in JSON": chunked(A, event({"type": "heartbeat"}, name="heartbeat"), B, STOP, DONE),
    "done as a name": chunked(A, B, STOP, event({}, name="done")),
    "usage without choices": chunked(A, B, STOP, event({"usage": {"prompt_tokens": 3}}), DONE),
    "Azure's note after the end": chunked(A, B, STOP, event(AZURE_NOTE), DONE),
    # The message so far
    "deltas beside the message so far": chunked(said(None, "a", "a"), said(None, "ab", "b"), said("stop", "ab", "")),
    "the message behind its deltas": chunked(A, B, said("stop", "ab"), DONE),
    "the message so far alone": chunked(said(None, "a"), said(None, "ab"), said("stop", "ab"), DONE),
    "the answer twice": chunked(event(CHAT), event(CHAT), DONE),
    "stop in each chunk": chunked(piece({"content": "a"}, "stop"), piece({"content": "b"}, "stop"), DONE),
}


@pytest.mark.parametrize("answer", COMPLETED.values(), ids=COMPLETED)
def test_a_form_that_is_an_answer(answer: bytes) -> None:
    body = body_of(outcome(written(answer)))
    [choice] = body["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("ab", "stop")
    assert body.get("created", 7) == 7
    assert "type" not in body


@pytest.mark.parametrize(
    ("messages", "content"),
    [
        ([[{"type": "text", "text": "a"}]], [{"type": "text", "text": "a"}]),
        ([["a"], ["a", "b"]], ["a", "b"]),
        ([5], 5),
        ([{"a": 1}, {"a": 1}], {"a": 1}),
        ([None, "a"], "a"),
        (["a", ""], "a"),
        (["a", ["a"]], None),
        ([[1], {"a": 1}], None),
    ],
)
def test_a_message_so_far_may_hold_anything_that_goes_on(messages: list[Any], content: Any) -> None:
    events = [event({"choices": [{"index": 0, "message": {"content": each}}]}) for each in messages]
    answered = outcome(written(chunked(*events, STOP, DONE)))
    if content is None:
        assert isinstance(answered, Failure)
        assert "does not go on" in answered.error
    else:
        assert body_of(answered)["choices"][0]["message"]["content"] == content


@pytest.mark.parametrize(
    ("biz_type", "parts", "whole_from"),
    [
        # Some relays leave message_stop out.
        ("messages", MESSAGE, 4),
        ("generate", OLLAMA, 2),
        ("generate_stream", TGI, 2),
        ("llama", LLAMA, 2),
    ],
)
def test_a_stream_of_another_api_is_whole_with_its_last_event(
    biz_type: str, parts: list[bytes], whole_from: int
) -> None:
    content_type = "application/x-ndjson" if biz_type == "generate" else "text/event-stream"
    for count in range(1, len(parts) + 1):
        # Ended as HTTP wants it, which relays do whatever happened.
        answered = outcome(written(chunked(*parts[:count], content_type=content_type)), biz_type=biz_type)
        if count >= whole_from:
            assert len(body_of(answered)) == count
        else:
            assert isinstance(answered, Failure), count
            assert (answered.reason, answered.of_backend) == (BAD, True)
            assert "broke off" in answered.error


def test_a_message_is_not_waited_for_after_its_end() -> None:
    answered = outcome(written(chunked(*MESSAGE, is_ended=False)), biz_type="messages")
    assert len(body_of(answered)) == len(MESSAGE)


def test_stop_in_each_chunk_ends_nothing_however_slowly_they_come() -> None:
    async def slowly(_: RawRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(chunked(is_ended=False))
        for content in "abc":
            writer.write(chunk(piece({"content": content}, "stop")))
            await writer.drain()
            await asyncio.sleep(0.15)  # more than the grace
        writer.write(chunk(DONE) + chunk(b""))

    assert body_of(outcome(slowly))["choices"][0]["message"]["content"] == "abc"


@pytest.mark.parametrize(
    ("number", "completes"),
    [(b"1e999", True), (b"9" * 5_000, True), (b"NaN", False), (b"01", False), (b'"\\q"', False)],
)
def test_what_is_passed_over_is_json_all_the_same(number: bytes, completes: bool) -> None:
    answered = outcome(written(response(CHAT_BODY[:-1] + b', "unknown": ' + number + b"}")))
    assert isinstance(answered, Answer) is completes


@pytest.mark.parametrize(
    "retry_after",
    [
        "9" * 400,
        "Wed, 21 Oct 99999999999999999999 07:28:00 GMT",
        "Wed, 21 Oct 2015 07:28:00 +99999999999",
        "Wed, 21 Oct 9999 07:28:00 GMT",
        ",",
        "",
    ],
)
def test_a_wish_for_another_time_is_bounded_whatever_it_says(retry_after: str) -> None:
    headers = {"retry-after": retry_after, "date": "Wed, 21 Oct 2015 07:28:00 GMT"}
    failure = outcome(written(response(b"", status=503, headers=headers)))
    assert isinstance(failure, Failure)
    assert failure.reason is UNAVAILABLE
    assert 0 <= (failure.retry_after_seconds or 0) <= 86_400


OTHERS = response(encoded({"choices": [{"message": {"content": "another's"}, "finish_reason": "stop"}]}))


@pytest.mark.parametrize(
    ("unasked", "at_once"),
    [
        (OTHERS, True),
        (OTHERS, False),
        (b"HTTP/1.0 408 Request Time-out\r\nconnection: close\r\n\r\n<html>", False),
        (b" rubbish", False),
    ],
    ids=["answer at once", "answer later", "408", "rubbish"],
)
def test_what_nobody_asked_for_answers_nobody(unasked: bytes, at_once: bool) -> None:
    """A balancer says 408 on a connection that it ends for being idle; an engine may answer twice."""
    told: list[int] = []

    async def scenario() -> tuple[list[Any], list[int]]:
        spoken = asyncio.Event()

        async def answer(request: RawRequest, writer: asyncio.StreamWriter) -> None:
            told.append(request.connection)
            writer.write(response(CHAT_BODY) + (unasked if at_once and len(told) == 1 else b""))
            if len(told) == 1 and not at_once:
                await writer.drain()
                await asyncio.sleep(0.05)
                writer.write(unasked)
            spoken.set()

        async with asking(answer) as (backend, _):
            first = await backend.run(make_work())
            await spoken.wait()
            await asyncio.sleep(0.05)
            second = await backend.run(make_work())
        return [body_of(first), body_of(second)], told

    bodies, connections = asyncio.run(scenario())
    assert bodies == [CHAT, CHAT]
    assert connections == [0, 1]
