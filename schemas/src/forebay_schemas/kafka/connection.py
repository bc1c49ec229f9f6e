"""Kafka client settings shared by every client of Forebay: where the brokers are, any librdkafka property by file,
what may not be changed, and what is never printed. Reads the properties file; connects only where it says so."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from forebay_schemas.contract.envelope_problems import shown
from forebay_schemas.contract.topics import LATER_BYTES_MAX, REQUEST_BYTES_MAX, UNPACKED_BYTES_MAX
from forebay_schemas.errors import BrokerUnreachableError, ForebayError, KafkaFailedError, TopicMissingError, UsageError
from forebay_schemas.kafka.acls import READER_GROUP
from forebay_schemas.kafka.diagnosis import find_trouble, refused_credentials, why_refused
from forebay_schemas.kafka.permissions import Access, Operation, Resource, denied_error, is_denied, on_group, on_topic
from forebay_schemas.kafka.principal import principal_of
from forebay_schemas.kafka.token_provider import TokenSource
from forebay_schemas.kafka.watch import ConnectionWatch
from forebay_schemas.properties import property_lines

METADATA_TIMEOUT_SECONDS: Final = 10.0

Compression = Literal["none", "gzip", "lz4"]
READ_BY_ALL: Final[Compression] = "none"
"""For what clients of others read: many lack LZ4, Snappy and zstd (kafkajs, plain kafka-python). gzip they have, but it
takes 25 to 75 microseconds of a core for a result of 2 kB, and a quarter of a second for an image (measured)."""

PROPERTIES_FIELD: Final = "--kafka-properties / FOREBAY_KAFKA_PROPERTIES"
"""How errors name what says where the properties file is."""

_ACKS: Final = "results must be on every in-sync replica before an offset is committed"
_COMMITS: Final = "offsets are committed only after the outcome is durable"

# What makes the guarantees true is not for a file to change; nor are the names by which it might be set otherwise.
_OURS: Final = {
    "acks": _ACKS,
    "allow.auto.create.topics": "a missing topic is to be named, not made",
    "auto.commit.enable": _COMMITS,
    "auto.offset.reset": "what was accepted must be read from its first record",
    "delivery.report.only.error": "what is not reported as delivered is not taken for delivered",
    "enable.auto.commit": _COMMITS,
    "enable.auto.offset.store": _COMMITS,
    "enable.idempotence": "a retried produce must not become two records",
    "enable.partition.eof": "the end of a partition is known by it alone where its last offsets hold no record",
    "group.id": "the groups' names are part of the contract",
    "group.instance.id": "a static member keeps its partitions for the whole session timeout after it is gone",
    "isolation.level": "requests of an aborted transaction must not run",
    "message.max.bytes": "the topics' size limits build on each other",
    "partition.assignment.strategy": "partitions are assigned and revoked one by one, as cooperative-sticky does",
    "partitioner": "the same key must reach the same partition from every client",
    "request.required.acks": _ACKS,
    "test.mock.num.brokers": "requests go to real brokers",
    "topic.blacklist": "every topic of the pool is needed",
    "transactional.id": "Forebay does not use transactions",
}

# librdkafka reads an integer as far as there are digits: 5.4e+06 milliseconds become 5.
_INTEGER: Final = re.compile(
    r".*\.(ms|bytes|kbytes|messages|retries|fails|cnt|threshold|level|size)"
    r"|retries|log_level|max\.in\.flight(\.requests\.per\.connection)?"
)

# confluent-kafka takes Python objects under these names.
_NOT_TEXT: Final = re.compile(r".*_cb|logger|on_commit|on_delivery|opaque|default\.topic\.config")

# Which values are fit to be printed. A list of what is secret would miss the misspelt name of a password.
_PRINTABLE: Final = re.compile(
    r".*\.(ms|bytes|kbytes|messages|location|interval|backoff|enable|max|min)"
    r"|acks|allow\.auto\.create\.topics|auto\.offset\.reset|bootstrap\.servers|client\.id|client\.rack|compression\..*"
    r"|debug|enable\..*|group\.id|group\.protocol|group\.remote\.assignor|isolation\.level|partition\.assignment\.strategy"
    r"|max\.in\.flight.*|partitioner|retries|sasl\.mechanisms?|security\.protocol"
)

# librdkafka says "BIO lib" of one that is not there.
_FILES: Final = ("ssl.ca.location", "ssl.certificate.location", "ssl.key.location", "ssl.keystore.location")

_FIRST_LOOKS_SECONDS: Final = (0.5, 1.0)
"""How long the first questions to the brokers wait, before it is looked whether waiting can help at all."""

_SERVER = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):(\d{1,5})")

_UNREACHABLE: Final = {
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._RESOLVE,
    KafkaError._TIMED_OUT,
    KafkaError._MSG_TIMED_OUT,
    KafkaError._SSL,
}

# What a client says of a topic while no broker tells it of any, and before one that has just started does.
_FORGOTTEN: Final = {KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC}

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


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaConnection:
    """How to reach the cluster: ``bootstrap_servers`` as ``host:port,host:port``.

    ``properties`` are librdkafka's, as `read_properties` reads them; they hold secrets, so the repr hides their values.
    ``tokens``: where tokens for OAUTHBEARER come from, if from a function.
    ``watch`` is told by all clients of the connection what goes wrong with it.
    """

    bootstrap_servers: str
    properties: dict[str, str]
    watch: ConnectionWatch = field(default_factory=ConnectionWatch, compare=False)
    tokens: TokenSource | None = field(default=None, compare=False)

    @property
    def principal(self) -> str:
        """Who the brokers take this client for, as far as its properties tell."""
        return principal_of(self.properties)

    def __repr__(self) -> str:
        return f"KafkaConnection(bootstrap_servers={self.bootstrap_servers!r}, properties={redacted(self.properties)})"


def check_bootstrap_servers(text: str) -> str:
    """The same servers without spaces. Raises ``ValueError``, without a field's name, for what is no host:port list."""
    servers = [server.strip() for server in text.split(",")]
    for server in servers:
        match = _SERVER.fullmatch(server)
        if match is None or not 1 <= int(match[2]) <= 65535:
            raise ValueError(f"{shown(server)} is not host:port")
    return ",".join(servers)


