"""Words for a server that cannot be reached or goes away, from errors as the client really raises them."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest
from aiohttp.client_reqrep import ConnectionKey

from forebay_worker.signals.connection_errors import connection_words, trouble_words

KEY = ConnectionKey("engine", 8000, True, True, None, None, None)


def met(handler: Callable[[Any, Any], Awaitable[None]], *, scheme: str = "http") -> Exception:
    """The error of a GET from a server with this handler."""

    async def ask() -> Exception:
        server = await asyncio.start_server(handler, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server, aiohttp.ClientSession() as session:
            try:
                await session.get(f"{scheme}://127.0.0.1:{port}/")
            except aiohttp.ClientError as error:
                return error
        raise AssertionError("it was answered")

    return asyncio.run(ask())


async def hang_up(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def speak_no_tls(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)
    writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    writer.close()


def test_a_port_that_nobody_listens_on_refuses() -> None:
    async def ask(port: int) -> None:
        async with aiohttp.ClientSession() as session:
            await session.get(f"http://127.0.0.1:{port}/")

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(aiohttp.ClientConnectorError) as raised:
            asyncio.run(ask(port))
    assert trouble_words(raised.value) == f"no connection to 127.0.0.1:{port}: connection refused"
    assert connection_words(raised.value) == "connection refused"


def test_a_server_that_hangs_up_and_one_without_tls_are_told_apart() -> None:
    assert "ssl" not in connection_words(met(hang_up))
    assert connection_words(met(hang_up)) in (
        "it closed the connection without an answer",
        "connection reset by peer",
    )
    words = trouble_words(met(speak_no_tls, scheme="https"))
    assert words.startswith("no connection to 127.0.0.1:")
    assert "TLS handshake failed (" in words


async def speak_http_2(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)
    writer.write(b"\0\0\x12\x04\0\0\0\0\0")
    writer.close()


def test_a_server_that_speaks_no_http_is_told_so() -> None:
    words = connection_words(met(speak_http_2))
    assert words.startswith("the answer is no HTTP: Bad status line")
    assert "400" not in words
    assert "\n" not in words


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            aiohttp.ClientConnectorDNSError(KEY, socket.gaierror(-2, "Name or service not known")),
            "no connection to engine:8000: the name does not resolve",
        ),
        (
            aiohttp.ClientConnectorError(KEY, OSError("Multiple exceptions: one, other")),
            "no connection to engine:8000: Multiple exceptions: one, other",
        ),
        (
            aiohttp.ClientConnectorCertificateError(KEY, ssl.SSLCertVerificationError("self-signed certificate")),
            "no connection to engine:8000: TLS: its certificate is not trusted (('self-signed certificate',))",
        ),
        (aiohttp.ClientOSError(104, "Connection reset by peer"), "connection reset by peer"),
        (aiohttp.ClientPayloadError("not complete"), "ClientPayloadError: not complete"),
    ],
)
def test_no_word_of_the_client_library_s_is_left(error: Exception, words: str) -> None:
    assert trouble_words(error) == words
