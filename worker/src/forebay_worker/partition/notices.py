"""What was heard on the coordination topic, kept for partitions that are assigned a little later. Pure."""

from __future__ import annotations

from collections import deque

import msgspec

from forebay_schemas.contract.coordination import LASTING_KINDS, LEASE_SECONDS, Notice, NoticeKind
from forebay_worker.bounds import BOUNDS, Bounds
from forebay_worker.partition.assignment import Assignment

KEPT_SECONDS = 60.0


class RecentNotices:
    """Notices of the last minute, in the order in which they were heard. Times are monotonic seconds."""

    __slots__ = ("_notices",)

    def __init__(self, bounds: Bounds = BOUNDS) -> None:
        self._notices: deque[tuple[float, float, Notice]] = deque(maxlen=bounds.notices_max)

    def receive(self, notice: Notice, now: float, *, age_seconds: float = 0.0) -> None:
        """Keeps a notice. ``age_seconds``: how long before that it was said."""
        while self._notices and self._notices[0][0] < now - KEPT_SECONDS:
            self._notices.popleft()
        self._notices.append((now, now - age_seconds, notice))

    def apply_to(self, assignment: Assignment, now: float) -> None:
        """Tells a new assignment all that concerns it.

        What a worker said to run, and said afterwards to have ended, is left out: whoever took the request over from
        there may have died while running it, and would be acquitted.
        """
        ended: set[tuple[str, int]] = set()
        concerning: list[Notice] = []
        for _, said_at, notice in reversed(self._notices):
            if (notice.topic, notice.partition) != (assignment.topic, assignment.partition):
                continue
            if notice.kind is NoticeKind.RUNNING:
                running = [offset for offset in notice.offsets if (notice.worker, offset) not in ended]
                notice = msgspec.structs.replace(notice, offsets=running)
            else:
                ended.update((notice.worker, offset) for offset in notice.offsets)
            if notice.kind in LASTING_KINDS or said_at >= now - LEASE_SECONDS:
                concerning.append(notice)
        for notice in reversed(concerning):
            assignment.apply(notice, now)
