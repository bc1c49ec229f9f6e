"""Forms of answers that engines, gateways and strangers send, and the outcome of each over real HTTP."""

from __future__ import annotations

import asyncio
import zlib
from typing import Any

import msgspec

from forebay_schemas.contract.reasons import Reason
from forebay_worker.request.work import Answer, Failure
from harness.http_backends import asking, outcome_of
from harness.raw_engine import AnswerRaw

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
