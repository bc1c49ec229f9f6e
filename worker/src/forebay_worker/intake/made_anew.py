"""Recreated topics, and logs that lost their end. Their partitions are tracked anew, because the known offsets belong
to deleted records. The consumer's thread."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from forebay_schemas.clock import Clock
from forebay_schemas.contract.offsets_metadata import CommitMetadata
from forebay_worker.bounds import Bounds
from forebay_worker.intake.commits import Commits, PartitionKey
from forebay_worker.intake.protocols import TopicIds
from forebay_worker.intake.seeks import Seeks
from forebay_worker.partition.assignment import Assignment

CLOCK_ERROR_MS = 1_000
"""Largest error of the estimate of the brokers' clocks."""

log = structlog.get_logger("forebay.ownership")


class MadeAnew:
    """``drop_withheld`` receives a partition whose topic was deleted: the worker that ran its withheld requests has
    nothing to publish any more."""

    def __init__(
        self,
        *,
        assignments: dict[PartitionKey, Assignment],
        commits: Commits,
        seeks: Seeks,
        topic_ids: TopicIds,
        clock: Clock,
        drop_withheld: Callable[[Assignment], None],
        bounds: Bounds,
    ) -> None:
        self.count = 0
        """Number of partitions tracked anew."""
        self._assignments = assignments
        self._commits = commits
        self._seeks = seeks
        self._topic_ids = topic_ids
        self._clock = clock
        self._drop_withheld = drop_withheld
        self._bounds = bounds
        self._changes_seen = -1

    def look_soon(self) -> None:
        """Schedules an early check whether the tracked topics still exist."""
        self._topic_ids.look_until(self._clock.monotonic())

    def compare_all(self) -> None:
        """Makes the next `step` compare every partition."""
        self._changes_seen = -1

    def begin(self, old: Assignment, *, committed: int | None) -> Assignment:
        """Tracks a partition as if it had just been assigned without a commit."""
        key = (old.topic, old.partition)
        self.count += 1
        self._commits.forget(key)
        assignment = self._assignments[key] = Assignment(
            topic=old.topic,
            partition=old.partition,
            tier=old.tier,
            retry_delay_seconds=old.retry_delay_seconds,
            credit=old.credit,
            now=self._clock.monotonic(),
            committed=committed,
            metadata=CommitMetadata(released=True),  # by this worker
            now_ms=self._clock.wall_ms(),
            bounds=self._bounds,
        )
        assignment.opened = True
        return assignment

    def step(self, *, is_opening: bool) -> None:
        """Tracks a partition anew if its topic was recreated: no record of the new one was read.

        ``is_opening``: whether an assigned partition is not read yet.
        """
        if self._topic_ids.changes == self._changes_seen and not is_opening and not self._has_unidentified():
            return
        known_until, self._changes_seen = self._topic_ids.known_until, self._topic_ids.changes
        for old in list(self._assignments.values()):
            topic_id = self._topic_ids.id_of(old.topic)
            if not old.opened or topic_id is None or topic_id == old.topic_id:
                continue
            if old.topic_id is None:
                if known_until >= old.assigned_at:
                    old.topic_id = topic_id
                continue
            log.error(
                "the topic was deleted and made anew; reading it from its first record",
                topic=old.topic,
                partition=old.partition,
                read=old.offsets.next_offset,
            )
            assignment = self.begin(old, committed=None)
            assignment.topic_id = topic_id
            # A former owner may have run records of the new topic, but committed offsets of the old one.
            assignment.begin_doubt(self._clock.wall_ms())
            # Some of the new topic may have been read and taken for the old one's.
            assignment.reread_below = old.reread_below = old.offsets.next_offset or 0
            old.void_from_ms = self._topic_ids.changed_after_ms(old.topic) - CLOCK_ERROR_MS
            self._drop_withheld(old)
            self._seeks.add((old.topic, old.partition))

    def _has_unidentified(self) -> bool:
        return any(assignment.topic_id is None for assignment in self._assignments.values())
