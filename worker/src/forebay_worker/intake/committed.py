"""Committed offsets of assigned partitions, and the partitions for which they are unknown. The consumer's thread; asks
the group's coordinator and waits for a bounded time."""

from __future__ import annotations

from collections.abc import Callable

import structlog
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from forebay_worker.intake.commits import PartitionKey
from forebay_worker.intake.protocols import KafkaConsumer

TIMEOUT_SECONDS = 2.0
ASK_AGAIN_SECONDS = 0.5

log = structlog.get_logger("forebay.ownership")


class Committed:
    """``unknown``: partitions assigned without a known commit. ``explain`` puts the coordinator's error into words."""

    def __init__(self, *, name: str, topic: str, explain: Callable[[KafkaError, str], str]) -> None:
        """``topic``: one of the group's topics, for messages."""
        self.unknown: set[PartitionKey] = set()
        self.unknown_because = ""
        """The broker's error when it was last asked."""
        self._name = name
        self._topic = topic
        self._explain = explain
        self._ask_at = 0.0

    def ask(self, consumer: KafkaConsumer, partitions: list[TopicPartition]) -> list[TopicPartition] | None:
        """The committed offsets; None when the broker does not answer."""
        try:
            committed = consumer.committed(partitions, timeout=TIMEOUT_SECONDS)
            for partition in committed:
                if partition.error is not None:
                    raise KafkaException(partition.error)
        except KafkaException as error:
            self.unknown_because = self._explain(error.args[0], self._topic)
            log.warning("committed offsets unknown; asking again", intake=self._name, error=self.unknown_because)
            return None
        return committed

    def ask_again(self, consumer: KafkaConsumer, now: float) -> list[TopicPartition]:
        """Asks for the ``unknown`` partitions again when it is time; returns those now known."""
        if not self.unknown or now < self._ask_at:
            return []
        self._ask_at = now + ASK_AGAIN_SECONDS
        return self.ask(consumer, [TopicPartition(*key) for key in sorted(self.unknown)]) or []
