"""Asks a Kafka client for metadata: the cluster, and required topics. Talks to the brokers."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from forebay_schemas.errors import ForebayError, TopicMissingError
from forebay_schemas.kafka.clients import serve_callbacks
from forebay_schemas.kafka.connection import KafkaConnection
from forebay_schemas.kafka.diagnosis import find_trouble, refused_credentials, why_refused
from forebay_schemas.kafka.errors import as_forebay_error, is_unreachable
from forebay_schemas.kafka.permissions import Operation, on_topic

METADATA_TIMEOUT_SECONDS: Final = 10.0

_FIRST_LOOKS_SECONDS: Final = (0.5, 1.0)
"""Timeouts of the first requests, before the cause of their failure is probed."""

_NO_BROKERS_AGAIN_SECONDS: Final = 0.1


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
    there; ``BrokerUnreachableError`` after ``timeout_seconds``. An answer that names no broker is none: one that has
    just started gives it, and knows no topic yet either.
    """
    end = time.monotonic() + timeout_seconds
    serve_callbacks(client)  # an idle client takes its new credentials
    failure = KafkaError(KafkaError._TIMED_OUT)
    for seconds in (*_FIRST_LOOKS_SECONDS, timeout_seconds):
        left = min(seconds, end - time.monotonic())
        if left <= 0:
            break
        try:
            return _list_topics(client, topic, seconds=left)
        except KafkaException as error:
            failure = error.args[0]
        if not is_unreachable(failure):
            break
        if seconds != _FIRST_LOOKS_SECONDS[0]:
            serve_callbacks(client)  # reports what went wrong
            trouble = _trouble(connection, give_up_at=end)
            if trouble is not None:
                raise trouble
    needs = None if topic is None else on_topic(Operation.DESCRIBE, topic)
    why = why_refused(connection.bootstrap_servers) if is_unreachable(failure) else ""
    raise as_forebay_error(failure, connection=connection, doing=doing, needs=needs, why=why)


def _list_topics(client: AdminClient | Consumer | Producer, topic: str | None, *, seconds: float) -> Any:
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        found = client.list_topics(topic, timeout=left) if topic is not None else client.list_topics(timeout=left)
        if found.brokers:
            return found
        time.sleep(_NO_BROKERS_AGAIN_SECONDS)
    raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "the answers name no broker"))


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
    """The number of partitions of each topic. ``operation``: what the caller is going to do with them.

    Raises ``TopicMissingError`` naming all that do not exist, ``DeniedError`` for one that this client may not see,
    ``KafkaFailedError`` for one that cannot be used now (no leader yet); and as `ask_metadata`.
    """
    doing = "listing topics"
    known = ask_metadata(client, connection=connection, doing=doing, timeout_seconds=timeout_seconds).topics
    partitions: dict[str, int] = {}
    missing: list[str] = []
    for topic in topics:
        if topic not in known:
            # Lists leave out topics without permission; asked for by name, the brokers report that.
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
