"""Connection errors of all clients of one connection, and rotated credentials for them. Clients call it from the
threads that poll them.

Credentials from a file are reread every two seconds by a thread, while there are clients.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Final

from confluent_kafka import KafkaError

from forebay_schemas.clock import Clock, SystemClock
from forebay_schemas.errors import UsageError
from forebay_schemas.kafka.token_provider import TokenSource

LOOK_SECONDS: Final = 2.0
FRESH_SECONDS: Final = 15.0
"""How long a failure is remembered: a failed token is requested again after ten seconds."""

NOT_ACQUIRED: Final = "Failed to acquire SASL OAUTHBEARER token"
"""The prefix of librdkafka's message."""

_CREDENTIALS: Final = ("sasl.username", "sasl.password")

_log = logging.getLogger("forebay.kafka")


class ConnectionWatch:
    """The ``error_cb`` of every client. Thread-safe; calling it never raises."""

    def __init__(
        self,
        *,
        reread: Callable[[], Mapping[str, str]] | None = None,
        tokens: TokenSource | None = None,
        clock: Clock | None = None,
    ) -> None:
        """``reread`` rereads the properties; raises ``UsageError`` while they cannot be read. ``tokens``: the source of
        tokens, if from a function."""
        self._reread = reread
        self._tokens = tokens
        self._clock = clock or SystemClock()
        self._failure: tuple[float, KafkaError] | None = None
        self._clients: weakref.WeakSet[Any] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._credentials: tuple[str, str] | None = None
        self._is_looking = False
        self.rotations = 0

    def __call__(self, error: KafkaError) -> None:
        """Called for a client's error: failures of credentials and TLS are remembered for a while."""
        if error.code() in (KafkaError._AUTHENTICATION, KafkaError._SSL):
            self._failure = (self._clock.monotonic(), error)

    @property
    def failure(self) -> KafkaError | None:
        """The last failure of credentials or TLS, if recent."""
        failure = self._failure
        if failure is None or self._clock.monotonic() - failure[0] > FRESH_SECONDS:
            return None
        return failure[1]

    @property
    def authentication_failure(self) -> str | None:
        """How the brokers lately refused the credentials, or why there were none."""
        failure = self.failure
        if failure is None or failure.code() != KafkaError._AUTHENTICATION:
            return None
        if self._tokens is not None and self._tokens.problem is not None:
            return f"{NOT_ACQUIRED}: {self._tokens.problem}"
        return failure.str()

    def renewed(self, properties: Mapping[str, Any]) -> dict[str, Any]:
        """The same properties with the present credentials from the file, which are then given to all clients: old ones
        may be refused as soon as the new client connects."""
        if self._credentials is None or not all(properties.get(name) for name in _CREDENTIALS):
            return dict(properties)
        self.look()
        with self._lock:
            credentials = self._credentials
        return {**properties, **dict(zip(_CREDENTIALS, credentials, strict=True))}

    def add(self, client: Any, properties: Mapping[str, Any]) -> None:
        """Puts new credentials into the client's ``new_credentials``; the client takes them when polled."""
        username, password = (properties.get(name) for name in _CREDENTIALS)
        if self._reread is None or not username or not password:
            return
        with self._lock:
            if self._credentials is None:
                self._credentials = (username, password)
            elif self._credentials != (username, password):
                client.new_credentials = self._credentials
            self._clients.add(client)
            if not self._is_looking:
                self._is_looking = True
                threading.Thread(target=self._look_again, name="kafka-credentials", daemon=True).start()

    def look(self) -> None:
        """Rereads the credentials and gives new ones to all clients; open connections are not touched."""
        assert self._reread is not None
        try:
            properties = self._reread()
        except UsageError as error:
            _log.warning("credentials not read again: %s", error)
            return
        username, password = (properties.get(name, "") for name in _CREDENTIALS)
        with self._lock:
            if not username or not password or (username, password) == self._credentials:
                return
            self._credentials = (username, password)
            self.rotations += 1
            self._failure = None  # it concerned the old ones
            clients = list(self._clients)
            for client in clients:
                client.new_credentials = (username, password)
        _log.info("new credentials handed to %d Kafka clients", len(clients))

    def _look_again(self) -> None:
        while True:
            self._clock.sleep(LOOK_SECONDS)
            with self._lock:
                if not self._clients:
                    self._is_looking = False
                    return
            self.look()
