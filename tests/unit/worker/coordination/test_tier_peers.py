"""Deadlines and waits of a pool's workers: one that differs is warned of once and shown while it is there."""

from __future__ import annotations

from typing import Any

from structlog.testing import capture_logs

from forebay_schemas.contract.coordination import GONE_SECONDS
from forebay_schemas.contract.tiers import DEFAULT_TIER_TIMES, TIERS, Tier, tier_times
from forebay_worker.coordination.tier_peers import TierPeers
from simulated.capacities import make_capacity

LONG = tier_times({Tier.HIGH: 60_000}, {})
SAID = "FOREBAY_TIER_TTL_MS high 5000 against 60000"


def warned(logs: list[Any]) -> list[tuple[str, str]]:
    return [(entry["worker"], entry["differs"]) for entry in logs if entry["log_level"] == "warning"]


def test_who_differs_is_named_once_whatever_its_backend_and_forgotten_when_it_is_gone() -> None:
    peers = TierPeers(worker="w", times=DEFAULT_TIER_TIMES)
    with capture_logs() as logs:
        for second in range(5):
            peers.receive(make_capacity("w", DEFAULT_TIER_TIMES), now=second, age_seconds=0)
            peers.receive(make_capacity("same", DEFAULT_TIER_TIMES), now=second, age_seconds=0)
            peers.receive(make_capacity("other", LONG), now=second, age_seconds=0)
    assert warned(logs) == [("other", SAID)]
    status = peers.status(5)
    assert status["differing"] == [{"worker": "other", "difference": SAID}]
    assert status["ttl_ms"] == {tier: DEFAULT_TIER_TIMES.ttl_ms[tier] for tier in TIERS}
    assert peers.status(4 + GONE_SECONDS)["differing"] == []


def test_a_worker_that_leaves_or_comes_round_differs_no_more() -> None:
    peers = TierPeers(worker="w", times=DEFAULT_TIER_TIMES)
    with capture_logs() as logs:
        peers.receive(make_capacity("a", LONG), now=0, age_seconds=0)
        peers.receive(make_capacity("a", DEFAULT_TIER_TIMES), now=1, age_seconds=0)
        peers.receive(make_capacity("b", LONG), now=1, age_seconds=0)
        peers.receive(make_capacity("b", LONG, draining=True), now=2, age_seconds=0)
        peers.receive(make_capacity("c", LONG), now=2, age_seconds=GONE_SECONDS)
    assert peers.status(2)["differing"] == []
    assert [worker for worker, _ in warned(logs)] == ["a", "b"]
