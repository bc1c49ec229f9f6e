"""A Schema Registry made of a table, for tests: Confluent's two calls that a reader makes. A thread serves it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from harness.background import running_server

_TYPE = "application/vnd.schemaregistry.v1+json"


@contextmanager
def fake_registry(
    *, by_id: Mapping[int, dict[str, Any]], by_version: Mapping[tuple[str, int], dict[str, Any]] | None = None
) -> Iterator[str]:
    """Its URL. The answers are the registry's own: ``{"schema": text, "references": [...]}``."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found, code = _look_up(self.path.partition("?")[0], by_id, by_version or {})
            body = json.dumps(found or {"error_code": code, "message": "not here"}).encode()
            self.send_response(200 if found else 404)
            self.send_header("content-type", _TYPE)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            """Says nothing."""

    with running_server(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as url:
        yield url


def _look_up(
    path: str, by_id: Mapping[int, dict[str, Any]], by_version: Mapping[tuple[str, int], dict[str, Any]]
) -> tuple[dict[str, Any] | None, int]:
    match path.strip("/").split("/"):
        case ["schemas", "ids", number]:
            return by_id.get(int(number)), 40403
        case ["subjects", subject, "versions", version]:
            found = by_version.get((subject, int(version)))
            more = {"subject": subject, "version": int(version), "id": 1_000 + int(version)}
            return (None if found is None else found | more), 40402
    return None, 404
