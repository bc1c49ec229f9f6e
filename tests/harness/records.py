"""A producer that waits for each delivery, and the values in a topic. Talks to a broker."""

from __future__ import annotations

from typing import Any

from confluent_kafka import KafkaError, Producer

from forebay_sandbox.kafka.access import KafkaAccess
from forebay_schemas.kafka.clients import create_client
from forebay_schemas.kafka.connection import KafkaConnection

LONG_SECONDS = 60.0


def plain_producer(bootstrap_servers: str, **settings: Any) -> Producer:
    config = {"bootstrap.servers": bootstrap_servers, "acks": "all", "linger.ms": 0}
    return create_client(Producer, config | {name.replace("_", "."): value for name, value in settings.items()})


def produce(producer: Producer, topic: str, value: bytes) -> KafkaError | None:
    """Produces one record and waits for its delivery; returns the error."""
    outcomes: list[KafkaError | None] = []
    producer.produce(topic, value, on_delivery=lambda error, _message: outcomes.append(error))
    producer.flush(LONG_SECONDS)
    assert outcomes, "no delivery report"
    return outcomes[0]


def values_of(access: KafkaAccess, topic: str) -> list[bytes | None]:
    return [message.value() for message in access.read_all(topic)]


def one_broker(port: int) -> KafkaAccess:
    return KafkaAccess(KafkaConnection(bootstrap_servers=f"127.0.0.1:{port}", properties={}))
