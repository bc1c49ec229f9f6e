"""Requests that were received but must not start yet: a retry whose time has not come, one that a former owner of the
partition may still run, one whose schema is not known yet. Pure; the consumer's thread uses it."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

from forebay_worker.bounds import BOUNDS, Bounds
from forebay_worker.partition.assignment import Assignment
from forebay_worker.request.work import Work


class Parked:
    """Holds retries by the time they are due (monotonic seconds), and withheld requests by their offset."""

    __slots__ = ("_arrivals", "_bounds", "_bytes", "_due", "_records", "_withheld")

    def __init__(self, bounds: Bounds = BOUNDS) -> None:
        self._bounds = bounds
        self._due: list[tuple[float, int, Work]] = []
        self._arrivals = count()
        self._withheld: dict[Assignment, dict[int, Work]] = {}
        self._records: dict[Assignment, int] = {}
        self._bytes: dict[Assignment, int] = {}

    def __len__(self) -> int:
        return sum(self._records.values())

    @property
    def next_due(self) -> float | None:
        """When the next retry is due; None when none is held."""
        return self._due[0][0] if self._due else None

    def hold_until(self, work: Work, due: float) -> None:
        """Holds a retry, or a record that is to be looked at again."""
        heapq.heappush(self._due, (due, next(self._arrivals), work))
        self._count(work, 1)

    def withhold(self, work: Work) -> None:
        """Holds a request that a former owner may still run."""
        self._withheld.setdefault(work.assignment, {})[work.offset] = work
        self._count(work, 1)

    def take_due(self, now: float) -> list[Work]:
        """The retries whose time has come, soonest first; those of partitions that were given up are dropped."""
        taken = []
        while self._due and self._due[0][0] <= now:
            work = heapq.heappop(self._due)[2]
            self._count(work, -1)
            if work.assignment.claims.is_open:
                taken.append(work)
        return taken

    def take_early(self, is_wanted: Callable[[Work], bool]) -> list[Work]:
        """The retries that are wanted, whether they are due or not."""
        taken: list[tuple[float, int, Work]] = []
        kept: list[tuple[float, int, Work]] = []
        for entry in self._due:
            (taken if is_wanted(entry[-1]) else kept).append(entry)
        if taken:
            heapq.heapify(kept)
            self._due = kept
        for _, _, work in taken:
            self._count(work, -1)
        return [work for _, _, work in taken]

    def take_released(self, assignment: Assignment) -> list[Work]:
        """The withheld requests of a partition that may run after all; those finished elsewhere are dropped."""
        withheld = self._withheld.get(assignment)
        if not withheld:
            return []
        released = []
        for offset in [offset for offset in withheld if not assignment.is_withheld(offset)]:
            work = withheld.pop(offset)
            self._count(work, -1)
            if not assignment.is_finished(offset):
                released.append(work)
        if not withheld:
            del self._withheld[assignment]
        return released

    def drop_withheld(self, assignment: Assignment) -> None:
        """Forgets the withheld requests of a partition; its retries are kept."""
        for work in self._withheld.pop(assignment, {}).values():
            self._count(work, -1)

    def drop(self, assignment: Assignment) -> None:
        """Forgets a partition that was given up."""
        self._due = [entry for entry in self._due if entry[2].assignment is not assignment]
        heapq.heapify(self._due)
        for held in (self._withheld, self._records, self._bytes):
            held.pop(assignment, None)

    def is_full(self, assignment: Assignment, *, was_full: bool) -> bool:
        """Whether so much of the partition is held that it should be paused, or stay so."""
        records, size_bytes = self._records.get(assignment, 0), self._bytes.get(assignment, 0)
        share = 2 if was_full else 1
        bounds = self._bounds
        return records * share >= bounds.parked_records_max or size_bytes * share >= bounds.parked_bytes_max

    def _count(self, work: Work, records: int) -> None:
        assignment = work.assignment
        self._records[assignment] = self._records.get(assignment, 0) + records
        self._bytes[assignment] = self._bytes.get(assignment, 0) + records * work.size_bytes
