"""Strange forms of answers that are none, over real HTTP, and what is right for each."""

from __future__ import annotations

from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class Form:
    """An answer that is none, and the failure it makes. ``words``: part of the failure's error."""

    answer: bytes
    reason: Reason
    words: str
    status: int | None = None
    of_backend: bool = False
    biz_type: str = "chat_completion"


FAILED = {
    # What is no HTTP, or packed in a way that was not asked for: as a connection that broke off
    "plain, and said to be gzip": Form(
        response(CHAT_BODY, headers={"content-encoding": "gzip"}),
        BAD,
        "not in its content-encoding: gzip",
        of_backend=True,
    ),
    "Brotli": Form(response(b"\x0b\x02", headers={"content-encoding": "br"}), BAD, "(br)", of_backend=True),
    "gzip in Brotli": Form(
        response(b"\x0b\x02", headers={"content-encoding": "gzip, br"}), BAD, "content-encoding: gzip, br"
    ),
    "an error that is not as packed as it says": Form(
        response(b"too long", status=400, headers={"content-encoding": "gzip"}), REJECTED, "HTTP 400", status=400
    ),
    "HTTP/2": Form(b"\0\0\x12\x04\0\0\0\0\0\0\x03\0\0\0\x64", BAD, "no HTTP", of_backend=True),
    "TLS": Form(b"\x15\x03\x01\0\x02\x02\x46", BAD, "no HTTP", of_backend=True),
    "SSH": Form(b"SSH-2.0-OpenSSH_9\r\n", BAD, "no HTTP", of_backend=True),
    "two lengths": Form(
        raw(b"content-length: 5", b"content-length: 9"), BAD, "no HTTP: Duplicate Content-Length", of_backend=True
    ),
    "a length and chunks": Form(
        raw(b"content-length: 5", b"transfer-encoding: chunked"), BAD, "no HTTP", of_backend=True
    ),
    "a chunk without a size": Form(raw(b"transfer-encoding: chunked"), BAD, "no HTTP", of_backend=True),
    "status 1000": Form(raw(status=b"HTTP/1.1 1000 X"), BAD, "no HTTP", of_backend=True),
    "a header of 1 MB": Form(raw(b"x: " + b"a" * 1_000_000), BAD, "no HTTP", of_backend=True),
    "headers without end": Form(raw(*[b"x: y"] * 10_000), BAD, "Too many headers", of_backend=True),
    "another protocol": Form(
        raw(b"upgrade: websocket", b"connection: upgrade", status=b"HTTP/1.1 101 Switching Protocols"),
        BAD,
        "HTTP 101",
        status=101,
    ),
    # Bytes
    "UTF-16": Form(response(CHAT_BODY.decode().encode("utf-16")), BAD, "no JSON"),
    "JSON in a text": Form(response(encoded(CHAT_BODY.decode())), BAD, "no object"),
    "a number beyond all in usage": Form(
        response(CHAT_BODY[:-1] + b', "usage": {"prompt_tokens": 1e999}}'), BAD, "no JSON"
    ),
    # Errors in dialects
    "Anthropic's overload": Form(
        chunked(*MESSAGE[:2], event({"type": "error", "error": {"type": "overloaded_error"}}, name="error")),
        UNAVAILABLE,
        "overloaded_error",
        status=529,
        of_backend=True,
        biz_type="messages",
    ),
    "Anthropic's rate": Form(
        response(encoded({"type": "error", "error": {"type": "rate_limit_error", "message": "slow"}})),
        OVERLOADED,
        "slow",
        status=429,
        of_backend=True,
    ),
    "OpenAI's quota": Form(
        response(encoded({"error": {"type": "insufficient_quota", "code": "insufficient_quota", "message": "pay"}})),
        OVERLOADED,
        "pay",
        status=429,
        of_backend=True,
    ),
    "OpenAI's key": Form(
        response(encoded({"error": {"type": "invalid_request_error", "code": "invalid_api_key", "message": "who?"}})),
        REJECTED,
        "who?",
        status=401,
    ),
    "problem details": Form(
        response(encoded({"type": "about:blank", "title": "Too Many Requests", "status": 429})),
        OVERLOADED,
        "Too Many Requests",
        status=429,
        of_backend=True,
    ),
    "Azure's gateway": Form(
        response(encoded({"statusCode": 429, "message": "Try again in 9 seconds."})),
        OVERLOADED,
        "Try again",
        status=429,
        of_backend=True,
    ),
    "an embedding server's": Form(
        response(encoded({"message": "Model is overloaded", "code": 429, "type": "Overloaded"})),
        OVERLOADED,
        "Model is overloaded",
        status=429,
        of_backend=True,
        biz_type="embedding",
    ),
    "MiniMax": Form(
        chunked(event({"choices": None, "base_resp": {"status_code": 1008, "status_msg": "insufficient balance"}})),
        BAD,
        "insufficient balance",
    ),
    "DashScope": Form(
        chunked(b'id:1\nevent:error\n:HTTP_STATUS/400\ndata:{"code":"InvalidParameter","message":"bad n"}\n\n'),
        BAD,
        "bad n",
    ),
    "Groq, stopped early": Form(
        chunked(
            A,
            event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "x_groq": {"error": "capacity"}}),
            DONE,
        ),
        BAD,
        "capacity",
    ),
    "Google's, last of an array": Form(
        response(encoded([{"candidates": []}, RPC_ERROR])),
        UNAVAILABLE,
        "no capacity",
        status=503,
        of_backend=True,
        biz_type="gemini",
    ),
    "Google's, a word for a code": Form(
        response(encoded({"error": {"status": "RESOURCE_EXHAUSTED", "message": "m"}})),
        OVERLOADED,
        "m",
        status=429,
        of_backend=True,
    ),
    "Cloudflare's": Form(
        response(encoded({"result": None, "success": False, "errors": [{"code": 7009, "message": "upstream"}]})),
        BAD,
        "upstream",
        biz_type="generate",
    ),
    # Answers that are none
    "an embedding of NaN": Form(
        response(encoded({"data": [{"embedding": [0.1]}, {"embedding": [None, None]}]})),
        BAD,
        "null for a number",
        biz_type="embedding",
    ),
    "a line that is not the last": Form(response(OLLAMA[0]), BAD, "done: false", of_backend=True, biz_type="generate"),
    "a message that its deltas are not": Form(
        chunked(A, B, said("stop", "another"), DONE), BAD, "not what its deltas amount to"
    ),
    "a message that begins anew": Form(chunked(said(None, "ab"), said("stop", "cd"), DONE), BAD, "does not go on"),
    "words of a proxy within a stream": Form(
        chunked(A, b"data: upstream connect error or disconnect/reset before headers\n\n"),
        BAD,
        "upstream connect error",
    ),
}


@pytest.mark.parametrize("form", FAILED.values(), ids=FAILED)
def test_a_form_that_is_none(form: Form) -> None:
    failure = outcome(written(form.answer, then_close=True), biz_type=form.biz_type)
    assert isinstance(failure, Failure), failure
    assert (failure.reason, failure.http_status, failure.of_backend) == (form.reason, form.status, form.of_backend)
    assert failure.may_retry is (form.reason is not REJECTED)
    assert form.words in failure.error
    failure.error.encode()  # it goes into a record
