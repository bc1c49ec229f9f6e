"""The wait of a new request of each tier in this worker, and how far estimates were from actual waits. Pure; one
thread; times are monotonic seconds that the caller passes in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from forebay_schemas.contract.tiers import TIERS, Tier
from forebay_schemas.estimate.accuracy import RecentRate, WaitAccuracy
from forebay_schemas.estimate.pool import mixed_cost
from forebay_schemas.estimate.waits import TierLoad, raw_waits
from forebay_worker.lanes.lanes import Lanes
from forebay_worker.request.work import Work

SAMPLE_SECONDS: Final = 0.05
"""Least time between two arrivals whose wait is estimated: an estimate costs 15 µs, and 200 starts are kept."""

SERVICE_ALPHA: Final = 0.05


class WaitEstimates:
    """``work_seconds``: what each lane holds, empty while too little is known. ``turn_seconds``: what a request takes
    of this worker's time, given its seconds from start to end. ``open_slots``: how many requests of a tier could start
    at a moment."""

    def __init__(
        self,
        *,
        lanes: Lanes,
        work_seconds: Callable[[], Mapping[Tier, float]],
        turn_seconds: Callable[[float], float],
        open_slots: Callable[[Tier, float], int],
    ) -> None:
        self.accuracy = WaitAccuracy()
        self._lanes = lanes
        self._work_seconds = work_seconds
        self._turn_seconds = turn_seconds
        self._open_slots = open_slots
        self._arrivals: dict[Tier, RecentRate] = {}
        self._service_seconds: dict[Tier, float] = {}
        self._answers = dict.fromkeys(TIERS, 0)
        self._sampled_at = float("-inf")

    def received(self, tier: Tier, requests: int, now: float) -> None:
        """Requests of a tier came."""
        rate = self._arrivals.get(tier)
        if rate is None:
            rate = self._arrivals[tier] = RecentRate(now)
        rate.add(now, requests)

    def arrived(self, work: Work, now: float) -> None:
        """A request is about to join its lane. Estimates the wait of some."""
        if now - self._sampled_at < SAMPLE_SECONDS:
            return
        self._sampled_at = now
        wait_seconds = self.waits(now).get(work.assignment.tier)
        if wait_seconds is not None:
            work.estimated_wait_seconds = wait_seconds

    def started(self, work: Work, now: float) -> None:
        """A request started: compares its wait with the estimate, if there was one."""
        if work.estimated_wait_seconds >= 0:
            self.accuracy.started(
                work.assignment.tier,
                estimated_seconds=work.estimated_wait_seconds,
                actual_seconds=max(0.0, now - work.arrived),
            )
            work.estimated_wait_seconds = -1.0

    def answered(self, tier: Tier, service_seconds: float) -> None:
        """The backend answered a request of a tier."""
        self._answers[tier] += 1
        before = self._service_seconds.get(tier, service_seconds)
        alpha = max(SERVICE_ALPHA, 1 / self._answers[tier])
        self._service_seconds[tier] = before + alpha * (service_seconds - before)

    def service_seconds(self, tier: Tier) -> float | None:
        """The mean time from start to end of the tier's last requests; None before the first answer."""
        return self._service_seconds.get(tier)

    def arriving(self, tier: Tier, now: float) -> float:
        """Seconds of this worker's work that arrive in a second, the mean of ten; 0 while the cost is not known."""
        rate = self._arrivals.get(tier)
        return 0.0 if rate is None else rate.per_second(now) * self._request_seconds(tier)

    def _request_seconds(self, tier: Tier) -> float:
        """What one request takes, as `estimate.pool` computes it."""
        seconds = self._service_seconds.get(tier)
        ended = None if seconds is None else self._turn_seconds(seconds)
        waiting = len(self._lanes[tier])
        work = self._work_seconds().get(tier, 0.0) if waiting else 0.0
        if not work:
            return ended or 0.0
        return work / waiting if ended is None else mixed_cost(waiting, work, ended)

    def open_slots(self, tier: Tier, now: float) -> int:
        """How many more of its requests could start at once."""
        return self._open_slots(tier, now)

    def waits(self, now: float) -> dict[Tier, float]:
        """The uncorrected wait of a new request of each tier; empty while too little is known of the backend."""
        work_seconds = self._work_seconds()
        if not work_seconds:
            return {}
        lanes = self._lanes
        loads = {
            tier: TierLoad(
                waiting_requests=len(lanes[tier]),
                work_seconds=work_seconds.get(tier, 0.0),
                request_seconds=self._request_seconds(tier),
                arriving=self.arriving(tier, now),
                open_slots=self._open_slots(tier, now) if len(lanes[tier]) else 0,
            )
            for tier in TIERS
        }
        return raw_waits(loads, minimum_shares=lanes.shares.minimum)
