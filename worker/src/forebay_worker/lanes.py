"""The lanes: requests that wait in this worker, one lane per tier, in order of urgency. Pure; one thread uses it."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from itertools import count

from forebay_schemas.tiers import TIERS, Tier
from forebay_worker.work import Work

RECORD_OVERHEAD_BYTES = 1_500
"""What a waiting request costs in memory beyond its value (measured: objects of confluent-kafka, msgspec and ours)."""


def cost_bytes(works: Iterable[Work]) -> int:
    """What requests take in memory while they wait."""
    return sum(work.size_bytes + RECORD_OVERHEAD_BYTES for work in works)


class Lane:
    """One tier's waiting requests: by the integer priority, then in order of arrival."""

    __slots__ = ("_arrivals", "_heap", "size_bytes")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Work]] = []
        self._arrivals = count()
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, work: Work) -> None:
        """Adds a request behind those of the same priority."""
        heapq.heappush(self._heap, (-work.priority, next(self._arrivals), work))
        self.size_bytes += work.size_bytes + RECORD_OVERHEAD_BYTES

    def pop(self) -> Work:
        """Takes the most urgent one. Raises IndexError when the lane is empty."""
        work = heapq.heappop(self._heap)[2]
        self.size_bytes -= work.size_bytes + RECORD_OVERHEAD_BYTES
        return work

    def remove(self, entry: tuple[int, int, Work]) -> Work:
        """Takes out one entry, wherever it stands."""
        self._heap.remove(entry)
        heapq.heapify(self._heap)
        work = entry[2]
        self.size_bytes -= work.size_bytes + RECORD_OVERHEAD_BYTES
        return work

    def remove_expired(self, now_ms: int) -> list[Work]:
        """Takes out those whose deadline has passed, and silently those whose partition was given up."""
        heap = self._heap
        if not any(work.deadline_ms <= now_ms or not work.assignment.claims.is_open for _, _, work in heap):
            return []
        kept, expired = [], []
        for entry in heap:
            work = entry[2]
            if not work.assignment.claims.is_open:
                continue
            if work.deadline_ms <= now_ms:
                expired.append(work)
            else:
                kept.append(entry)
        heapq.heapify(kept)
        self._heap = kept
        self.size_bytes = cost_bytes(work for _, _, work in kept)
        return expired


class Lanes:
    """All lanes of a worker; strict priority across tiers: high before mid before low."""

    __slots__ = ("_lanes", "_ordered")

    def __init__(self) -> None:
        self._lanes = {tier: Lane() for tier in TIERS}
        self._ordered = tuple(self._lanes.values())

    def __len__(self) -> int:
        return sum(len(lane) for lane in self._ordered)

    def __bool__(self) -> bool:
        for lane in self._ordered:  # noqa: SIM110 - any() with a generator costs a microsecond, once a request
            if lane._heap:
                return True
        return False

    def __getitem__(self, tier: Tier) -> Lane:
        return self._lanes[tier]

    def push(self, work: Work) -> None:
        """Adds a request to its tier's lane."""
        self._lanes[work.assignment.tier].push(work)

    def pop(self) -> Work | None:
        """Takes the request to run next; None when all lanes are empty."""
        for lane in self._ordered:
            if lane._heap:
                return lane.pop()
        return None

    def pop_probe(self) -> Work | None:
        """Takes the request to try a broken backend with: one that never failed, else the one that failed longest ago.

        The next one by urgency would not do: a request that breaks the backend goes back to the head of its lane, and
        if it were each probe, no other would ever be tried.
        """
        candidates = (
            (entry[2].failed_at, rank, entry) for rank, lane in enumerate(self._ordered) for entry in lane._heap
        )
        best = min(candidates, default=None)
        return None if best is None else self._ordered[best[1]].remove(best[2])

    def remove_expired(self, now_ms: int) -> list[Work]:
        """Takes out every request whose deadline has passed."""
        return [work for lane in self._ordered for work in lane.remove_expired(now_ms)]
