"""A backend that gives the answer its request asks for: {"answer": ...} in the payload. For answers that no engine in
its right mind gives. A thread for each connection, in this process."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType
from typing import Any

from harness.background import running_server


def answer(
    body: bytes,
    *,
    status: int = 200,
    content_type: str = "application/json",
    headers: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """The payload that asks for this answer."""
    wish = {"status": status, "headers": {"content-type": content_type, **headers}}
    return {"answer": wish | {"body": base64.b64encode(body).decode()}}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        wish = json.loads(self.rfile.read(int(self.headers["content-length"])))["answer"]
        body = base64.b64decode(wish["body"])
        self.send_response(wish["status"])
        for name, value in wish["headers"].items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Says nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False


@contextmanager
def obedient_backend() -> Iterator[str]:
    """Its URL, without /v1."""
    with running_server(_Server(("127.0.0.1", 0), _Handler)) as url:
        yield url
