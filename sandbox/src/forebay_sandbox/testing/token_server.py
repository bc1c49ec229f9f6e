"""A small identity provider: a token endpoint (client credentials) and its JWKS, over HTTP on 127.0.0.1. One thread."""

from __future__ import annotations

import base64
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Self

from joserfc import jwt
from joserfc.jwk import RSAKey

from forebay_sandbox.kafka.spec import HOST

if TYPE_CHECKING:
    from collections.abc import Mapping

AUDIENCE = "kafka"


class TokenServer:
    """Gives a token to whoever knows its secret; the token's ``sub`` is the client's id. A context manager.

    ``clients``: secrets by client id, and may be changed at any time. ``token_seconds``: how long a token is good.
    ``issued``: the client ids that got one, in order.
    """

    def __init__(self, clients: Mapping[str, str], *, token_seconds: float = 300) -> None:
        self.clients = dict(clients)
        self.token_seconds = token_seconds
        self.issued: list[str] = []
        self._key = RSAKey.generate_key(2048, {"kid": "sandbox", "use": "sig"})
        self._server = ThreadingHTTPServer((HOST, 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, name="token-server", daemon=True)

    @property
    def issuer(self) -> str:
        """Its address, which its tokens name as their issuer."""
        return f"http://{HOST}:{self._server.server_port}"

    @property
    def token_url(self) -> str:
        """Where clients get tokens."""
        return f"{self.issuer}/token"

    @property
    def keys_url(self) -> str:
        """Where brokers get the keys that tokens are checked with."""
        return f"{self.issuer}/jwks"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def token(self, client: str) -> str:
        """A signed token for ``client``."""
        now = int(time.time())
        claims = {
            "iss": self.issuer,
            "aud": AUDIENCE,
            "sub": client,
            "scope": AUDIENCE,
            "iat": now,
            "exp": now + int(self.token_seconds),
        }
        self.issued.append(client)
        return jwt.encode({"alg": "RS256", "kid": "sandbox"}, claims, self._key)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(200, {"keys": [server._key.as_dict(private=False, alg="RS256")]})

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                client = server._client_of(self.headers.get("Authorization", ""))
                if client is None:
                    self._answer(401, {"error": "invalid_client", "error_description": "unknown client or secret"})
                    return
                self._answer(
                    200,
                    {
                        "access_token": server.token(client),
                        "token_type": "Bearer",
                        "expires_in": int(server.token_seconds),
                    },
                )

            def log_message(self, *_: object) -> None:
                """Not logged: stderr belongs to the test."""

            def _answer(self, status: int, document: object) -> None:
                body = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        return Handler

    def _client_of(self, authorization: str) -> str | None:
        kind, _, encoded = authorization.partition(" ")
        if kind.lower() != "basic":
            return None
        try:
            client, _, secret = base64.b64decode(encoded).decode().partition(":")
        except ValueError:
            return None
        return client if secret and self.clients.get(client) == secret else None
