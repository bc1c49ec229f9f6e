"""Forms of answers that engines, gateways and strangers send, over real HTTP, and what is right for each."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from typing import Any

import msgspec
import pytest

from forebay_schemas.contract.reasons import Reason
from forebay_worker.request.work import Answer, Failure
from harness.http_backends import asking, outcome_of
from harness.raw_engine import AnswerRaw, RawRequest, chunk, chunked, response, written
from simulated.works import make_work

BAD, ERROR, UNAVAILABLE = Reason.BACKEND_BAD_RESPONSE, Reason.BACKEND_ERROR, Reason.BACKEND_UNAVAILABLE
REJECTED, OVERLOADED = Reason.BACKEND_REJECTED, Reason.BACKEND_OVERLOADED
# Paths of APIs that are not OpenAI's.
NATIVE = {
    "messages": "/v1/messages",
    "generate": "/api/generate",
    "generate_stream": "/generate_stream",
    "llama": "/completion",
    "gemini": "/v1beta/models/m:streamGenerateContent",
}


def encoded(value: Any) -> bytes:
    return value if isinstance(value, bytes) else msgspec.json.encode(value)


def event(value: Any, *, name: str = "") -> bytes:
    return (f"event: {name}\n" if name else "").encode() + b"data: " + encoded(value) + b"\n\n"


def piece(delta: Any = None, finish_reason: str | None = None, **beside: Any) -> bytes:
    choice = {"index": 0, "delta": delta or {}, "finish_reason": finish_reason, **beside}
    return event({"id": "c", "object": "chat.completion.chunk", "created": 7, "model": "m", "choices": [choice]})


def said(finish_reason: str | None, message: str, delta: str | None = None) -> bytes:
    """A chunk that says the message so far, beside its delta or without."""
    whole: dict[str, Any] = {"index": 0, "finish_reason": finish_reason, "message": {"content": message}}
    if delta is not None:
        whole["delta"] = {"content": delta}
    return event({"id": "c", "created": 7, "choices": [whole]})


A, B, STOP, DONE = piece({"content": "a"}), piece({"content": "b"}), piece({}, "stop"), event(b"[DONE]")
CHAT: dict[str, Any] = {"choices": [{"index": 0, "message": {"content": "ab"}, "finish_reason": "stop"}]}
CHAT_BODY = encoded(CHAT)
AZURE_NOTE = {
    "id": "",
    "object": "",
    "created": 0,
    "model": "",
    "choices": [
        {"index": 0, "finish_reason": None, "content_filter_results": {}, "content_filter_offsets": {"end": 9}}
    ],
}
MESSAGE = [
    event({"type": "message_start", "message": {"id": "m"}}, name="message_start"),
    event({"type": "ping"}, name="ping"),
    event({"type": "content_block_delta", "delta": {"text": "a"}}, name="content_block_delta"),
    event({"type": "message_delta", "delta": {"stop_reason": "end_turn"}}, name="message_delta"),
    event({"type": "message_stop"}, name="message_stop"),
]
OLLAMA = [encoded({"response": "a", "done": False}) + b"\n", encoded({"response": "", "done": True}) + b"\n"]
TGI = [event({"token": {"text": "a"}, "generated_text": None}), event({"token": {}, "generated_text": "a"})]
LLAMA = [event({"content": "a", "stop": False}), event({"content": "", "stop": True})]
RPC_ERROR = {"error": {"code": 503, "message": "no capacity", "status": "UNAVAILABLE"}}


def packed_pieces(*pieces: bytes) -> list[bytes]:
    packer = zlib.compressobj(wbits=31)
    return [packer.compress(each) + packer.flush(zlib.Z_SYNC_FLUSH) for each in pieces]


def raw(*headers: bytes, body: bytes = CHAT_BODY, status: bytes = b"HTTP/1.1 200 OK") -> bytes:
    return b"\r\n".join([status, *headers, b"", b""]) + body


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


def outcome(answer: AnswerRaw, *, biz_type: str = "chat_completion") -> Answer | Failure:
    async def scenario() -> Answer | Failure:
        options = {"grace_seconds": 0.1}
        async with asking(answer, options=options, biz_paths=NATIVE, backend_timeout_seconds=5) as (backend, _):
            return await outcome_of(backend, biz_type=biz_type)

    return asyncio.run(scenario())


def body_of(answered: Answer | Failure) -> Any:
    assert isinstance(answered, Answer), answered
    return msgspec.json.decode(answered.body)


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


FAILED: dict[str, tuple[str, bytes, Reason, int | None, bool, str]] = {
    # What is no HTTP, or packed in a way that was not asked for: as a connection that broke off
    "plain, and said to be gzip": (
        "chat_completion",
        response(CHAT_BODY, headers={"content-encoding": "gzip"}),
        BAD,
        None,
        True,
        "not in its content-encoding: gzip",
    ),
    "Brotli": ("chat_completion", response(b"\x0b\x02", headers={"content-encoding": "br"}), BAD, None, True, "(br)"),
    "gzip in Brotli": (
        "chat_completion",
        response(b"\x0b\x02", headers={"content-encoding": "gzip, br"}),
        BAD,
        None,
        False,
        "content-encoding: gzip, br",
    ),
    "an error that is not as packed as it says": (
        "chat_completion",
        response(b"too long", status=400, headers={"content-encoding": "gzip"}),
        REJECTED,
        400,
        False,
        "HTTP 400",
    ),
    "HTTP/2": ("chat_completion", b"\0\0\x12\x04\0\0\0\0\0\0\x03\0\0\0\x64", BAD, None, True, "no HTTP"),
    "TLS": ("chat_completion", b"\x15\x03\x01\0\x02\x02\x46", BAD, None, True, "no HTTP"),
    "SSH": ("chat_completion", b"SSH-2.0-OpenSSH_9\r\n", BAD, None, True, "no HTTP"),
    "two lengths": (
        "chat_completion",
        raw(b"content-length: 5", b"content-length: 9"),
        BAD,
        None,
        True,
        "no HTTP: Duplicate Content-Length",
    ),
    "a length and chunks": (
        "chat_completion",
        raw(b"content-length: 5", b"transfer-encoding: chunked"),
        BAD,
        None,
        True,
        "no HTTP",
    ),
    "a chunk without a size": ("chat_completion", raw(b"transfer-encoding: chunked"), BAD, None, True, "no HTTP"),
    "status 1000": ("chat_completion", raw(status=b"HTTP/1.1 1000 X"), BAD, None, True, "no HTTP"),
    "a header of 1 MB": ("chat_completion", raw(b"x: " + b"a" * 1_000_000), BAD, None, True, "no HTTP"),
    "headers without end": ("chat_completion", raw(*[b"x: y"] * 10_000), BAD, None, True, "Too many headers"),
    "another protocol": (
        "chat_completion",
        raw(b"upgrade: websocket", b"connection: upgrade", status=b"HTTP/1.1 101 Switching Protocols"),
        BAD,
        101,
        False,
        "HTTP 101",
    ),
    # Bytes
    "UTF-16": ("chat_completion", response(CHAT_BODY.decode().encode("utf-16")), BAD, None, False, "no JSON"),
    "JSON in a text": ("chat_completion", response(encoded(CHAT_BODY.decode())), BAD, None, False, "no object"),
    "a number beyond all in usage": (
        "chat_completion",
        response(CHAT_BODY[:-1] + b', "usage": {"prompt_tokens": 1e999}}'),
        BAD,
        None,
        False,
        "no JSON",
    ),
    # Errors in dialects
    "Anthropic's overload": (
        "messages",
        chunked(*MESSAGE[:2], event({"type": "error", "error": {"type": "overloaded_error"}}, name="error")),
        UNAVAILABLE,
        529,
        True,
        "overloaded_error",
    ),
    "Anthropic's rate": (
        "chat_completion",
        response(encoded({"type": "error", "error": {"type": "rate_limit_error", "message": "slow"}})),
        OVERLOADED,
        429,
        True,
        "slow",
    ),
    "OpenAI's quota": (
        "chat_completion",
        response(encoded({"error": {"type": "insufficient_quota", "code": "insufficient_quota", "message": "pay"}})),
        OVERLOADED,
        429,
        True,
        "pay",
    ),
    "OpenAI's key": (
        "chat_completion",
        response(encoded({"error": {"type": "invalid_request_error", "code": "invalid_api_key", "message": "who?"}})),
        REJECTED,
        401,
        False,
        "who?",
    ),
    "problem details": (
        "chat_completion",
        response(encoded({"type": "about:blank", "title": "Too Many Requests", "status": 429})),
        OVERLOADED,
        429,
        True,
        "Too Many Requests",
    ),
    "Azure's gateway": (
        "chat_completion",
        response(encoded({"statusCode": 429, "message": "Try again in 9 seconds."})),
        OVERLOADED,
        429,
        True,
        "Try again",
    ),
    "an embedding server's": (
        "embedding",
        response(encoded({"message": "Model is overloaded", "code": 429, "type": "Overloaded"})),
        OVERLOADED,
        429,
        True,
        "Model is overloaded",
    ),
    "MiniMax": (
        "chat_completion",
        chunked(event({"choices": None, "base_resp": {"status_code": 1008, "status_msg": "insufficient balance"}})),
        BAD,
        None,
        False,
        "insufficient balance",
    ),
    "DashScope": (
        "chat_completion",
        chunked(b'id:1\nevent:error\n:HTTP_STATUS/400\ndata:{"code":"InvalidParameter","message":"bad n"}\n\n'),
        BAD,
        None,
        False,
        "bad n",
    ),
    "Groq, stopped early": (
        "chat_completion",
        chunked(
            A,
            event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "x_groq": {"error": "capacity"}}),
            DONE,
        ),
        BAD,
        None,
        False,
        "capacity",
    ),
    "Google's, last of an array": (
        "gemini",
        response(encoded([{"candidates": []}, RPC_ERROR])),
        UNAVAILABLE,
        503,
        True,
        "no capacity",
    ),
    "Google's, a word for a code": (
        "chat_completion",
        response(encoded({"error": {"status": "RESOURCE_EXHAUSTED", "message": "m"}})),
        OVERLOADED,
        429,
        True,
        "m",
    ),
    "Cloudflare's": (
        "generate",
        response(encoded({"result": None, "success": False, "errors": [{"code": 7009, "message": "upstream"}]})),
        BAD,
        None,
        False,
        "upstream",
    ),
    # Answers that are none
    "an embedding of NaN": (
        "embedding",
        response(encoded({"data": [{"embedding": [0.1]}, {"embedding": [None, None]}]})),
        BAD,
        None,
        False,
        "null for a number",
    ),
    "a line that is not the last": (
        "generate",
        response(OLLAMA[0]),
        BAD,
        None,
        True,
        "done: false",
    ),
    "a message that its deltas are not": (
        "chat_completion",
        chunked(A, B, said("stop", "another"), DONE),
        BAD,
        None,
        False,
        "not what its deltas amount to",
    ),
    "a message that begins anew": (
        "chat_completion",
        chunked(said(None, "ab"), said("stop", "cd"), DONE),
        BAD,
        None,
        False,
        "does not go on",
    ),
    "words of a proxy within a stream": (
        "chat_completion",
        chunked(A, b"data: upstream connect error or disconnect/reset before headers\n\n"),
        BAD,
        None,
        False,
        "upstream connect error",
    ),
}


@pytest.mark.parametrize(("biz_type", "answer", "reason", "status", "of_backend", "words"), FAILED.values(), ids=FAILED)
def test_a_form_that_is_none(
    biz_type: str, answer: bytes, reason: Reason, status: int | None, of_backend: bool, words: str
) -> None:
    failure = outcome(written(answer, then_close=True), biz_type=biz_type)
    assert isinstance(failure, Failure), failure
    assert (failure.reason, failure.http_status, failure.of_backend) == (reason, status, of_backend)
    assert failure.may_retry is (reason is not REJECTED)
    assert words in failure.error
    failure.error.encode()  # it goes into a record


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
