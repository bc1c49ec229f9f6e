"""The lookahead: how many records each intake may take out of Kafka, by how many the backend gets done. Pure; one
thread uses it."""

from __future__ import annotations

import threading

from forebay_schemas.clock import MakeEvent
from forebay_schemas.contract.tiers import TIERS, Tier, TierTimes
from forebay_worker.bounds import BOUNDS, Bounds
from forebay_worker.lanes.lanes import Lanes
from forebay_worker.partition.credit import Credit
from forebay_worker.request.copies import Copies
from forebay_worker.request.memory import RECORD_OVERHEAD_BYTES

RATE_WINDOW_SECONDS = 1.0
RATE_FALL_ALPHA = 0.3
"""A rise counts at once, a fall by this share in each window: a slow backend's answers come in lumps, and each time
that a lane counts as overfull its intake pauses and throws away what it has fetched."""


class Lookahead:
    """Allows each tier what could start before the tier's usual deadline, within its bytes; a few hundred at least.

    Copies of requests that are here count as bytes alone: they wait for no start."""

    def __init__(
        self,
        *,
        lanes: Lanes,
        copies: Copies,
        lane_bytes_max: int,
        tier_times: TierTimes,
        now: float,
        bounds: Bounds = BOUNDS,
        make_event: MakeEvent = threading.Event,
    ) -> None:
        """``make_event``: what an intake waits with for credit."""
        self._bounds = bounds
        self.credits = {
            tier: Credit(capacity_records=bounds.lookahead_records_min, make_event=make_event) for tier in TIERS
        }
        self.retry_credits = {
            tier: Credit(capacity_records=bounds.retry_room_records, make_event=make_event) for tier in TIERS
        }
        self.rate_per_second = 0.0
        """Requests that the backend got done lately."""
        self._lanes = lanes
        self._copies = copies
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
        bounds = self._bounds
        most = min(bytes_max // mean_bytes, bounds.lookahead_records_max)
        capacity = max(bounds.lookahead_records_min, min(wanted, most))
        size_bytes = lane.size_bytes + self._copies.size_bytes[tier]
        room = capacity - len(lane) if size_bytes < bytes_max else 0
        self.credits[tier].allow(
            max(0, room), max(0, bytes_max - size_bytes), capacity_records=capacity, capacity_bytes=bytes_max
        )
        self.retry_credits[tier].allow(
            max(0, min(bounds.retry_room_records, 2 * capacity - len(lane))),
            max(0, 2 * bytes_max - size_bytes),
            capacity_records=bounds.retry_room_records,
            capacity_bytes=bytes_max,
        )
