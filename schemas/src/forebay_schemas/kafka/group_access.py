"""A client's permissions on consumer groups, probed by consumers that join nothing. Talks to the brokers; commits
nothing.

An admin client could ask for more. But when a group's coordinator answers too late, it ends the process (librdkafka
issue 4605, seen with 2.16.1).
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from forebay_schemas.kafka.clients import create_client
from forebay_schemas.kafka.configs import reader_config
from forebay_schemas.kafka.connection import KafkaConnection
from forebay_schemas.kafka.permissions import Access, Operation, Permitted, Resource, is_denied
from forebay_schemas.kafka.transient import until_passed

_AT_ONCE_MAX: Final = 8
_POLL_SECONDS: Final = 0.05
_NEVER_MADE: Final = ".never-made"
_BEYOND_THE_GROUP: Final = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_AUTHORIZATION_FAILED)


def ask_groups(
    connection: KafkaConnection, needed: Iterable[Access], *, topic: str, client_id: str, timeout_seconds: float
) -> Permitted:
    """The client's permissions on the groups in ``needed``, of Describe and Read, whether or not the groups exist.

    ``topic``: one that exists. ``timeout_seconds`` bounds each of two requests, for all groups at once. Raises
    ``KafkaException`` when a group's coordinator does not answer.
    """
    wanted: dict[str, set[Operation]] = {}
    for access in needed:
        if access.resource is Resource.GROUP:
            wanted.setdefault(access.name, set()).add(access.operation)
    ask = partial(_permitted, connection, topic=topic, client_id=client_id, timeout_seconds=timeout_seconds)
    with ThreadPoolExecutor(_AT_ONCE_MAX) as threads:
        answers = threads.map(ask, wanted.items())
        return {(Resource.GROUP, group): found for group, found in zip(wanted, answers, strict=True)}


def denied_groups(
    connection: KafkaConnection, groups: Collection[str], *, topic: str, client_id: str, timeout_seconds: float
) -> set[str]:
    """Those of ``groups`` that the brokers refuse to describe; not those whose coordinator does not answer.

    Read includes Describe, so a group that may be described may still not be read: its consumer learns that when it
    joins. ``topic``: one that exists.
    """
    ask = partial(_is_denied, connection, topic=topic, client_id=client_id, timeout_seconds=timeout_seconds)
    with ThreadPoolExecutor(min(len(groups), _AT_ONCE_MAX) or 1) as threads:
        return {group for group, is_one in zip(groups, threads.map(ask, groups), strict=True) if is_one}


def told_denial(consumer: Consumer) -> KafkaError | None:
    """The denial behind a timed-out request about a group, if that is the cause.

    A consumer without permission waits for the coordinator, and reports the reason when polled.
    """
    said = consumer.poll(0)
    error = None if said is None else said.error()
    return error if error is not None and is_denied(error) else None


def _is_denied(connection: KafkaConnection, group: str, *, topic: str, client_id: str, timeout_seconds: float) -> bool:
    wanted = (group, {Operation.DESCRIBE})
    try:
        return not _permitted(connection, wanted, topic=topic, client_id=client_id, timeout_seconds=timeout_seconds)
    except KafkaException:
        return False


def _permitted(
    connection: KafkaConnection,
    wanted: tuple[str, Collection[Operation]],
    *,
    topic: str,
    client_id: str,
    timeout_seconds: float,
) -> frozenset[Operation]:
    """Permissions on a group, and those needed. Raises ``KafkaException`` when the brokers do not answer."""
    group, operations = wanted
    answers: list[KafkaError | None] = []
    config = reader_config(connection, client_id=client_id) | {
        "group.id": group,
        "on_commit": lambda error, _partitions: answers.append(error),
    }
    consumer = create_client(Consumer, config)
    again = until_passed(timeout_seconds)
    try:
        if not again(_may_describe, consumer, topic, timeout_seconds):
            return frozenset()
        if Operation.READ in operations and again(_may_read, consumer, answers, topic, timeout_seconds):
            return frozenset({Operation.DESCRIBE, Operation.READ})
        return frozenset({Operation.DESCRIBE})
    finally:
        consumer.close()


def _may_describe(consumer: Consumer, topic: str, timeout_seconds: float) -> bool:
    try:
        consumer.committed([TopicPartition(topic, 0)], timeout=timeout_seconds)
    except KafkaException as error:
        denial = error.args[0] if is_denied(error.args[0]) else told_denial(consumer)
        if denial is None:
            raise
        return denial.code() != KafkaError.GROUP_AUTHORIZATION_FAILED
    return True


def _may_read(consumer: Consumer, answers: list[KafkaError | None], topic: str, timeout_seconds: float) -> bool:
    """``answers``: receives the answers to commits. A commit for a missing topic changes nothing, and brokers check the
    Read permission on the group first."""
    answers.clear()
    consumer.commit(offsets=[TopicPartition(f"{topic}{_NEVER_MADE}", 0, 0)], asynchronous=True)
    end = time.monotonic() + timeout_seconds
    while not answers:
        if time.monotonic() > end:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        consumer.poll(_POLL_SECONDS)
    error = answers[0]
    if error is None or error.code() in _BEYOND_THE_GROUP:
        return True
    if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
        return False
    raise KafkaException(error)
