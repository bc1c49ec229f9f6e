"""The lookahead: how many records each intake may take out of Kafka, by how many the backend gets done. Pure; one
thread uses it."""

from __future__ import annotations

from forebay_schemas.contract.tiers import TIERS, Tier, TierTimes
from forebay_worker.lanes.lanes import RECORD_OVERHEAD_BYTES, Lanes
from forebay_worker.partition.credit import Credit

LOOKAHEAD_RECORDS_MIN = 256
"""Ordering needs candidates: a window of 1 / 16 / 64 / 256 gave .55 / .65 / .74 / .79 of the bound (measured)."""

RETRY_ROOM_RECORDS = 256
"""Due retries may join a full lane, up to twice its capacity: they never queue at a tail again."""

RATE_WINDOW_SECONDS = 1.0
RATE_FALL_ALPHA = 0.3
"""A rise counts at once, a fall by this share in each window: a slow backend's answers come in lumps, and each time
that a lane counts as overfull its intake pauses and throws away what it has fetched."""


class Lookahead:
    """Allows each tier what could start before the tier's usual deadline, 256 records at least, within its bytes."""

    def __init__(self, *, lanes: Lanes, lane_bytes_max: int, tier_times: TierTimes, now: float) -> None:
        self.credits = {tier: Credit(capacity_records=LOOKAHEAD_RECORDS_MIN) for tier in TIERS}
        self.retry_credits = {tier: Credit(capacity_records=RETRY_ROOM_RECORDS) for tier in TIERS}
        self.rate_per_second = 0.0
        """Requests that the backend got done lately."""
        self._lanes = lanes
        self._lane_bytes_max = lane_bytes_max
        self._tier_times = tier_times
        self._since = now
        self._count = 0
        self.allow_all()

    def ended(self) -> None:
        """The backend is done with a request."""
        self._count += 1

    def step(self, now: float) -> None:
        """Measures the rate; many times a second. ``now``: monotonic seconds."""
        passed = now - self._since
        if passed >= RATE_WINDOW_SECONDS:
            measured, known = self._count / passed, self.rate_per_second
            self.rate_per_second = max(measured, known + RATE_FALL_ALPHA * (measured - known))
            self._since, self._count = now, 0

    def allow_all(self) -> None:
        """Lets every intake take what there is room for now."""
        for tier in TIERS:
            self.allow(tier)

    def allow(self, tier: Tier) -> None:
        """Lets a tier's intakes take what there is room for now."""
        lane = self._lanes[tier]
        wanted = int(self.rate_per_second * self._tier_times.ttl_seconds(tier))
        mean_bytes = lane.size_bytes // len(lane) if len(lane) else RECORD_OVERHEAD_BYTES
        bytes_max = self._lane_bytes_max
        capacity = max(LOOKAHEAD_RECORDS_MIN, min(wanted, bytes_max // mean_bytes))
        room = capacity - len(lane) if lane.size_bytes < bytes_max else 0
        self.credits[tier].allow(
            max(0, room), max(0, bytes_max - lane.size_bytes), capacity_records=capacity, capacity_bytes=bytes_max
        )
        self.retry_credits[tier].allow(
            max(0, min(RETRY_ROOM_RECORDS, 2 * capacity - len(lane))),
            max(0, 2 * bytes_max - lane.size_bytes),
            capacity_records=RETRY_ROOM_RECORDS,
            capacity_bytes=bytes_max,
        )
