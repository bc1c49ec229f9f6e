"""A backend that lets in who has its key, which can be changed while it runs. A thread for each connection, in this
process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from harness.background import running_server

_ANSWER = {
    "object": "chat.completion",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "in"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1},
}


class LockedBackend(ThreadingHTTPServer):
    """``key``: the one that it takes now. ``refused``: how many requests came with another one."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, key: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.key = key
        self.refused = 0

    @property
    def url(self) -> str:
        """Its URL, without /v1."""
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: LockedBackend

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        if self.headers["authorization"] == f"Bearer {self.server.key}":
            self._answer(200, _ANSWER)
        else:
            self.server.refused += 1
            self._answer(401, {"error": {"message": "Incorrect API key provided"}})

    def _answer(self, status: int, document: dict[str, Any]) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Says nothing."""


@contextmanager
def locked_backend(key: str) -> Iterator[LockedBackend]:
    """A backend that takes this key."""
    server = LockedBackend(key)
    with running_server(server):
        yield server
