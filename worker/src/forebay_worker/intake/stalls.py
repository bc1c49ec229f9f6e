"""How long a consumer's partitions stand still, with the same lowest unfinished offset. Pure; the consumer's thread
updates it, any thread may ask."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from forebay_worker.intake.commits import PartitionKey
from forebay_worker.partition.assignment import Assignment


@dataclass(frozen=True, slots=True)
class _Standing:
    """``assignment`` identifies one ownership of the partition."""

    assignment: Assignment
    offset: int
    since: float


class Stalls:
    """Times are monotonic seconds."""

    __slots__ = ("_standing", "_standing_since")

    def __init__(self) -> None:
        self._standing: dict[PartitionKey, _Standing] = {}
        self._standing_since: float | None = None

    def look(self, assignments: Mapping[PartitionKey, Assignment], now: float) -> None:
        """Notes each partition's position; a few calls a second are enough."""
        standing: dict[PartitionKey, _Standing] = {}
        for key, assignment in assignments.items():
            offset = assignment.offsets.position()
            if offset is None or not assignment.offsets.pending_count:
                continue
            known = self._standing.get(key)
            if known is not None and known.assignment is assignment and known.offset == offset:
                standing[key] = known
            else:
                standing[key] = _Standing(assignment, offset, now)
        self._standing = standing
        self._standing_since = min((each.since for each in standing.values()), default=None)

    def watermark_age_seconds(self, now: float) -> float:
        """Longest time that a partition has stood still; 0 if no received record is unfinished."""
        since = self._standing_since
        return 0.0 if since is None else max(0.0, now - since)
