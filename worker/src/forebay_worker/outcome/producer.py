"""What is used of confluent-kafka's Producer; the simulated broker gives the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

from confluent_kafka import KafkaError

BY_KEY: Final = -1
"""As a partition: the one of the key."""

Delivered = Callable[[KafkaError | None, Any], None]


class KafkaProducer(Protocol):
    """Its methods may be called from any thread."""

    def produce(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int = BY_KEY,
        *,
        headers: Any,
        on_delivery: Delivered,
    ) -> None: ...
    def poll(self, timeout: float) -> int: ...
