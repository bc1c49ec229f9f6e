"""The last commit of a partition before its release, and the notice of its running requests.

The consumer's thread; asks the group's coordinator, and waits for both to be durable.
"""

from __future__ import annotations

from dataclasses import dataclass

import structlog

from forebay_schemas.clock import Clock
from forebay_schemas.contract.coordination import Notice, NoticeKind
from forebay_worker.intake.commits import Commits, PartitionKey
from forebay_worker.intake.protocols import KafkaConsumer, Peers
from forebay_worker.partition.assignment import Assignment

log = structlog.get_logger("forebay.ownership")

Commit = tuple[int, str]
"""An offset and its metadata."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandedOver:
    """A released partition. ``running``: offsets of its requests that still run here."""

    assignment: Assignment
    running: tuple[int, ...]


def publish_last_words(
    last: dict[PartitionKey, Commit],
    handed_over: list[HandedOver],
    *,
    commits: Commits,
    consumer: KafkaConsumer,
    clock: Clock,
    peers: Peers,
) -> bool:
    """Commits, and publishes on the coordination topic the running offsets and any refused part of the commit.

    The commit names the running offsets too. But an earlier owner may have published that it released them, and only
    the order of notices tells which one holds. Returns False if the partitions were lost before, so that this worker's
    knowledge of them does not count.
    """
    refused = commits.commit_last(consumer, clock, last) if last else {}
    if refused is None:
        return False
    assignments = {(over.assignment.topic, over.assignment.partition): over.assignment for over in handed_over}
    notices = [
        Notice(
            kind=NoticeKind.LAST_COMMIT,
            worker=peers.worker_id,
            topic=key[0],
            partition=key[1],
            offsets=[],
            committed=commit[0],
            metadata=commit[1],
            topic_id=assignments[key].topic_id,
        )
        for key, commit in refused.items()
    ]
    notices += [
        Notice(
            kind=NoticeKind.RUNNING,
            worker=peers.worker_id,
            topic=over.assignment.topic,
            partition=over.assignment.partition,
            offsets=list(over.running),
            topic_id=over.assignment.topic_id,
        )
        for over in handed_over
        if over.running
    ]
    if notices and not peers.publish(notices):
        log.error("hand-over not published; requests may run again", partitions=sorted(last), refused=sorted(refused))
    return True