def read_properties(path: Path) -> dict[str, str]:
    """Reads a properties file of librdkafka settings: ``name=value`` lines in UTF-8, ``#`` and ``!`` begin comments.

    Values are taken as they stand, without escapes or continuation lines; ``${directory:/a/folder:file}`` is what that
    file holds, without the newline at its end. Raises ``UsageError`` that names the line for
    what is no such line, is there twice or may not be set; values are never shown.
    """

    def refuse(problem: str, fix: str) -> UsageError:
        return UsageError(PROPERTIES_FIELD, problem, fix=fix)

    properties: dict[str, str] = {}
    for where, name, value in property_lines(path, refuse):
        if name in _OURS:
            raise refuse(f"{where} sets {name}, which is fixed because {_OURS[name]}", "remove that line")
        if _NOT_TEXT.fullmatch(name):
            raise refuse(f"{where} sets {name}, which a file cannot", "remove that line")
        if name == "metadata.broker.list":
            raise refuse(f"{where} sets {name}", "call it bootstrap.servers")
        if name in _FILES and value != "probe" and not Path(value).exists():
            raise refuse(f"{where} sets {name}: {value} is not there", "name a readable file")
        if _INTEGER.fullmatch(name) and not _is_integer(value):
            raise refuse(f"{where} sets {name} to {value[:40]!r}, which is no whole number", "write it in digits alone")
        properties[name] = value
    return properties


def _is_integer(value: str) -> bool:
    return value.removeprefix("-").isdecimal() and value.isascii()


def redacted(config: Mapping[str, Any]) -> dict[str, Any]:
    """The same settings, fit to be printed: only what is known to be harmless keeps its value."""
    return {name: value if _PRINTABLE.fullmatch(name) else "[hidden]" for name, value in config.items()}


def _common(connection: KafkaConnection, *, client_id: str) -> dict[str, Any]:
    config: dict[str, Any] = {
        "client.id": client_id,
        # A broker that comes back is found again within a second, not after librdkafka's default of ten.
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 1000,
        "socket.keepalive.enable": True,
        "allow.auto.create.topics": False,
        "error_cb": connection.watch,
    }
    if connection.tokens is not None:
        config["oauth_cb"] = connection.tokens
    return config | connection.properties | {"bootstrap.servers": connection.bootstrap_servers}


