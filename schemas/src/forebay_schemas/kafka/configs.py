"""Settings of the Kafka clients: producers, group members, readers. Pure."""

from __future__ import annotations

from typing import Any, Final, Literal

from forebay_schemas.contract.topics import LATER_BYTES_MAX, REQUEST_BYTES_MAX, UNPACKED_BYTES_MAX
from forebay_schemas.kafka.acls import READER_GROUP
from forebay_schemas.kafka.connection import KafkaConnection

Compression = Literal["none", "gzip", "lz4"]
READ_BY_ALL: Final[Compression] = "none"
"""For topics that foreign clients read: many lack LZ4, Snappy and zstd (kafkajs, plain kafka-python). They have gzip,
but it takes 25 to 75 microseconds of a core for a result of 2 kB, and a quarter of a second for an image (measured)."""


def common_config(connection: KafkaConnection, *, client_id: str) -> dict[str, Any]:
    """Settings of all clients. The properties file overrides them, except for the servers."""
    config: dict[str, Any] = {
        "client.id": client_id,
        # A restarted broker is found within a second, instead of librdkafka's default of ten.
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
    `UNPACKED_BYTES_MAX`. ``compression``: `READ_BY_ALL` for topics of foreign clients, unless the properties set
    one."""
    assert record_bytes_max in (REQUEST_BYTES_MAX, LATER_BYTES_MAX, UNPACKED_BYTES_MAX)
    config = {
        # A single record is sent at once: 5 ms of linger added 6 ms to a result's latency (measured). Under load,
        # records gather while two requests are in flight, which saves the broker more than lingering does.
        "linger.ms": 0,
        "max.in.flight.requests.per.connection": 2,
        "compression.type": compression,
    } | common_config(connection, client_id=client_id)
    return config | {
        "acks": "all",
        "enable.idempotence": True,
        "partitioner": "murmur2_random",
        "message.max.bytes": record_bytes_max,
    }


def consumer_config(connection: KafkaConnection, *, client_id: str, group: str) -> dict[str, Any]:
    """A member of a worker's group: cooperative-sticky, a 10 s session, bounded prefetch, manual commits.

    With ``group.protocol=consumer`` in the properties the broker decides on sessions and assignment.
    """
    config: dict[str, Any] = {
        # Prefetch of three tier consumers: 315 MB resident with the defaults, 64 MB with these (measured).
        "queued.min.messages": 500,
        "queued.max.messages.kbytes": 4096,
        # The default of a second stalls small queues.
        "fetch.queue.backoff.ms": 10,
        "fetch.wait.max.ms": 100,
        # New partitions and recreated topics are read this soon; by default it is five minutes.
        "topic.metadata.refresh.interval.ms": 5_000,
    }
    if connection.properties.get("group.protocol", "classic").lower() != "consumer":
        config |= {
            "partition.assignment.strategy": "cooperative-sticky",
            "session.timeout.ms": 10_000,
            "heartbeat.interval.ms": 1_000,
        }
    config |= common_config(connection, client_id=client_id)
    return config | {
        "group.id": group,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "earliest",
        # Commits go to the end it reports, behind transaction markers and records of aborted transactions.
        "enable.partition.eof": True,
    }


def reader_config(connection: KafkaConnection, *, client_id: str) -> dict[str, Any]:
    """A consumer that reads a topic by itself (assign, not subscribe) and commits nothing.

    It never joins its group, but still looks up the group's coordinator (librdkafka 2.16, seen).
    """
    config = {"fetch.wait.max.ms": 100, "fetch.queue.backoff.ms": 10} | common_config(connection, client_id=client_id)
    return config | {"group.id": READER_GROUP, "enable.auto.commit": False, "enable.auto.offset.store": False}
