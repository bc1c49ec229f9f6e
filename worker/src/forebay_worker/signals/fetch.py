"""One bounded HTTP GET for a signal: short, small, and every failure a `SignalError`. On the event loop."""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

import aiohttp
from yarl import URL

from forebay_worker.signals.connection_errors import connection_words
from forebay_worker.signals.readings import SignalError

PERIOD_SECONDS: Final = 1.0
"""Between two readings of a source."""
TIMEOUT_SECONDS: Final = 0.8
BODY_BYTES_MAX: Final = 4 * 1024 * 1024
"""A page of vLLM's with a dozen adapters takes some 300 kB."""

_CHUNK_BYTES: Final = 64 * 1024


def _phrase(status: int) -> str:
    """The status's name; empty for one without."""
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """``date``: the header with the server's time."""

    body: bytes
    date: str | None


async def fetch(session: aiohttp.ClientSession, url: URL) -> Reply:
    """The answer to a GET that has status 200. Raises ``SignalError``."""
    # Neither a password nor a long query may appear in a log.
    shown = url.with_user(None).with_query(None)
    try:
        async with session.get(url, timeout=aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)) as response:
            body = bytearray()
            async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
                body += chunk
                if len(body) > BODY_BYTES_MAX:
                    raise SignalError(f"{shown}: the answer is larger than {BODY_BYTES_MAX} bytes")
            if response.status != 200:
                # Without any of the body: the log and /status show this.
                raise SignalError(f"{shown}: HTTP {response.status} {_phrase(response.status)}".rstrip())
            return Reply(body=bytes(body), date=response.headers.get("date"))
    except TimeoutError:
        raise SignalError(f"{shown}: no answer within {TIMEOUT_SECONDS:g} s") from None
    except (aiohttp.ClientError, aiohttp.http_exceptions.HttpProcessingError, OSError, ValueError) as error:
        raise SignalError(f"{shown}: {connection_words(error)}") from None
