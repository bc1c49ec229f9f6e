"""Settings become the policy, the gate and the lanes that they ask for."""

from __future__ import annotations

import typing

import pytest

from forebay_schemas.contract.tiers import Tier
from forebay_worker.lanes.order import LaneOrder
from forebay_worker.pacing.policies.fixed import FixedLimit
from forebay_worker.pacing.policies.gpu_target import GpuTarget
from forebay_worker.pacing.policies.gradient2 import Gradient2
from forebay_worker.pacing.policies.latency_ratio import LatencyRatio
from forebay_worker.pacing.policies.slo_aimd import SloAimd
from forebay_worker.pacing.policy import PacingPolicy
from forebay_worker.settings import WorkerSettings
from forebay_worker.wiring.choices import make_gate, make_lanes, make_policy
from simulated.works import make_assignment, make_work

POLICIES = {
    "slo_aimd": SloAimd,
    "latency_ratio": LatencyRatio,
    "gradient2": Gradient2,
    "gpu_target": GpuTarget,
    "fixed": FixedLimit,
}


def settings(**fields: object) -> WorkerSettings:
    return WorkerSettings(backend_url="http://127.0.0.1:8000", **fields)  # type: ignore[arg-type]


def test_each_policy_that_can_be_set_is_known_here() -> None:
    assert set(POLICIES) == set(typing.get_args(WorkerSettings.model_fields["pacing_policy"].annotation))


@pytest.mark.parametrize(("name", "kind"), POLICIES.items())
def test_a_policy_is_made_by_its_name_and_starts_where_it_is_told(name: str, kind: type[PacingPolicy]) -> None:
    policy = make_policy(settings(pacing_policy=name, limit_min=8, limit_start=40, limit_max=100))
    assert type(policy) is kind
    assert policy.limit_requests == (100 if name == "fixed" else 40)


def test_slo_aimd_is_the_default_and_holds_the_time_per_token_that_was_set() -> None:
    assert make_policy(settings(tpot_target_seconds=0.1)).token_seconds_target == 0.1
    assert type(make_policy(settings())) is SloAimd


@pytest.mark.parametrize("name", POLICIES)
def test_a_maximum_below_the_least_is_the_limit(name: str) -> None:
    """limit_min is 4 unless set: FOREBAY_LIMIT_MAX=2 alone is no mistake."""
    policy = make_policy(settings(pacing_policy=name, limit_max=2))
    assert policy.limit_requests == 2
    policy.refused(1.0)
    assert policy.limit_requests in (1, 2)


@pytest.mark.parametrize(("name", "is_blocked"), [("slo_aimd", True), ("gpu_target", True), ("fixed", False)])
def test_prompts_that_wait_in_the_backend_count_but_for_a_fixed_limit(name: str, is_blocked: bool) -> None:
    gate = make_gate(settings(pacing_policy=name, prefill_seconds_max=0.5))
    work = make_work()
    work.prompt_tokens = 100_000
    gate.started(work, 1.0)
    limitation = gate.blocked_by(1.0, 1, 1)
    assert (limitation is not None) == is_blocked
    assert limitation is None or (limitation.signal, limitation.threshold) == ("prefill_seconds", 0.5)


@pytest.mark.parametrize("name", ["slo_aimd", "fixed"])
def test_memory_is_bounded_by_any_policy(name: str) -> None:
    limitation = make_gate(settings(pacing_policy=name)).blocked_by(1.0, 1, 256 * 1024 * 1024)
    assert limitation is not None
    assert limitation.signal == "memory"


def test_the_lanes_have_the_order_the_weights_and_the_shares_that_were_set() -> None:
    lanes = make_lanes(
        settings(
            lane_order=LaneOrder.EDF,
            tenant_weights={"search": 3.0},
            mid_share=0.2,
            low_share=0.1,
            high_reserve_share=0.5,
        )
    )
    mid = make_assignment(Tier.MID)
    for offset, ttl_ms in enumerate((60_000, 10_000, 30_000)):
        lanes.push(make_work(mid, offset=offset, ttl_ms=ttl_ms), 1.0)
    taken = [lanes.pop(1.0, running=dict.fromkeys(Tier, 0), limit=10) for _ in range(3)]
    assert [work.offset for work in taken if work is not None] == [1, 2, 0]
    lanes.push(make_work(make_assignment(Tier.HIGH)), 2.0)
    assert lanes.shares.reserved(2.0, 10) == 5


def test_tenants_go_by_their_weights() -> None:
    lanes = make_lanes(settings(tenant_weights={"search": 3.0}, lane_order=LaneOrder.FIFO))
    mid = make_assignment(Tier.MID)
    for offset in range(400):
        lanes.push(make_work(mid, offset=offset, tenant="search" if offset % 2 else "batch"), 1.0)
    taken = [lanes.pop(1.0, running=dict.fromkeys(Tier, 0), limit=10_000) for _ in range(200)]
    tenants = [work.request.tenant for work in taken if work is not None and work.request is not None]
    assert tenants.count("search") == pytest.approx(150, abs=5)
