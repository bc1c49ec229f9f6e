"""The parts of a worker that /status shows, without threads and I/O."""

from __future__ import annotations

from typing import Any

import msgspec

from forebay_schemas.contract.reasons import Reason
from forebay_schemas.contract.tiers import TIERS, Tier
from forebay_worker.dispatch.limitations import limitation, limitation_of
from forebay_worker.lanes.lanes import Lanes
from forebay_worker.lanes.tier_shares import TierShares
from forebay_worker.ops.status import (
    breaker_status,
    pacing_status,
    running_status,
    shown,
    tiers_status,
)
from forebay_worker.pacing.gate import Gate
from forebay_worker.pacing.limitation import Limitation
from forebay_worker.pacing.policies.slo_aimd import SloAimd
from forebay_worker.pacing.prediction import Predictor
from forebay_worker.request.work import Answer, Failure
from simulated.dispatch import Stage

TARGET_SECONDS = 0.05
LIMIT = 20
MIB = 1024 * 1024


class StatusStage(Stage):
    """A dispatcher with a limit of 20, of which four are for high alone while high is about."""

    def __init__(self) -> None:
        policy = SloAimd(limit_min=LIMIT, limit_start=LIMIT, limit_max=LIMIT, token_seconds_target=TARGET_SECONDS)
        super().__init__(
            gate=Gate(policy=policy, prefill_seconds_max=1_000.0),
            predictor=Predictor(),
            lanes=Lanes(shares=TierShares(minimum={Tier.MID: 0.0, Tier.LOW: 0.0}, reserve=0.2)),
            buffer_bytes_max=300_000_000,
        )
        self.sharing: dict[str, Any] = {"workers": []}
        self.differing: list[dict[str, str]] = []

    def answer_all(self, *, after_seconds: float, output_tokens: int = 100) -> None:
        self.clock.advance(after_seconds)
        for work in list(self.dispatcher.running.values()):
            self.dispatcher.answered(work, Answer(body={}, prompt_tokens=10, output_tokens=output_tokens))
        self.reporter.delivery.poll()

    def limits(self) -> dict[Tier, str | None]:
        found = {tier: limitation_of(self.dispatcher, tier, self.clock.monotonic()) for tier in TIERS}
        return {tier: None if each is None else each.signal for tier, each in found.items()}

    def limitation(self) -> Limitation | None:
        return limitation(self.dispatcher, self.clock.monotonic())

    def tiers(self) -> dict[Tier, dict[str, Any]]:
        now, now_ms = self.clock.monotonic(), self.clock.wall_ms()
        return tiers_status(self.dispatcher, stats=self.stats, now=now, now_ms=now_ms)

    def document(self) -> dict[str, Any]:
        """The worker's document, as a client reads it."""
        now, now_ms = self.clock.monotonic(), self.clock.wall_ms()
        found = self.limitation()
        document = {
            "worker": "w-1",
            "pool": "test",
            "state": "working",
            "backend": "http",
            "limited_by": shown(found),
            "share_requests": LIMIT,
            "limit_requests": LIMIT,
            "sharing": self.sharing,
            "tier_times": {"ttl_ms": {}, "wait_ms": {}, "differing": self.differing},
            "in_flight_requests": len(self.dispatcher.running),
            "in_flight_bytes": self.dispatcher.slots.memory_bytes,
            "in_flight_bytes_max": 256 * MIB,
            "pacing": pacing_status(self.dispatcher.gate, policy="slo_aimd", now=now),
            "signals": {
                "engine": {
                    "state": "stale",
                    "source": "http://engine/metrics",
                    "age_seconds": 7.5,
                    "error": "HTTP 503",
                    "values": {"running_requests": 3.0, "kv_used_share": None},
                },
                "gpu": {"state": "off", "source": None, "age_seconds": None, "error": None, "values": {}},
            },
            "breaker": breaker_status(self.dispatcher),
            "overload": self.dispatcher.shedder.ladder.status(),
            "undelivered_records": 0,
            "clock": {"skew_ms": 1500},
            "tiers": tiers_status(self.dispatcher, stats=self.stats, now=now, now_ms=now_ms),
            "intakes": {
                "high": {"looked_for": [], "troubles": ["high: no broker"]},
                "mid": {"looked_for": ["forebay.qwen.requests.mid/3"], "troubles": []},
            },
            "running": running_status(self.dispatcher, now=now, now_ms=now_ms),
        }
        read: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(document))
        return read


def fail_all(stage: StatusStage, failure: Failure) -> None:
    stage.fill(Tier.HIGH, LIMIT)
    for work in stage.take_all():
        stage.dispatcher.failed(work, failure)


def http_failure(status: int, reason: Reason) -> Failure:
    return Failure(reason=reason, error=f"HTTP {status}: MY-PRIVATE-PROMPT", http_status=status)
