"""Fetches a running worker's /status. One HTTP request; blocks."""

from __future__ import annotations

import http.client
from typing import Any
from urllib.parse import urlsplit

import msgspec

from forebay_schemas.errors import ForebayError, UsageError

TIMEOUT_SECONDS = 5.0


class WorkerUnreachableError(ForebayError):
    """No worker answered, or the answer is not a worker's."""

    reason = "worker_unreachable"


def fetch_status(url: str) -> tuple[bytes, dict[str, Any]]:
    """The document, as bytes and decoded. ``url``: the operations port, such as http://127.0.0.1:8081, with or without
    /status.

    Raises ``UsageError`` for an invalid URL, ``WorkerUnreachableError`` if no worker answers there.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
        parts = urlsplit("")
    if parts.scheme != "http" or not host:
        raise UsageError("--url", f"{url!r} is no http URL", fix="give the operations port, http://127.0.0.1:8081 say")
    connection = http.client.HTTPConnection(host, port or 80, timeout=TIMEOUT_SECONDS)
    try:
        connection.request("GET", parts.path.rstrip("/").removesuffix("/status") + "/status")
        response = connection.getresponse()
        status, body = response.status, response.read()
    except (OSError, http.client.HTTPException) as error:
        raise WorkerUnreachableError(
            f"no worker answers at {url} ({str(error) or type(error).__name__}); is FOREBAY_OPS_PORT another port?"
        ) from None
    finally:
        connection.close()
    document = _decoded(body) if status == 200 else None
    if document is None:
        raise WorkerUnreachableError(f"what answers at {url} is no worker: HTTP {status} to /status")
    return body, document


def _decoded(body: bytes) -> dict[str, Any] | None:
    try:
        document = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return None
    return document if isinstance(document, dict) and "limited_by" in document and "pacing" in document else None
