"""What was heard on the coordination topic, kept for partitions that are assigned a little later. Pure."""

from __future__ import annotations

from collections import deque

from forebay_schemas.coordination import LEASE_SECONDS, Notice, NoticeKind
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
            if notice.kind is NoticeKind.RUNNING and heard_at >= now - LEASE_SECONDS:
                # The hand-over's own commit may have failed; the notice says the same.
                assignment.expect(notice.offsets, now)
            if notice.kind is not NoticeKind.LAST_COMMIT or heard_at >= now - LEASE_SECONDS:
                assignment.heed(notice, now)
