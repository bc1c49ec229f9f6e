"""Makes Kafka clients: their log goes to Python, and they take rotated credentials. Connects to no broker itself."""

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
    """Leaves out what a client logs while it is asked for metadata: the answer says the same in one line, the log in
    hundreds while no broker answers (measured)."""

    def filter(self, record: logging.LogRecord) -> bool:  # noqa: ARG002 - whatever it is
        return not getattr(_asking, "now", False)


_asking = threading.local()
_librdkafka_log.addFilter(_NotWhileAsking())
# Without it, in a program that has not set up logging, Python prints all that the client warns of: 36 lines a second
# while no broker answers (measured).
_librdkafka_log.addHandler(logging.NullHandler())


def make_admin(connection: KafkaConnection, *, client_id: str) -> AdminClient:
    """An admin client. Raises ``UsageError`` for a property librdkafka refuses."""
    return create_client(AdminClient, common_config(connection, client_id=client_id))


_Client = TypeVar("_Client", AdminClient, Consumer, Producer)


class _WatchedConsumer(Consumer):
    """One that can be referred to weakly, which the client's own types cannot, and that takes new credentials between
    two polls: from another thread ``set_sasl_credentials`` waits for as long as a consumer is polled (2.16, seen)."""

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
    """Makes a client whose log goes to Python's, through its ``poll``, and which gets rotated credentials.

    Raises ``UsageError`` for a property that librdkafka refuses, without the value of one that may be secret, and
    ``AuthenticationFailedError`` when the token provider gives no token.
    """
    if isinstance(tokens := config.get("oauth_cb"), TokenSource):
        # Without a first token the client's constructor would wait for ten seconds, and then not say why.
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
    """Serves the client's callbacks; its log is served by the same call, on this thread."""
    _asking.now = True
    try:
        client.poll(0)
    finally:
        _asking.now = False
