"""What the clients of one connection report of it, and new credentials for all of them when their file changes.

Clients call it from the threads that poll them. Where credentials come from a file, a thread of its own reads that
again every two seconds, while there are clients.
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
"""A failure is told of for so long: a token that could not be had is asked for again after ten seconds."""

NOT_ACQUIRED: Final = "Failed to acquire SASL OAUTHBEARER token"
"""How librdkafka begins to say so."""

_CREDENTIALS: Final = ("sasl.username", "sasl.password")

_log = logging.getLogger("forebay.kafka")


class ConnectionWatch:
    """Given to every client as its ``error_cb``. Thread-safe; calling it never raises."""

    def __init__(
        self,
        *,
        reread: Callable[[], Mapping[str, str]] | None = None,
        tokens: TokenSource | None = None,
        clock: Clock | None = None,
    ) -> None:
        """``reread`` reads the properties anew; raises ``UsageError`` while they cannot be read. ``tokens``: where the
        clients' tokens come from, if from a function."""
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
        """A client reports an error: what concerns credentials and TLS is remembered for a while."""
        if error.code() in (KafkaError._AUTHENTICATION, KafkaError._SSL):
            self._failure = (self._clock.monotonic(), error)

    @property
    def failure(self) -> KafkaError | None:
        """What was last wrong with credentials or TLS, if that was a moment ago."""
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
        """The same properties with the credentials that are in the file now, which all clients get then: those they
        were read with may be refused as soon as the client that is made with them connects."""
        if self._credentials is None or not all(properties.get(name) for name in _CREDENTIALS):
            return dict(properties)
        self.look()
        with self._lock:
            credentials = self._credentials
        return {**properties, **dict(zip(_CREDENTIALS, credentials, strict=True))}

    def add(self, client: Any, properties: Mapping[str, Any]) -> None:
        """Leaves new credentials in the client's ``new_credentials`` when there are some; it takes them when polled."""
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
        """Reads the credentials again and hands new ones to all clients; connections that stand are not touched."""
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
            self._failure = None  # it was of the old ones
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
