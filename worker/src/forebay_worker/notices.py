"""What was heard on the coordination topic, kept for partitions that are assigned a little later. Pure."""

from __future__ import annotations

from collections import deque

from forebay_schemas.coordination import LASTING_KINDS, LEASE_SECONDS, Notice
from forebay_worker.assignment import Assignment

KEPT_SECONDS = 60.0
KEPT_NOTICES_MAX = 10_000


class RecentNotices:
    """Notices of the last minute, in the order in which they were heard. Times are monotonic seconds."""

    __slots__ = ("_notices",)

    def __init__(self) -> None:
        self._notices: deque[tuple[float, Notice]] = deque(maxlen=KEPT_NOTICES_MAX)

    def hear(self, notice: Notice, now: float) -> None:
        """Keeps a notice."""
        while self._notices and self._notices[0][0] < now - KEPT_SECONDS:
            self._notices.popleft()
        self._notices.append((now, notice))

    def tell(self, assignment: Assignment, now: float) -> None:
        """Tells a new assignment all that concerns it."""
        for heard_at, notice in self._notices:
            if (notice.topic, notice.partition) != (assignment.topic, assignment.partition):
                continue
            if notice.kind in LASTING_KINDS or heard_at >= now - LEASE_SECONDS:
                assignment.heed(notice, now)
