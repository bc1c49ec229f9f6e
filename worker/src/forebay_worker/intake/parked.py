"""Requests that were received but must not start yet: retries that are not due, requests that a former owner of the
partition may still run, and records whose schema is not known yet. Pure; the consumer's thread."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

from forebay_worker.bounds import BOUNDS, Bounds
from forebay_worker.partition.assignment import Assignment
from forebay_worker.request.work import Work


class Parked:
    """Retries by due time (monotonic seconds), and withheld requests by offset."""

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
        """Due time of the next retry; None if there is none."""
        return self._due[0][0] if self._due else None

    def hold_until(self, work: Work, due: float) -> None:
        """Parks a retry, or a record to be checked again later."""
        heapq.heappush(self._due, (due, next(self._arrivals), work))
        self._count(work, 1)

    def withhold(self, work: Work) -> None:
        """Withholds a request that a former owner may still run."""
        self._withheld.setdefault(work.assignment, {})[work.offset] = work
        self._count(work, 1)

    def take_due(self, now: float) -> list[Work]:
        """Takes the due retries, soonest first. Those of released partitions are dropped."""
        taken = []
        while self._due and self._due[0][0] <= now:
            work = heapq.heappop(self._due)[2]
            self._count(work, -1)
            if work.assignment.claims.is_open:
                taken.append(work)
        return taken

    def take_early(self, is_wanted: Callable[[Work], bool]) -> list[Work]:
        """Takes the named retries, due or not."""
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
        """Takes the withheld requests of a partition that may run now. Those finished elsewhere are dropped."""
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
        """Whether so many of the partition's records are parked that it should be paused, or stay paused."""
        records, size_bytes = self._records.get(assignment, 0), self._bytes.get(assignment, 0)
        share = 2 if was_full else 1
        bounds = self._bounds
        return records * share >= bounds.parked_records_max or size_bytes * share >= bounds.parked_bytes_max

    def _count(self, work: Work, records: int) -> None:
        assignment = work.assignment
        self._records[assignment] = self._records.get(assignment, 0) + records
        self._bytes[assignment] = self._bytes.get(assignment, 0) + records * work.size_bytes
