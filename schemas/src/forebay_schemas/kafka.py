"""Kafka client settings shared by every client of Forebay: where the brokers are, any librdkafka property by file,
what may not be changed, and what is never printed. Reads the properties file; connects only in `require_topics`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from forebay_schemas.errors import BrokerUnreachableError, KafkaFailedError, TopicMissingError, UsageError
from forebay_schemas.topics import LATER_BYTES_MAX, REQUEST_BYTES_MAX

METADATA_TIMEOUT_SECONDS: Final = 10.0

# What makes the guarantees true is not for a file to change.
_OURS: Final = {
    "acks": "results must be on every in-sync replica before an offset is committed",
    "request.required.acks": "results must be on every in-sync replica before an offset is committed",
    "auto.offset.reset": "what was accepted must be read from its first record",
    "enable.auto.commit": "offsets are committed only after the outcome is durable",
    "enable.auto.offset.store": "offsets are committed only after the outcome is durable",
    "enable.idempotence": "a retried produce must not become two records",
    "group.id": "the groups' names are part of the contract",
    "group.instance.id": "a static member keeps its partitions for the whole session timeout after it is gone",
    "partitioner": "the same key must reach the same partition from every client",
    "transactional.id": "Forebay does not use transactions",
}

_SECRET_WORDS: Final = ("password", "secret", "sasl.oauthbearer.config", "ssl.key.pem", "ssl.certificate.pem", "token")

_UNREACHABLE: Final = {
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._RESOLVE,
    KafkaError._TIMED_OUT,
    KafkaError._MSG_TIMED_OUT,
    KafkaError._SSL,
}

_librdkafka_log = logging.getLogger("forebay.librdkafka")


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaConnection:
    """How to reach the cluster. ``properties`` are librdkafka's, as read by `read_properties`; they hold secrets."""

    bootstrap_servers: str
    properties: dict[str, str]

    def __repr__(self) -> str:
        return f"KafkaConnection(bootstrap_servers={self.bootstrap_servers!r}, properties={redacted(self.properties)})"


def read_properties(path: Path) -> dict[str, str]:
    """Reads a Java-style properties file of librdkafka settings: ``name=value`` lines, ``#`` and ``!`` comments.

    Raises ``UsageError`` that names the line for what is no such line or may not be set; values are never shown.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "is not UTF-8"
        raise UsageError("FOREBAY_KAFKA_PROPERTIES", f"{path}: {why}", fix="name a readable text file") from None
    properties: dict[str, str] = {}
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if not line or line[0] in "#!":
            continue
        name, equals, value = line.partition("=")
        name = name.strip()
        if not equals or not name:
            raise UsageError("FOREBAY_KAFKA_PROPERTIES", f"{path}:{number} is not name=value", fix="correct that line")
        if name in _OURS:
            raise UsageError(
                "FOREBAY_KAFKA_PROPERTIES",
                f"{path}:{number} sets {name}, which is fixed because {_OURS[name]}",
                fix="remove that line",
            )
        properties[name] = value.strip()
    return properties


def redacted(config: dict[str, Any]) -> dict[str, Any]:
    """The same settings, fit to be printed."""
    return {
        name: "[hidden]" if any(word in name for word in _SECRET_WORDS) else value for name, value in config.items()
    }


def _common(connection: KafkaConnection, *, client_id: str) -> dict[str, Any]:
    config: dict[str, Any] = {
        "client.id": client_id,
        # A broker that comes back is found again within a second, not after librdkafka's default of ten.
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 1000,
        "socket.keepalive.enable": True,
        "allow.auto.create.topics": False,
    }
    config.update(connection.properties)
    config.setdefault("bootstrap.servers", connection.bootstrap_servers)
    return config


def producer_config(connection: KafkaConnection, *, client_id: str, record_bytes_max: int) -> dict[str, Any]:
    """An idempotent producer, acks=all. ``record_bytes_max``: ``REQUEST_BYTES_MAX`` or ``LATER_BYTES_MAX``."""
    assert record_bytes_max in (REQUEST_BYTES_MAX, LATER_BYTES_MAX)
    config = {"linger.ms": 5, "compression.type": "lz4", **_common(connection, client_id=client_id)}
    config.update(
        {
            "acks": "all",
            "enable.idempotence": True,
            "partitioner": "murmur2_random",
            "message.max.bytes": record_bytes_max,
        }
    )
    return config


def consumer_config(connection: KafkaConnection, *, client_id: str, group: str) -> dict[str, Any]:
    """A member of a worker's group: cooperative-sticky, a 10 s session, bounded prefetch, no commits by itself."""
    config = {
        "partition.assignment.strategy": "cooperative-sticky",
        "session.timeout.ms": 10_000,
        "heartbeat.interval.ms": 1_000,
        # Prefetch of three tier consumers: 315 MB resident with the defaults, 64 MB with these (measured).
        "queued.min.messages": 500,
        "queued.max.messages.kbytes": 4096,
        # The default of a second stalls small queues.
        "fetch.queue.backoff.ms": 10,
        "fetch.wait.max.ms": 100,
        **_common(connection, client_id=client_id),
    }
    config.update(
        {
            "group.id": group,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "earliest",
        }
    )
    return config


