"""Strange forms of answers that are none, over real HTTP, and what is right for each."""

from __future__ import annotations

import pytest

from forebay_schemas.contract.reasons import Reason
from forebay_worker.request.work import Failure
from harness.raw_engine import chunked, response, written
from harness.strange_answers import (
    BAD,
    CHAT_BODY,
    DONE,
    MESSAGE,
    OLLAMA,
    OVERLOADED,
    REJECTED,
    RPC_ERROR,
    UNAVAILABLE,
    A,
    B,
    encoded,
    event,
    outcome,
    raw,
    said,
)

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
