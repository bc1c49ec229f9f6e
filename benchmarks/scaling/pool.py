"""A pool of workers over a day: who waits, who runs, how many workers there are. Every request is simulated; no I/O."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from benchmarks.scaling.autoscaler import SYNC_SECONDS, Autoscaler, Pace, Seen
from benchmarks.scaling.day import DAY_SECONDS, Request
from forebay_schemas.contract.tiers import DEFAULT_TIER_TIMES, Tier

SLOTS: Final = 8
"""Requests that one worker runs at a time."""
START_SECONDS: Final = 20
"""From the Deployment's new number to a worker that has its partitions."""
RATE_WINDOW_SECONDS: Final = 300
NEED_WINDOW_SECONDS: Final = 600
NEED_UTILIZATION: Final = 0.85
WARM_SECONDS: Final = 1_800
"""Start of the counting. The day begins with the least replicas, whatever the load."""


@dataclass(slots=True)
class Day:
    """Figures of a day. ``replicas``: one a sync; ``need``: those that serve the load of ten minutes 85 % busy."""

    requests: int = 0
    waited_long: int = 0
    longest_wait_seconds: float = 0.0
    scale_downs: int = 0
    replicas: list[int] = field(default_factory=list)
    work_seconds: list[float] = field(default_factory=list)

    def count(self, waited_seconds: float) -> None:
        """Counts one more request and its wait."""
        self.requests += 1
        self.waited_long += waited_seconds > DEFAULT_TIER_TIMES.wait_seconds(Tier.HIGH)
        self.longest_wait_seconds = max(self.longest_wait_seconds, waited_seconds)

    def need(self, replicas_min: int) -> list[int]:
        """One a sync, knowing what comes: the load is that of the ten minutes around."""
        half = NEED_WINDOW_SECONDS // SYNC_SECONDS // 2
        found = []
        for index in range(len(self.work_seconds)):
            around = self.work_seconds[max(0, index - half) : index + half]
            busy = sum(around) / (len(around) * SYNC_SECONDS * SLOTS)
            found.append(max(replicas_min, math.ceil(busy / NEED_UTILIZATION)))
        return found


class _Pool:
    def __init__(self, replicas: int) -> None:
        self.ready = replicas
        self.waiting: deque[Request] = deque()
        self.running: list[float] = []
        self.served_seconds = self.served = 0.0
        self.enqueued = 0

    def until(self, now: float, day: Day) -> None:
        """Ends requests up to this time, and starts waiting ones in the order in which they came."""
        while self.running and self.running[0] <= now:
            ended_at = heapq.heappop(self.running)
            self._start(ended_at, day)
        self._start(now, day)

    def enqueue(self, request: Request, day: Day) -> None:
        """One more request, which starts at once where a slot is free."""
        self.until(request.at_seconds, day)
        self.enqueued += 1
        self.waiting.append(request)
        self._start(request.at_seconds, day)

    def _start(self, now: float, day: Day) -> None:
        while self.waiting and len(self.running) < self.ready * SLOTS:
            request = self.waiting.popleft()
            if request.at_seconds >= WARM_SECONDS:
                day.count(now - request.at_seconds)
            self.served += 1
            self.served_seconds += request.service_seconds
            heapq.heappush(self.running, now + request.service_seconds)

    def worker_rate(self) -> float | None:
        """Requests a second that one worker serves with all its slots: `forebay_pool_rate / forebay_workers`."""
        return SLOTS * self.served / self.served_seconds if self.served else None


def simulate(requests: Iterable[Request], pace: Pace) -> Day:
    """A day from midnight on, from the least replicas on."""
    day, replicas = Day(), pace.replicas_min
    pool, scaler = _Pool(replicas), Autoscaler(pace)
    starting: deque[tuple[float, int]] = deque()
    scraped: deque[tuple[float, int]] = deque()
    coming = iter(requests)
    following = next(coming, None)
    for now in range(0, DAY_SECONDS, SYNC_SECONDS):
        work_seconds = 0.0
        for second in range(now, now + SYNC_SECONDS):
            while starting and starting[0][0] <= second:
                pool.ready += starting.popleft()[1]
            while following is not None and following.at_seconds < second + 1:
                pool.enqueue(following, day)
                work_seconds += following.service_seconds
                following = next(coming, None)
            pool.until(second + 1, day)
        if now >= WARM_SECONDS:
            day.replicas.append(replicas)
            day.work_seconds.append(work_seconds)
        # Prometheus has what it scraped last: at worst the state of one interval ago.
        scraped.append((now, pool.enqueued))
        while scraped[0][0] < now - RATE_WINDOW_SECONDS:
            scraped.popleft()
        wanted = scaler.sync(now, replicas=replicas, ready=pool.ready, seen=_seen(pool, scraped))
        if wanted > replicas:
            starting.append((now + SYNC_SECONDS + START_SECONDS, wanted - replicas))
        elif wanted < replicas:
            day.scale_downs += now >= WARM_SECONDS
            _end(pool, starting, replicas - wanted)
        replicas = wanted
    return day


def _seen(pool: _Pool, scraped: deque[tuple[float, int]]) -> Seen:
    rate = pool.worker_rate()
    wait_seconds = len(pool.waiting) / (rate * pool.ready) if rate else 0.0
    (first, before), (last, after) = scraped[0], scraped[-1]
    arriving = (after - before) / (last - first) if last > first else None
    return Seen(
        risk=wait_seconds / DEFAULT_TIER_TIMES.wait_seconds(Tier.HIGH),
        busy_workers=arriving / rate if rate and arriving is not None else None,
    )


def _end(pool: _Pool, starting: deque[tuple[float, int]], count: int) -> None:
    # A Deployment ends pods that are not ready first.
    while count and starting:
        at, coming = starting.pop()
        kept = max(0, coming - count)
        count -= coming - kept
        if kept:
            starting.append((at, kept))
    pool.ready -= count
