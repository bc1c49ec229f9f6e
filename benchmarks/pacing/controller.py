"""Costs of pacing: CPU time of the real dispatch while thousands wait. Virtual time, a real CPU clock."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

from benchmarks.pacing.engine import Ledger, VirtualClock
from benchmarks.pacing.lanes_front import make_lanes_front
from benchmarks.pacing.virtual import TICK_SECONDS
from benchmarks.pacing.workloads import Arrival
from forebay_schemas.contract.tiers import TIERS
from forebay_worker.settings import WorkerSettings
from forebay_worker.signals.readings import EngineReading, GpuReading
from forebay_worker.wiring.choices import make_policy

WAITING = 5_000
ANSWERS = 3_000
"""One in each tick: fifty a second, for a minute."""

DAY_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerCost:
    """``dispatch_microseconds``: CPU time for each answer, with what starts in its place. ``core_share``: of a core,
    for what is done without an answer, 50 times a second and less often: sweeps, the overload ladder, the policy."""

    dispatch_microseconds: float
    core_share: float


class _Engine:
    """Takes everything; the measurement says what is answered."""

    def __init__(self) -> None:
        self.running: list[int] = []

    def submit(self, key: int) -> None:
        self.running.append(key)

    def abort(self, key: int) -> None:
        self.running.remove(key)

    def reading(self, now: float) -> EngineReading:
        running = len(self.running)
        return EngineReading(
            at=now,
            running_requests=running,
            waiting_requests=0,
            kv_used_share=0.5,
            preemptions_total=0,
            prompt_tokens_total=5_000 * now,
            output_tokens_total=2_500 * now,
        )

    def gpu(self, now: float) -> GpuReading:
        return GpuReading(at=now, utilisation=1.0, memory_used_share=0.9)


def measure_controller(*, seed: int = 1) -> ControllerCost:
    """Takes some seconds of CPU. Other load on the machine makes the figures larger, by half and more."""
    chance, clock, engine = random.Random(seed), VirtualClock(), _Engine()
    policy = make_policy(WorkerSettings(backend_url="http://127.0.0.1:8000"))
    front = make_lanes_front(engine, Ledger([]), clock, policy=policy)
    keys = 0

    def offer() -> None:
        nonlocal keys
        front.offer(keys, _arrival(chance, clock.now), clock.now)
        keys += 1

    for _ in range(WAITING):
        offer()
    answer_seconds = tick_seconds = 0.0
    for _ in range(ANSWERS):
        clock.now += TICK_SECONDS
        began = time.process_time()
        front.tick(clock.now)
        tick_seconds += time.process_time() - began
        key = engine.running.pop(chance.randrange(len(engine.running)))
        began = time.process_time()
        front.finished(key, clock.now, 500, chance.randint(1, 300))
        answer_seconds += time.process_time() - began
        offer()
    return ControllerCost(
        dispatch_microseconds=1e6 * answer_seconds / ANSWERS, core_share=tick_seconds / (ANSWERS * TICK_SECONDS)
    )


def _arrival(chance: random.Random, now: float) -> Arrival:
    return Arrival(
        at_seconds=now,
        tier=chance.choice(TIERS),
        prompt_tokens=chance.randint(25, 2_000),
        output_tokens=1,
        deadline_seconds=now + DAY_SECONDS,
        hint_max_tokens=2_048,
        biz_type="chat_completion",
        row=0,
    )
