"""Requests whose outcome this worker has reported: a record that asks for one again is skipped. Pure.

Best effort: bounded in number and age, and another worker's outcomes are not known here. A producer that sends a
request twice, to whatever partition, is mostly caught; who needs certainty takes the first outcome per id.
"""

from __future__ import annotations

from forebay_schemas.bounded import BoundedMap
from forebay_worker.bounds import BOUNDS, Bounds

KNOWN_SECONDS = 600.0

_Key = tuple[str, int]


class ReportedOutcomes:
    """Keyed by request id and replay count: a replayed dead letter is meant to run again. Times: monotonic seconds."""

    __slots__ = ("_reported",)

    def __init__(self, bounds: Bounds = BOUNDS) -> None:
        self._reported: BoundedMap[_Key, float] = BoundedMap(entries_max=bounds.reported_requests_max)

    def __len__(self) -> int:
        return len(self._reported)

    def add(self, request_id: str, replay_count: int, now: float) -> None:
        """A terminal outcome of this request is durable."""
        self._reported.put((request_id, replay_count), now)

    def has(self, request_id: str, replay_count: int, now: float) -> bool:
        """Whether a terminal outcome of this request is known."""
        at = self._reported.get((request_id, replay_count))
        return at is not None and now - at <= KNOWN_SECONDS
