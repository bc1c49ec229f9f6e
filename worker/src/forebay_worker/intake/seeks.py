"""Pending seeks: a partition is sought back to its last received record until the client has done so.

The consumer's thread.
"""

from __future__ import annotations

from collections.abc import Mapping

import structlog
from confluent_kafka import OFFSET_BEGINNING, KafkaException, TopicPartition

from forebay_worker.intake.commits import PartitionKey
from forebay_worker.intake.protocols import KafkaConsumer
from forebay_worker.partition.assignment import Assignment

AGAIN_SECONDS = 0.5

log = structlog.get_logger("forebay.ownership")


class Seeks:
    """Partitions that are to be sought back, of those in ``assignments``."""

    def __init__(self, assignments: Mapping[PartitionKey, Assignment]) -> None:
        self._assignments = assignments
        self._keys: set[PartitionKey] = set()
        self._again_at = 0.0

    def __contains__(self, key: PartitionKey) -> bool:
        return key in self._keys

    def add(self, *keys: PartitionKey) -> None:
        """Adds partitions to seek back."""
        self._keys.update(keys)

    def discard(self, key: PartitionKey) -> None:
        """Drops a released partition."""
        self._keys.discard(key)

    def step(self, consumer: KafkaConsumer, now: float) -> None:
        """Makes the seeks; retries failed ones."""
        if now < self._again_at:
            return
        for key in sorted(self._keys):
            offset = self._assignments[key].offsets.next_offset
            try:
                # Nothing received and no commit known: the first record.
                consumer.seek(TopicPartition(*key, OFFSET_BEGINNING if offset is None else offset))
                self._keys.remove(key)
            except KafkaException as error:
                # During a rebalance the client has not begun to read its new partitions.
                self._again_at = now + AGAIN_SECONDS
                log.warning("seek failed; retrying", topic=key[0], partition=key[1], error=str(error))
