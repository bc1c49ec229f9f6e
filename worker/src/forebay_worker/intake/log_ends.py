"""The end of a partition's log, as the client received it with its records. The consumer's thread; asks no broker."""

from __future__ import annotations

from confluent_kafka import KafkaException, TopicPartition

from forebay_worker.intake.partitions import PENDING_RECORDS_MAX
from forebay_worker.intake.protocols import KafkaConsumer
from forebay_worker.partition.assignment import Assignment
from forebay_worker.partition.claims import ANY_OFFSET


def note_first(consumer: KafkaConsumer, assignment: Assignment, offset: int) -> None:
    """Before its first record is received: notes up to which offset a dead owner may have started records."""
    doubt = assignment.doubt
    if assignment.claims.careful_below < ANY_OFFSET and (doubt is None or doubt.below is not None):
        return
    try:
        # The client received this with the record, so no broker is asked.
        partition = TopicPartition(assignment.topic, assignment.partition)
        _, end = consumer.get_watermark_offsets(partition, cached=True)
    except KafkaException:
        end = offset
    # An owner receives at most this many offsets beyond its commit.
    assignment.log_ends_at(min(max(end, offset + 1), offset + PENDING_RECORDS_MAX))
