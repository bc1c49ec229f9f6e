"""This worker's part in sharing its backend: receives the other workers' capacities, publishes its own, and sets the
gate's share. The event loop's thread; reaches Kafka through ``send`` alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import structlog

from forebay_schemas.clock import Clock
from forebay_schemas.contract.coordination import (
    CAPACITY_SECONDS,
    PER_SECOND_MAX,
    REQUESTS_MAX,
    SECONDS_MAX,
    SERVICE_SECONDS_MIN,
    Capacity,
)
from forebay_schemas.contract.tiers import TIERS, Tier
from forebay_schemas.contract.worker_load import with_load
from forebay_worker.coordination.load_report import load_report
from forebay_worker.coordination.tier_peers import TierPeers
from forebay_worker.dispatch.breaker import BreakerState
from forebay_worker.dispatch.dispatcher import Dispatcher
from forebay_worker.pacing.slots.sharing import SILENT_SECONDS, Own, Sharing

STEP_SECONDS = 0.1
RATE_ALPHA = 0.3
"""A mean of about three seconds."""

log = structlog.get_logger("forebay.sharing")

SendCapacity = Callable[[Capacity, Callable[[bool], None]], None]


class SlotSharing:
    """Connects `Sharing`, which decides, with dispatch."""

    def __init__(self, *, sharing: Sharing, dispatcher: Dispatcher, clock: Clock, send: SendCapacity) -> None:
        """``send`` produces a record and calls back with whether it was delivered, on the event loop's thread."""
        self.sharing = sharing
        self.tier_peers = TierPeers(worker=sharing.worker, times=sharing.tier_times)
        self._dispatcher = dispatcher
        self._clock = clock
        self._send = send
        self._step_at = float("-inf")
        self._began_at = self._counted_at = clock.monotonic()
        self._counted = 0
        self._ended_per_second = 0.0
        self._has_logged_failure = self._has_logged_twin = False
        # Nothing starts before the other workers are known.
        dispatcher.gate.shares(share_requests=0, others=sharing.others, common_limit=None, silent_seconds=None)

    def receive(self, capacity: Capacity, age_seconds: float) -> None:
        """Receives a worker's capacity, this worker's own included, in the topic's order. No content can stop the
        worker."""
        now = self._clock.monotonic()
        self.tier_peers.receive(capacity, now=now, age_seconds=age_seconds)
        try:
            cut_to = self.sharing.receive(capacity, now=now, age_seconds=age_seconds)
            if cut_to is not None:
                self._dispatcher.gate.cut_to(cut_to, now, self._clock.wall_ms())
        except Exception as error:  # noqa: BLE001 - whatever it was, the worker has other work
            self._log_failure(error)
        if self.sharing.has_twin and not self._has_logged_twin:
            self._has_logged_twin = True
            log.warning(
                "another worker of the same id is running; give each its own FOREBAY_WORKER_ID", worker=capacity.worker
            )
        self._step_at = now

    def step(self, now: float) -> None:
        """Applies received capacities and the present demand; call it many times a second. If it fails nothing starts:
        while this worker publishes nothing, the others may take its share."""
        if now < self._step_at:
            return
        self._step_at = now + STEP_SECONDS
        self._count_ended(now)
        try:
            self._follow(now)
        except Exception as error:  # noqa: BLE001 - whatever it was, the worker has other work
            self._log_failure(error)
            self._dispatcher.gate.shares(
                share_requests=0, others=self.sharing.others, common_limit=None, silent_seconds=None
            )

    def _follow(self, now: float) -> None:
        own = self._own()
        model, known_seconds = self._dispatcher.gate.model, self.sharing.known_seconds
        if model.token_seconds is None and known_seconds is not None:
            model.start_from(known_seconds)
        now_ms = self._clock.wall_ms()
        sharing = self.sharing
        said = sharing.step(now, now_ms, own)
        if said is not None:
            self._send(with_load(said, load_report(self._dispatcher, now)), lambda _: sharing.delivered())
        others = sharing.others
        silent_seconds = now - max(sharing.read_own_at, self._began_at)
        self._dispatcher.gate.shares(
            share_requests=sharing.share_requests,
            others=others,
            common_limit=sharing.common_limit(own, now_ms) if others.workers else None,
            silent_seconds=silent_seconds if silent_seconds > SILENT_SECONDS else None,
        )

    def _log_failure(self, error: Exception) -> None:
        if not self._has_logged_failure:
            self._has_logged_failure = True
            log.error("sharing failed; going on", error=str(error), exc_info=error)

    def leave(self) -> None:
        """Publishes that this worker leaves."""
        self._send(self.sharing.farewell(self._clock.monotonic(), self._own()), lambda _: None)

    def status(self, now: float) -> dict[str, Any]:
        """For /status: the workers that share the backend, as received."""
        gate, read_at = self._dispatcher.gate, self.sharing.read_own_at
        return {
            "limit_requests": gate.limit_requests,
            "share_requests": gate.share_requests,
            "heard_itself_seconds": round(now - read_at, 1) if math.isfinite(read_at) else None,
            "workers": [
                {
                    "worker": member.worker,
                    "share_requests": member.share_requests,
                    "in_flight_requests": member.in_flight,
                    "wanted": {tier: member.wanted.get(tier, 0) for tier in TIERS},
                    "limit_requests": round(member.limit_requests, 1),
                    "draining": member.draining,
                }
                for member in self.sharing.members
            ],
        }

    def _own(self) -> Own:
        """Keeps the figures within the bounds of `Capacity`, so that readers accept them."""
        dispatcher = self._dispatcher
        service_seconds, fitted = dispatcher.shedder.service_seconds, dispatcher.gate.model.fitted_seconds
        return Own(
            limit_requests=dispatcher.gate.policy.limit_exact,
            in_flight=len(dispatcher.running),
            wanted={tier: min(REQUESTS_MAX, wanted) for tier, wanted in self._wanted().items()},
            ended_per_second=min(PER_SECOND_MAX, round(self._ended_per_second, 3)),
            service_seconds=None
            if service_seconds is None
            else min(max(SERVICE_SECONDS_MIN, service_seconds), SECONDS_MAX),
            dropped_total=dispatcher.dropped_total,
            cuts_total=dispatcher.gate.policy.hard_cuts,
            fitted_seconds=None
            if fitted is None
            else (min(SECONDS_MAX, fitted[0]), min(SECONDS_MAX, fitted[1]), min(SECONDS_MAX, fitted[2])),
            draining=dispatcher.stopping,
        )

    def _wanted(self) -> dict[Tier, int]:
        """The wanted slots. A worker that its backend does not serve wants only a probe, and leaves the other slots to
        workers that may reach it."""
        dispatcher, lanes = self._dispatcher, self._dispatcher.lanes
        wanted = dict(dispatcher.slots.by_tier)
        if dispatcher.breaker.state is BreakerState.CLOSED:
            return {tier: running + len(lanes[tier]) for tier, running in wanted.items()}
        probed = next((tier for tier in TIERS if len(lanes[tier])), None)
        if probed is not None:
            wanted[probed] += 1
        return wanted

    def _count_ended(self, now: float) -> None:
        seconds = now - self._counted_at
        if seconds < CAPACITY_SECONDS:
            return
        ended = self._dispatcher.ended_total
        self._ended_per_second += RATE_ALPHA * ((ended - self._counted) / seconds - self._ended_per_second)
        self._counted_at, self._counted = now, ended
