"""Makes Kafka clients that log to Python and accept rotated credentials. Opens no connection itself."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from forebay_schemas.errors import UsageError
from forebay_schemas.kafka.configs import common_config
from forebay_schemas.kafka.connection import KafkaConnection
from forebay_schemas.kafka.properties_file import PROPERTIES_FIELD, redacted
from forebay_schemas.kafka.token_provider import TokenSource
from forebay_schemas.kafka.watch import ConnectionWatch

_librdkafka_log = logging.getLogger("forebay.librdkafka")


class _NotWhileAsking(logging.Filter):
    """Drops what a client logs while metadata is requested: the error says the same in one line, the log in hundreds
    while no broker answers (measured)."""

    def filter(self, record: logging.LogRecord) -> bool:  # noqa: ARG002 - whatever it is
        return not getattr(_asking, "now", False)


_asking = threading.local()
_librdkafka_log.addFilter(_NotWhileAsking())
# Without it, Python prints all the client's warnings in a program that has not set up logging: 36 lines a second while
# no broker answers (measured).
_librdkafka_log.addHandler(logging.NullHandler())


def make_admin(connection: KafkaConnection, *, client_id: str) -> AdminClient:
    """An admin client. Raises ``UsageError`` for a property librdkafka refuses."""
    return create_client(AdminClient, common_config(connection, client_id=client_id))


_Client = TypeVar("_Client", AdminClient, Consumer, Producer)


class _WatchedConsumer(Consumer):
    """A consumer that supports weak references, which the client's own type does not, and takes new credentials between
    two polls: ``set_sasl_credentials`` of another thread waits while a consumer is polled (2.16, seen)."""

    new_credentials: tuple[str, str] | None = None

    def poll(self, *args: Any, **kwargs: Any) -> Any:
        if self.new_credentials is not None:
            credentials, self.new_credentials = self.new_credentials, None
            self.set_sasl_credentials(*credentials)
        return super().poll(*args, **kwargs)


class _WatchedProducer(Producer):
    """Likewise."""

    new_credentials: tuple[str, str] | None = None

    def poll(self, *args: Any, **kwargs: Any) -> Any:
        self._take_credentials()
        return super().poll(*args, **kwargs)

    def flush(self, *args: Any, **kwargs: Any) -> Any:
        self._take_credentials()
        return super().flush(*args, **kwargs)

    def _take_credentials(self) -> None:
        credentials, self.new_credentials = self.new_credentials, None
        if credentials is not None:
            self.set_sasl_credentials(*credentials)


_WATCHED: Final[dict[Any, Any]] = {Consumer: _WatchedConsumer, Producer: _WatchedProducer}


def create_client(make: Callable[..., _Client], config: Mapping[str, Any]) -> _Client:
    """Makes a client that logs to Python, through its ``poll``, and receives rotated credentials.

    Raises ``UsageError`` for a property that librdkafka refuses, without values that may be secret, and
    ``AuthenticationFailedError`` when the token provider gives no token.
    """
    if isinstance(tokens := config.get("oauth_cb"), TokenSource):
        # Without a first token the client's constructor would wait ten seconds, and then give no reason.
        tokens.token()
    watch = config.get("error_cb")
    if isinstance(watch, ConnectionWatch):
        config = watch.renewed(config)
    try:
        client: _Client = _WATCHED.get(make, make)(dict(config), logger=_librdkafka_log)
    except KafkaException as error:
        problem = error.args[0].str().strip()
        for name, value in redacted(config).items():
            secret = str(config[name])
            if value == "[hidden]" and secret:
                problem = problem.replace(secret, "[hidden]")
        fix = "correct it; librdkafka's CONFIGURATION.md has the names"
        raise UsageError(PROPERTIES_FIELD, problem, fix=fix) from None
    if isinstance(watch, ConnectionWatch):
        watch.add(client, config)
    return client


def serve_callbacks(client: AdminClient | Consumer | Producer) -> None:
    """Polls for the client's callbacks and its log, on this thread."""
    _asking.now = True
    try:
        client.poll(0)
    finally:
        _asking.now = False