def producer_config(
    connection: KafkaConnection, *, client_id: str, record_bytes_max: int, compression: Compression = "lz4"
) -> dict[str, Any]:
    """An idempotent producer, acks=all. ``record_bytes_max``, uncompressed: `REQUEST_BYTES_MAX`, `LATER_BYTES_MAX` or
    `UNPACKED_BYTES_MAX`. ``compression``: `READ_BY_ALL` for what others read, unless the properties name one.
    """
    assert record_bytes_max in (REQUEST_BYTES_MAX, LATER_BYTES_MAX, UNPACKED_BYTES_MAX)
    config = {
        # A lone record goes at once: 5 ms of linger were 6 ms of a result's latency (measured). Under load records
        # gather while two requests are on their way, which saves the broker more than lingering does.
        "linger.ms": 0,
        "max.in.flight.requests.per.connection": 2,
        "compression.type": compression,
    } | _common(connection, client_id=client_id)
    return config | {
        "acks": "all",
        "enable.idempotence": True,
        "partitioner": "murmur2_random",
        "message.max.bytes": record_bytes_max,
    }


def consumer_config(connection: KafkaConnection, *, client_id: str, group: str) -> dict[str, Any]:
    """A member of a worker's group: cooperative-sticky, a 10 s session, bounded prefetch, no commits by itself.

    With ``group.protocol=consumer`` in the properties the broker decides on sessions and assignment.
    """
    config: dict[str, Any] = {
        # Prefetch of three tier consumers: 315 MB resident with the defaults, 64 MB with these (measured).
        "queued.min.messages": 500,
        "queued.max.messages.kbytes": 4096,
        # The default of a second stalls small queues.
        "fetch.queue.backoff.ms": 10,
        "fetch.wait.max.ms": 100,
        # New partitions, and topics that are back, are read so soon; by default it is five minutes.
        "topic.metadata.refresh.interval.ms": 5_000,
    }
    if connection.properties.get("group.protocol", "classic").lower() != "consumer":
        config |= {
            "partition.assignment.strategy": "cooperative-sticky",
            "session.timeout.ms": 10_000,
            "heartbeat.interval.ms": 1_000,
        }
    config |= _common(connection, client_id=client_id)
    return config | {
        "group.id": group,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "earliest",
        # Commits go to the end that it tells, behind markers of transactions and records of aborted ones.
        "enable.partition.eof": True,
    }


def reader_config(connection: KafkaConnection, *, client_id: str) -> dict[str, Any]:
    """A consumer that follows a topic by itself (assign, not subscribe) and commits nothing.

    It never joins its group, but looks for the group's coordinator all the same (librdkafka 2.16, seen).
    """
    config = {"fetch.wait.max.ms": 100, "fetch.queue.backoff.ms": 10} | _common(connection, client_id=client_id)
    return config | {"group.id": READER_GROUP, "enable.auto.commit": False, "enable.auto.offset.store": False}


def make_admin(connection: KafkaConnection, *, client_id: str) -> AdminClient:
    """An admin client. Raises ``UsageError`` for a property librdkafka refuses."""
    return create_client(AdminClient, _common(connection, client_id=client_id))


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


def is_unreachable(error: KafkaError, *, known: bool = False) -> bool:
    """Whether the error means that no broker answered. ``known``: met with a topic that was there before."""
    return error.code() in _UNREACHABLE or (known and error.code() in _FORGOTTEN)


def no_answer(connection: KafkaConnection, *, doing: str, why: str) -> BrokerUnreachableError:
    """The error for brokers that did not answer while ``doing`` something."""
    return BrokerUnreachableError(
        f"no broker answered at {connection.bootstrap_servers} while {doing} ({why}); "
        "check FOREBAY_BOOTSTRAP_SERVERS and that Kafka runs"
    )


