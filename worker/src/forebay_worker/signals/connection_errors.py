"""Messages for failed connections: aiohttp's own texts name its classes and arguments. Pure."""

from __future__ import annotations

import os
import ssl

import aiohttp

_SAID_CHARS_MAX = 200


def connection_words(error: Exception) -> str:
    """Without the server's address: `connection refused`."""
    match error:
        case aiohttp.ClientConnectorCertificateError():
            return f"TLS: its certificate is not trusted ({error.certificate_error})"
        case aiohttp.ClientConnectorDNSError():
            return "the name does not resolve"
        case aiohttp.ClientConnectorError():
            return _os_words(error.os_error)
        case aiohttp.ServerDisconnectedError():
            return "it closed the connection without an answer"
        case aiohttp.ClientOSError():
            return _os_words(error)
        case aiohttp.ClientResponseError():
            # Another protocol, or broken headers. aiohttp calls each of them 400, a status that no server sent.
            return f"the answer is no HTTP: {' '.join(error.message.split())[:_SAID_CHARS_MAX]}"
    return f"{type(error).__name__}: {error}"


def trouble_words(error: Exception) -> str:
    """With the address if it could not be reached: `no connection to 127.0.0.1:8000: connection refused`."""
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"no connection to {error.host}:{error.port}: {connection_words(error)}"
    return connection_words(error)


def _os_words(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        # Its number is OpenSSL's.
        return f"TLS handshake failed ({error.reason or error})"
    if error.errno is None:
        return str(error)
    return os.strerror(error.errno).lower()
