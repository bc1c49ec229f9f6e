"""Runs a front (what stands between the clients and the engine) in virtual time. No real clock, no I/O.

Fronts reach the engine by `Engine` and report their drops to `Ledger`. The driver calls them at arrivals, answers,
refusals, every 20 ms as the worker's loop does, and once a second as its pacer does.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import count
from typing import Protocol

from benchmarks.pacing.engine import CONNECTION_LOST, Engine, Fault, Ledger, VirtualClock, VirtualEngine
from benchmarks.pacing.workloads import Arrival
from forebay_sandbox.engine.physics import EnginePhysics

TICK_SECONDS = 0.02
POLICY_SECONDS = 1.0
REFUSAL_SECONDS = 0.001
"""Delay between a submit and its refusal. Without it a front could try for ever in one instant."""


class Front(Protocol):
    """Decides what goes to the engine and when. All times are seconds since the run began."""

    @property
    def waiting(self) -> int:
        """Requests that it holds back."""
        ...

    @property
    def limit_requests(self) -> int:
        """Limit of requests in flight; 0: none."""
        ...

    def offer(self, key: int, arrival: Arrival, now: float) -> None: ...

    def tick(self, now: float) -> None:
        """Every 20 ms."""
        ...

    def step(self, now: float) -> str | None:
        """Once a second. Returns why the limit changed, if it did."""
        ...

    def finished(self, key: int, now: float, prompt_tokens: int, output_tokens: int) -> None: ...

    def refused(self, key: int, now: float, status: int) -> None: ...


MakeFront = Callable[[Engine, Ledger, VirtualClock], Front]
"""Builds a front for one run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One look at a run, once a second, after the policy's step. ``gpu_share``: of the last second."""

    at_seconds: float
    limit_requests: int
    in_flight: int
    waiting: int
    kv_share: float
    gpu_share: float
    work_share: float
    """Work done in the last second, at the cost that it has in a full batch: 1 is all that the engine can do."""


@dataclass(slots=True, kw_only=True)
class Run:
    """Ledger, samples and counts of a run."""

    ledger: Ledger
    physics: EnginePhysics
    samples: list[Sample] = field(default_factory=list)
    causes: list[tuple[float, str]] = field(default_factory=list)
    """Changes of the limit by the second's step."""
    limit_changes: int = 0
    refusals: int = 0
    preemptions: int = 0
    ended_seconds: float = 0.0
    done_work_seconds: float = 0.0
    idle_waiting_seconds: float = 0.0
    """The engine did nothing while the front held requests back."""
    waiting_seconds: float = 0.0
    """The front held requests back."""


class _Event(IntEnum):
    ARRIVAL = 0
    FAULT_BEGINS = 1
    FAULT_ENDS = 2
    REFUSAL = 3
    WAKE = 4
    STEP_ENDS = 5
    TICK = 6
    POLICY = 7


def run(
    offered: Sequence[Arrival],
    *,
    physics: EnginePhysics,
    make_front: MakeFront,
    seed: int,
    faults: Sequence[Fault] = (),
) -> Run:
    """One run, until all requests are decided or the last deadline has passed.

    The seed says where in their periods the ticks and the policy's steps fall, and whom a fault refuses.
    """
    chance = random.Random(seed)
    ledger, clock = Ledger(offered), VirtualClock()
    engine = VirtualEngine(physics, ledger=ledger, clock=clock, chance=chance)
    front = make_front(engine, ledger, clock)
    found = Run(ledger=ledger, physics=physics)
    order = count()
    events: list[tuple[float, int, _Event, int]] = [
        (arrival.at_seconds, next(order), _Event.ARRIVAL, key) for key, arrival in enumerate(offered)
    ]
    for number, fault in enumerate(faults):
        events.append((fault.at_seconds, next(order), _Event.FAULT_BEGINS, number))
        events.append((fault.at_seconds + fault.for_seconds, next(order), _Event.FAULT_ENDS, number))
    events.append((chance.random() * TICK_SECONDS, next(order), _Event.TICK, 0))
    events.append((chance.random() * POLICY_SECONDS, next(order), _Event.POLICY, 0))
    heapq.heapify(events)
    waking = False

    def at(when: float, event: _Event, number: int = 0) -> None:
        heapq.heappush(events, (when, next(order), event, number))

    def wake() -> None:
        nonlocal waking
        if not waking:
            waking = True
            at(clock.now, _Event.WAKE)

    def refuse_later(key: int) -> None:
        at(clock.now + REFUSAL_SECONDS, _Event.REFUSAL, key)

    engine.wake, engine.refuse_later = wake, refuse_later
    end = max((arrival.deadline_seconds for arrival in offered), default=0.0) + POLICY_SECONDS
    work_before = 0.0
    busy_before = 0.0
    limit = front.limit_requests
    while events and ledger.open_requests:
        now, _, event, number = heapq.heappop(events)
        if now > end:
            break
        if front.waiting:
            found.waiting_seconds += now - clock.now
            if engine.stepping_since is None:
                found.idle_waiting_seconds += now - clock.now
        clock.now = now
        if event is _Event.ARRIVAL:
            front.offer(number, offered[number], now)
        elif event is _Event.STEP_ENDS:
            for key in engine.end_step(now):
                if key in ledger.dropped:
                    continue  # the answer of one that ended in the same step made the front hang up on this one
                ledger.finished_at[key] = now
                front.finished(key, now, offered[key].prompt_tokens, offered[key].output_tokens)
            wake()
        elif event is _Event.WAKE:
            waking = False
            ends = engine.begin_step(now) if engine.stepping_since is None else None
            if ends is not None:
                at(ends, _Event.STEP_ENDS)
        elif event is _Event.TICK:
            front.tick(now)
            at(now + TICK_SECONDS, _Event.TICK)
        elif event is _Event.REFUSAL:
            status = engine.refusals.pop(number, None)
            if status is not None:  # else the front hung up before it came
                found.refusals += 1
                front.refused(number, now, status)
        elif event is _Event.POLICY:
            cause = front.step(now)
            if cause is not None:
                found.causes.append((now, cause))
            busy = engine.busy_until(now)
            found.samples.append(
                Sample(
                    at_seconds=now,
                    limit_requests=front.limit_requests,
                    in_flight=len(engine.held),
                    waiting=front.waiting,
                    kv_share=engine.batch.kv_used_tokens / physics.kv_tokens,
                    gpu_share=(busy - busy_before) / POLICY_SECONDS,
                    work_share=(engine.done_work_seconds - work_before) / POLICY_SECONDS,
                )
            )
            busy_before, work_before = busy, engine.done_work_seconds
            at(now + POLICY_SECONDS, _Event.POLICY)
        elif event is _Event.FAULT_BEGINS:
            for key in engine.begin_fault(faults[number]):
                found.refusals += 1
                front.refused(key, now, CONNECTION_LOST)
        else:
            engine.end_fault(faults[number])
        if front.limit_requests != limit:
            found.limit_changes += 1
            limit = front.limit_requests
    found.ended_seconds = clock.now
    found.done_work_seconds = engine.done_work_seconds
    found.preemptions = engine.batch.preemptions_total
    return found
