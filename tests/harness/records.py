"""A producer that waits for what becomes of each record, and the values of a topic. Talks to a broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, Producer

from forebay_sandbox.kafka.access import KafkaAccess
from forebay_schemas.kafka.clients import create_client
from forebay_schemas.kafka.connection import KafkaConnection

if TYPE_CHECKING:
    pass


_LONG_SECONDS = 60.0


def _producer(bootstrap_servers: str, **settings: Any) -> Producer:
    config = {"bootstrap.servers": bootstrap_servers, "acks": "all", "linger.ms": 0}
    return create_client(Producer, config | {name.replace("_", "."): value for name, value in settings.items()})


def _produce(producer: Producer, topic: str, value: bytes) -> KafkaError | None:
    """Produce one record and wait for what becomes of it."""
    outcomes: list[KafkaError | None] = []
    producer.produce(topic, value, on_delivery=lambda error, _message: outcomes.append(error))
    producer.flush(_LONG_SECONDS)
    assert outcomes, "no delivery report"
    return outcomes[0]


def _values(access: KafkaAccess, topic: str) -> list[bytes | None]:
    return [message.value() for message in access.read_all(topic)]


def _only(port: int) -> KafkaAccess:
    return KafkaAccess(KafkaConnection(bootstrap_servers=f"127.0.0.1:{port}", properties={}))
