"""Which consumer groups a client may not see, asked by consumers that join nothing. Talks to the brokers.

An admin client could be asked the same, and more. But when a group's coordinator answers too late, it ends the process
(librdkafka issue 4605, seen with 2.16.1): no way for a worker to ask.
"""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from forebay_schemas.kafka.connection import KafkaConnection, create_client, reader_config
from forebay_schemas.kafka.permissions import is_denied

_AT_ONCE_MAX: Final = 8


def denied_groups(
    connection: KafkaConnection, groups: Collection[str], *, topic: str, client_id: str, timeout_seconds: float
) -> set[str]:
    """Those of ``groups`` that the brokers refuse to describe. One whose coordinator does not answer is none of them.

    Read includes Describe, so a group that may be described may still not be read: its consumer is told when it joins.
    ``topic``: one that exists.
    """
    ask = partial(_is_denied, connection, topic=topic, client_id=client_id, timeout_seconds=timeout_seconds)
    with ThreadPoolExecutor(min(len(groups), _AT_ONCE_MAX) or 1) as threads:
        return {group for group, is_one in zip(groups, threads.map(ask, groups), strict=True) if is_one}


def told_denial(consumer: Consumer) -> KafkaError | None:
    """The denial behind a question about a group that timed out, if that is why.

    A consumer that may not see its group waits for the coordinator, and says why to whoever polls.
    """
    said = consumer.poll(0)
    error = None if said is None else said.error()
    return error if error is not None and is_denied(error) else None


def _is_denied(connection: KafkaConnection, group: str, *, topic: str, client_id: str, timeout_seconds: float) -> bool:
    consumer = create_client(Consumer, reader_config(connection, client_id=client_id) | {"group.id": group})
    try:
        consumer.committed([TopicPartition(topic, 0)], timeout=timeout_seconds)
    except KafkaException as error:
        return is_denied(error.args[0]) or told_denial(consumer) is not None
    finally:
        consumer.close()
    return False
