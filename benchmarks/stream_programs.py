"""Programs beside the worker that streams, each a process: an engine, and an HTTP client that discards what it reads.

Talk HTTP on 127.0.0.1; run until terminated."""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Sequence
from typing import Final

import aiohttp

STEP_SECONDS: Final = 0.02
"""Of the engine: each stream gets a token a step, 50 a second."""

_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n"
    b"x-request-id: 00000000-0000-0000-0000-000000000000\r\n\r\n"
)


def _chunk(delta: dict[str, str], finish_reason: str | None = None) -> bytes:
    """As vLLM writes it."""
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
    value = {
        "id": "chatcmpl-00000000-0000-0000-0000-000000000000",
        "object": "chat.completion.chunk",
        "created": 1_735_689_600,
        "model": "qwen2.5-72b",
        "choices": [choice],
    }
    return _framed(b"data: %b\n\n" % json.dumps(value, separators=(",", ":")).encode())


def _framed(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


_ROLE: Final = _chunk({"role": "assistant", "content": ""})
_TOKEN: Final = _chunk({"content": " token"})
_LAST: Final = _chunk({}, "stop") + _framed(b"data: [DONE]\n\n") + b"0\r\n\r\n"


class _Connection(asyncio.Protocol):
    """Answers a chat with as many tokens as its max_tokens says, and GET /active with the number of open streams."""

    open: Final[set[_Connection]] = set()

    def __init__(self) -> None:
        self._data = b""
        self._left = 0
        self._is_first = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's
        self.open.discard(self)

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, end, body = self._data.partition(b"\r\n\r\n")
        if not end:
            return
        if head.startswith(b"GET"):
            self._data = b""
            count = b"%d" % len(self.open)
            self._transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(count), count))
            return
        length = next(
            int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")
        )
        if len(body) < length:
            return
        self._data = b""
        self._left = json.loads(body)["max_tokens"]
        self._is_first = True
        self._transport.write(_HEAD + _ROLE)
        self.open.add(self)

    def step(self) -> None:
        """One token."""
        token = _TOKEN
        if self._is_first:
            # When it was sent, on the clock that all processes share.
            self._is_first, token = False, _chunk({"content": str(time.monotonic_ns())})
        self._left -= 1
        if self._left <= 0:
            self.open.discard(self)
            token += _LAST
        self._transport.write(token)


async def serve(port: int) -> None:
    """The engine."""
    loop = asyncio.get_running_loop()
    await loop.create_server(_Connection, "127.0.0.1", port, backlog=1024)
    next_at = loop.time()
    while True:
        for connection in list(_Connection.open):
            connection.step()
        next_at += STEP_SECONDS
        await asyncio.sleep(max(0.0, next_at - loop.time()))


async def read_away(url: str, *, streams: int, tokens: int) -> None:
    """The client: as the worker's, with the same library and options, and nothing done with what comes."""
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=600.0)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, cookie_jar=aiohttp.DummyCookieJar()) as one:

        async def read() -> None:
            body = json.dumps({"stream": True, "max_tokens": tokens}).encode()
            async with one.post(f"{url}/v1/chat/completions", data=body) as response:
                while await response.content.readany():
                    pass

        await asyncio.gather(*(read() for _ in range(streams)))
    await asyncio.Event().wait()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stream_programs", description=__doc__)
    parser.add_argument("role", choices=("engine", "reader"))
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--url", default="")
    parser.add_argument("--streams", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=1)
    given = parser.parse_args(arguments)
    if given.role == "engine":
        asyncio.run(serve(given.port))
    else:
        asyncio.run(read_away(given.url, streams=given.streams, tokens=given.tokens))


if __name__ == "__main__":
    main()
