"""Recent notices of the coordination topic, kept for partitions that are assigned a little later. Pure."""

from __future__ import annotations

from collections import deque

import msgspec

from forebay_schemas.contract.coordination import LASTING_KINDS, LEASE_SECONDS, Notice, NoticeKind
from forebay_worker.bounds import BOUNDS, Bounds
from forebay_worker.partition.assignment import Assignment

KEPT_SECONDS = 60.0


class RecentNotices:
    """Notices of the last minute, in the order received. Times are monotonic seconds."""

    __slots__ = ("_notices",)

    def __init__(self, bounds: Bounds = BOUNDS) -> None:
        self._notices: deque[tuple[float, float, Notice]] = deque(maxlen=bounds.notices_max)

    def receive(self, notice: Notice, now: float, *, age_seconds: float = 0.0) -> None:
        """Keeps a notice. ``age_seconds``: its age when received."""
        while self._notices and self._notices[0][0] < now - KEPT_SECONDS:
            self._notices.popleft()
        self._notices.append((now, now - age_seconds, notice))

    def apply_to(self, assignment: Assignment, now: float) -> None:
        """Applies to a new assignment the notices about it.

        Leaves out offsets that a worker named as running and later as ended. The next owner of such a request may have
        died while it ran it, and the old notice would hide that crash.
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