def as_forebay_error(
    error: KafkaError,
    *,
    connection: KafkaConnection,
    doing: str,
    needs: Access | None,
    known: bool = False,
    why: str = "",
) -> ForebayError:
    """The error a person should see for a Kafka error met while ``doing`` what ``needs`` a permission, or none.

    ``known``: it was done with a topic that was there before. ``why``: what is said of brokers that do not answer,
    instead of the client's own words.
    """
    if is_unreachable(error, known=known):
        refused = connection.watch.authentication_failure
        if refused is not None:
            return refused_credentials(refused, connection.properties)
        return no_answer(connection, doing=doing, why=why or error.str())
    if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED and (needs is None or needs.resource is Resource.TOPIC):
        # Of what reads a topic without being a member of any group.
        needs = on_group(Operation.DESCRIBE, READER_GROUP)
    if needs is not None and is_denied(error):
        return denied_error(needs, principal=connection.principal, doing=doing)
    return KafkaFailedError(f"Kafka refused while {doing}: {error.str()} ({error.name()})")


def ask_metadata(
    client: AdminClient | Consumer | Producer,
    *,
    connection: KafkaConnection,
    doing: str,
    topic: str | None = None,
    timeout_seconds: float = METADATA_TIMEOUT_SECONDS,
) -> Any:
    """The cluster's metadata, or that of one ``topic``: the first thing to ask for.

    Raises ``AuthenticationFailedError`` and ``TlsFailedError`` within about two seconds, as waiting does not help
    there; ``BrokerUnreachableError`` after ``timeout_seconds``.
    """
    end = time.monotonic() + timeout_seconds
    _hear(client)  # one that was idle takes its new credentials
    failure = KafkaError(KafkaError._TIMED_OUT)
    for seconds in (*_FIRST_LOOKS_SECONDS, timeout_seconds):
        left = min(seconds, end - time.monotonic())
        if left <= 0:
            break
        try:
            return client.list_topics(topic, timeout=left) if topic is not None else client.list_topics(timeout=left)
        except KafkaException as error:
            failure = error.args[0]
        if not is_unreachable(failure):
            break
        if seconds != _FIRST_LOOKS_SECONDS[0]:
            _hear(client)  # it tells then what went wrong
            trouble = _trouble(connection, give_up_at=end)
            if trouble is not None:
                raise trouble
    needs = None if topic is None else on_topic(Operation.DESCRIBE, topic)
    why = why_refused(connection.bootstrap_servers) if is_unreachable(failure) else ""
    raise as_forebay_error(failure, connection=connection, doing=doing, needs=needs, why=why)


def _hear(client: AdminClient | Consumer | Producer) -> None:
    """Serves the client's callbacks; its log is served by the same call, on this thread."""
    _asking.now = True
    try:
        client.poll(0)
    finally:
        _asking.now = False


def _trouble(connection: KafkaConnection, *, give_up_at: float) -> ForebayError | None:
    refused = connection.watch.authentication_failure
    if refused is not None:
        return refused_credentials(refused, connection.properties)
    return find_trouble(connection.bootstrap_servers, connection.properties, give_up_at=give_up_at)


def require_topics(
    client: AdminClient | Consumer | Producer,
    topics: Iterable[str],
    *,
    connection: KafkaConnection,
    pool: str,
    operation: Operation,
    timeout_seconds: float = METADATA_TIMEOUT_SECONDS,
) -> dict[str, int]:
    """The number of partitions of each topic, by its name. ``operation``: what is meant to be done to them.

    Raises ``TopicMissingError`` naming all that do not exist, ``DeniedError`` for one that this client may not even
    see, ``KafkaFailedError`` for one that is there but cannot be used now (no leader yet); and as `ask_metadata`.
    """
    doing = "listing topics"
    known = ask_metadata(client, connection=connection, doing=doing, timeout_seconds=timeout_seconds).topics
    partitions: dict[str, int] = {}
    missing: list[str] = []
    for topic in topics:
        if topic not in known:
            # Of all topics the brokers leave out those that one may not see; asked for by name, they say so.
            known |= ask_metadata(
                client, connection=connection, doing=doing, topic=topic, timeout_seconds=timeout_seconds
            ).topics
        failure = known[topic].error if topic in known else KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
        if failure is None:
            partitions[topic] = len(known[topic].partitions)
        elif failure.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            missing.append(topic)
        else:
            needs = on_topic(operation, topic)
            raise as_forebay_error(failure, connection=connection, doing=f"looking at topic {topic}", needs=needs)
    if missing:
        raise TopicMissingError(missing, pool=pool)
    return partitions
