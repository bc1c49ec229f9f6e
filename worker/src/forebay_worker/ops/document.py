"""Assembles the document of /status from the parts. Reads and changes nothing; the event loop's thread."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from forebay_worker.cluster.broker_clock import BrokerClock
from forebay_worker.coordination.handover import HandOvers
from forebay_worker.coordination.slot_sharing import SlotSharing
from forebay_worker.dispatch.dispatcher import Dispatcher
from forebay_worker.dispatch.limitations import limitation
from forebay_worker.intake.intake import Intake
from forebay_worker.ops.run_state import RunState
from forebay_worker.ops.status import (
    breaker_status,
    pacing_status,
    running_status,
    shown,
    tiers_status,
)
from forebay_worker.outcome.delivery import Delivery
from forebay_worker.signals.poller import Signals
from forebay_worker.telemetry.stats import Stats


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusDocument:
    """``backend``: "http" or "handler"; ``policy``: the pacing policy's name."""

    worker_id: str
    pool: str
    backend: str
    policy: str
    in_flight_bytes_max: int
    state: RunState
    clock: BrokerClock
    dispatcher: Dispatcher
    sharer: SlotSharing
    signals: Signals
    delivery: Delivery
    hand_overs: HandOvers
    stats: Stats
    intakes: Mapping[str, Intake]

    def write(self) -> dict[str, Any]:
        """The present document."""
        now, now_ms = self.clock.monotonic(), self.clock.wall_ms()
        dispatcher = self.dispatcher
        return {
            "worker": self.worker_id,
            "pool": self.pool,
            "state": self.state.name,
            "backend": self.backend,
            "limited_by": shown(limitation(dispatcher, now)),
            "share_requests": dispatcher.gate.share_requests,
            "limit_requests": dispatcher.gate.limit_requests,
            "in_flight_requests": len(dispatcher.running),
            "in_flight_bytes": dispatcher.slots.memory_bytes,
            "in_flight_bytes_max": self.in_flight_bytes_max,
            "pacing": pacing_status(dispatcher.gate, policy=self.policy, now=now),
            "sharing": self.sharer.status(now),
            "tier_times": self.sharer.tier_peers.status(now),
            "signals": self.signals.sources(now),
            "breaker": breaker_status(dispatcher),
            "overload": dispatcher.shedder.ladder.status(),
            "controls_remembered": len(dispatcher.controls.entries),
            "undelivered_records": self.delivery.undelivered_records,
            "clock": self.clock.status(),
            "tiers": tiers_status(dispatcher, stats=self.stats, now=now, now_ms=now_ms),
            "intakes": {name: _of_intake(intake) for name, intake in self.intakes.items()},
            "handed_over_running": self.hand_overs.running_count,
            "running": running_status(dispatcher, now=now, now_ms=now_ms),
        }


def _of_intake(intake: Intake) -> dict[str, Any]:
    return {
        "assigned": intake.assigned,
        "held_records": intake.held_records,
        "looked_for": intake.looked_for,
        "unfinished_records": intake.unfinished_records,
        "troubles": intake.troubles,
    }
