"""Reads the coordination topic and passes each notice on. A thread of its own owns the consumer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import structlog
from confluent_kafka import OFFSET_END, KafkaError, KafkaException, TopicPartition

from forebay_schemas.clock import Clock
from forebay_schemas.coordination import LEASE_SECONDS, Notice, decode_notice
from forebay_worker.work import Record

POLL_SECONDS = 0.2
LOOK_BACK_MS = int(LEASE_SECONDS * 1000)
OFFSETS_TIMEOUT_SECONDS = 5.0

log = structlog.get_logger("forebay.coordination")


class FollowingConsumer(Protocol):
    """What is used of confluent-kafka's Consumer here."""

    def assign(self, partitions: list[TopicPartition]) -> None: ...
    def offsets_for_times(self, partitions: list[TopicPartition], timeout: float) -> list[TopicPartition]: ...
    def poll(self, timeout: float) -> Record | None: ...
    def close(self) -> None: ...


class CoordinationReader:
    """Follows the topic from ten seconds ago on: as far back as a lease can reach."""

    def __init__(
        self, *, consumer: FollowingConsumer, topic: str, partitions: int, clock: Clock, hear: Callable[[Notice], None]
    ) -> None:
        self._consumer = consumer
        self._topic = topic
        self._partitions = partitions
        self._clock = clock
        self._hear = hear
        self._assigned = False
        self.heartbeat = clock.monotonic()

    def step(self) -> None:
        """Passes on what has come. Blocks for up to 0.2 s, and never raises: it is made again."""
        self.heartbeat = self._clock.monotonic()
        try:
            if not self._assigned:
                self._assign()
            record = self._consumer.poll(POLL_SECONDS)
        except KafkaException as error:
            log.warning("coordination not read; trying again", error=str(error))
            return
        if record is None:
            return
        failure: KafkaError | None = record.error()
        if failure is not None:
            log.warning("the client reports", topic=self._topic, error=failure.str())
            return
        notice = decode_notice(record.value() or b"")
        if notice is not None:
            self._hear(notice)

    def close(self) -> None:
        """Closes the consumer."""
        self._consumer.close()

    def _assign(self) -> None:
        since = self._clock.wall_ms() - LOOK_BACK_MS
        wanted = [TopicPartition(self._topic, number, since) for number in range(self._partitions)]
        found = self._consumer.offsets_for_times(wanted, timeout=OFFSETS_TIMEOUT_SECONDS)
        starts: list[Any] = [
            TopicPartition(each.topic, each.partition, each.offset if each.offset >= 0 else OFFSET_END)
            for each in found
        ]
        self._consumer.assign(starts)
        self._assigned = True
