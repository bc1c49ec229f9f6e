"""The contestants: each policy behind each form of front, by the name that the results carry. Pure."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.pacing.engine import Engine, Ledger, VirtualClock
from benchmarks.pacing.fronts import FifoFront, NoBuffer
from benchmarks.pacing.lanes_front import make_lanes_front
from benchmarks.pacing.virtual import Front, MakeFront
from forebay_sandbox.engine.physics import EnginePhysics
from forebay_worker.pacing.policies.fixed import FixedLimit
from forebay_worker.pacing.policies.gpu_target import GpuTarget
from forebay_worker.pacing.policies.gradient2 import Gradient2
from forebay_worker.pacing.policies.latency_ratio import LatencyRatio
from forebay_worker.pacing.policies.slo_aimd import SloAimd
from forebay_worker.pacing.policy import PacingPolicy
from forebay_worker.settings import WorkerSettings

LIMIT_MIN, LIMIT_START, TOKEN_SECONDS_TARGET = (
    WorkerSettings.model_fields[name].default for name in ("limit_min", "limit_start", "tpot_target_seconds")
)
FIXED_LIMITS = (8, 16, 32, 64, 128, 256)
NO_BUFFER = "no_buffer"
OURS = "slo_aimd+lanes"

MakePolicy = Callable[[EnginePhysics], PacingPolicy]
MakeForm = Callable[[EnginePhysics, MakePolicy], MakeFront]


def _fixed(limit_requests: int) -> MakePolicy:
    return lambda _engine: FixedLimit(limit_requests=limit_requests)


POLICIES: dict[str, MakePolicy] = {
    "slo_aimd": lambda engine: SloAimd(
        limit_min=LIMIT_MIN,
        limit_start=LIMIT_START,
        limit_max=engine.max_num_seqs,
        token_seconds_target=TOKEN_SECONDS_TARGET,
    ),
    "latency_ratio": lambda engine: LatencyRatio(
        limit_min=LIMIT_MIN, limit_start=LIMIT_START, limit_max=engine.max_num_seqs
    ),
    "gradient2": lambda engine: Gradient2(limit_min=LIMIT_MIN, limit_start=LIMIT_START, limit_max=engine.max_num_seqs),
    "gpu_target": lambda engine: GpuTarget(limit_min=LIMIT_MIN, limit_start=LIMIT_START, limit_max=engine.max_num_seqs),
    **{f"fixed_{limit}": _fixed(limit) for limit in FIXED_LIMITS},
}


def _plain(engine: EnginePhysics, make_policy: MakePolicy) -> MakeFront:
    def make(port: Engine, ledger: Ledger, _clock: VirtualClock) -> Front:
        return FifoFront(port, ledger, policy=make_policy(engine), prefill_token_seconds=engine.c_seconds)

    return make


def _with_lanes(engine: EnginePhysics, make_policy: MakePolicy) -> MakeFront:
    def make(port: Engine, ledger: Ledger, clock: VirtualClock) -> Front:
        return make_lanes_front(port, ledger, clock, policy=make_policy(engine))

    return make


FORMS: dict[str, MakeForm] = {"": _plain, "+lanes": _with_lanes}
"""By the suffix of the name: as its users run it (first come, first served, the expired dropped), or otherwise."""


def names() -> list[str]:
    """All contestants."""
    return [NO_BUFFER, *(f"{policy}{form}" for form in FORMS for policy in POLICIES)]


def front_of(name: str, engine: EnginePhysics) -> MakeFront:
    """Raises ``KeyError`` for a name that is none of `names`."""
    if name == NO_BUFFER:
        return lambda port, ledger, _clock: NoBuffer(port, ledger)
    policy, plus, form = name.partition("+")
    return FORMS[plus + form](engine, POLICIES[policy])


def sees_hints(name: str) -> bool:
    """Whether it uses the requests' hints of their length."""
    return "+" in name