def reader_config(connection: KafkaConnection, *, client_id: str) -> dict[str, Any]:
    """A consumer that follows a topic by itself (assign, not subscribe) and commits nothing."""
    config = {"fetch.wait.max.ms": 100, "fetch.queue.backoff.ms": 10, **_common(connection, client_id=client_id)}
    config.update({"group.id": client_id, "enable.auto.commit": False, "enable.auto.offset.store": False})
    return config


def make_admin(connection: KafkaConnection, *, client_id: str) -> AdminClient:
    """An admin client. Raises ``UsageError`` for a property librdkafka refuses."""
    return create_client(AdminClient, _common(connection, client_id=client_id))


_Client = TypeVar("_Client", AdminClient, Consumer, Producer)


def create_client(make: Callable[..., _Client], config: dict[str, Any]) -> _Client:
    """Makes a client whose log goes to Python's. Raises ``UsageError`` for a property that librdkafka refuses."""
    try:
        return make(config, logger=_librdkafka_log)
    except KafkaException as error:
        raise UsageError(
            "FOREBAY_KAFKA_PROPERTIES",
            error.args[0].str(),
            fix="correct it; librdkafka's CONFIGURATION.md has the names",
        ) from None


def is_unreachable(error: KafkaError) -> bool:
    """Whether the error means that no broker answered."""
    return error.code() in _UNREACHABLE


def as_forebay_error(error: KafkaError, *, connection: KafkaConnection, doing: str) -> Exception:
    """The error a person should see for a Kafka error met while ``doing`` something."""
    if is_unreachable(error):
        return BrokerUnreachableError(
            f"no broker answered at {connection.bootstrap_servers} while {doing} ({error.str()}); "
            "check FOREBAY_BOOTSTRAP_SERVERS and that Kafka runs"
        )
    return KafkaFailedError(f"Kafka refused while {doing}: {error.str()} ({error.name()})")


def require_topics(
    admin: AdminClient,
    topics: Iterable[str],
    *,
    connection: KafkaConnection,
    pool: str,
    timeout_seconds: float = METADATA_TIMEOUT_SECONDS,
) -> dict[str, int]:
    """The number of partitions of each topic.

    Raises ``TopicMissingError`` naming all that do not exist, ``BrokerUnreachableError`` when no broker answers.
    """
    try:
        metadata = admin.list_topics(timeout=timeout_seconds)
    except KafkaException as error:
        raise as_forebay_error(error.args[0], connection=connection, doing="listing topics") from None
    wanted = list(topics)
    missing = [topic for topic in wanted if topic not in metadata.topics or metadata.topics[topic].error]
    if missing:
        raise TopicMissingError(missing, pool=pool)
    return {topic: len(metadata.topics[topic].partitions) for topic in wanted}
