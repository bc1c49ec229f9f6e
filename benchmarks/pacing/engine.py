"""The sandbox's batch in virtual time, its faults, and the ledger of a run. No real clock, no I/O."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from benchmarks.pacing.workloads import Arrival
from forebay_sandbox.engine.physics import Admission, ContinuousBatch, EnginePhysics
from forebay_worker.signals.readings import EngineReading, GpuReading

WALL_MS_AT_START = 1_760_000_000_000

OVERLOADED = 503
TOO_MANY = 429
TOO_LONG = 400
CONNECTION_LOST = 0
"""Statuses of `Front.refused`; 0 stands for a connection that was refused or cut."""


class VirtualClock:
    """The worker's clock in virtual time; the driver moves it."""

    __slots__ = ("now",)

    def __init__(self) -> None:
        self.now = 0.0
        """Seconds since the run began."""

    def monotonic(self) -> float:
        return self.now

    def wall_ms(self) -> int:
        return WALL_MS_AT_START + int(self.now * 1000)

    def sleep(self, seconds: float) -> None:
        raise AssertionError(f"nothing may sleep in virtual time, asked for {seconds} s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault of the engine, for ``for_seconds`` from ``at_seconds`` on.

    ``speed``: its speed as a share of the usual. ``refused_share``: share of the submits that are answered with
    ``refused_status``. ``down``: it loses all requests at the start, and refuses connections.
    """

    at_seconds: float
    for_seconds: float
    speed: float = 1.0
    refused_share: float = 0.0
    refused_status: int = OVERLOADED
    down: bool = False


class Ledger:
    """The outcome of each request, by its key (its index among the arrivals)."""

    def __init__(self, offered: Sequence[Arrival]) -> None:
        self.offered = offered
        self.finished_at: dict[int, float] = {}
        self.dropped: dict[int, str] = {}
        self.dropped_at: dict[int, float] = {}
        self.started_at: dict[int, float] = {}
        """Time of the last submit to the engine."""

    def drop(self, key: int, now: float, reason: str) -> None:
        """The front will not run it, or not to its end."""
        assert key not in self.dropped, f"request {key} was dropped before"
        assert key not in self.finished_at, f"request {key} was finished before"
        self.dropped[key] = reason
        self.dropped_at[key] = now

    @property
    def open_requests(self) -> int:
        return len(self.offered) - len(self.finished_at) - len(self.dropped)


class Engine(Protocol):
    """A front's view of the engine."""

    def submit(self, key: int) -> None:
        """Sends a request; the answer is `Front.finished` or `Front.refused`, never before this returns."""
        ...

    def abort(self, key: int) -> None:
        """Closes the connection: no answer comes. Unknown keys are ignored."""
        ...

    def reading(self, now: float) -> EngineReading:
        """The engine's own metrics."""
        ...

    def gpu(self, now: float) -> GpuReading:
        """The share of time with any kernel running since the last call."""
        ...


class VirtualEngine:
    """The sandbox's batch, its faults and its counters; implements `Engine`."""

    def __init__(self, physics: EnginePhysics, *, ledger: Ledger, clock: VirtualClock, chance: random.Random) -> None:
        self.physics = physics
        self.batch = ContinuousBatch(physics)
        self.stepping_since: float | None = None
        self.wake: Callable[[], None] = _unset
        self.refuse_later: Callable[[int], None] = _unset_refusal
        self.refusals: dict[int, int] = {}
        """Statuses on their way back, by key."""
        self.done_work_seconds = 0.0
        self.busy_seconds = 0.0
        self.held: set[int] = set()
        self._ledger = ledger
        self._clock = clock
        self._chance = chance
        self._faults: list[Fault] = []
        self._prompt_tokens = 0
        self._output_tokens = 0
        self._gpu_looked_at = 0.0
        self._gpu_busy_seconds = 0.0

    def submit(self, key: int) -> None:
        self._ledger.started_at[key] = self._clock.now
        for fault in self._faults:
            if fault.down:
                self._refuse(key, CONNECTION_LOST)
                return
            if fault.refused_share and self._chance.random() < fault.refused_share:
                self._refuse(key, fault.refused_status)
                return
        arrival = self._ledger.offered[key]
        said = self.batch.submit(key, prompt_tokens=arrival.prompt_tokens, output_tokens=arrival.output_tokens)
        if said is not Admission.ACCEPTED:
            self._refuse(key, OVERLOADED if said is Admission.QUEUE_FULL else TOO_LONG)
            return
        self.held.add(key)
        if self.stepping_since is None:
            self.wake()

    def _refuse(self, key: int, status: int) -> None:
        self.refusals[key] = status
        self.refuse_later(key)

    def abort(self, key: int) -> None:
        self.refusals.pop(key, None)
        if key in self.held:
            self.held.remove(key)
            self.batch.abort(key)

    def reading(self, now: float) -> EngineReading:
        return EngineReading(
            at=now,
            running_requests=self.batch.running,
            waiting_requests=self.batch.waiting,
            kv_used_share=self.batch.kv_used_tokens / self.physics.kv_tokens,
            preemptions_total=self.batch.preemptions_total,
            prompt_tokens_total=self._prompt_tokens,
            output_tokens_total=self._output_tokens,
        )

    def gpu(self, now: float) -> GpuReading:
        passed, self._gpu_looked_at = now - self._gpu_looked_at, now
        busy = self.busy_until(now)
        share = min(1.0, (busy - self._gpu_busy_seconds) / passed) if passed > 0 else 0.0
        self._gpu_busy_seconds = busy
        return GpuReading(at=now, utilisation=share, memory_used_share=0.9)

    def busy_until(self, now: float) -> float:
        return self.busy_seconds + (now - self.stepping_since if self.stepping_since is not None else 0.0)

    def begin_step(self, now: float) -> float | None:
        """Begins a step; returns its end. None: there is nothing to do."""
        seconds = self.batch.begin_step()
        self.stepping_since = None if seconds is None else now
        return None if seconds is None else now + seconds

    def end_step(self, now: float) -> tuple[int, ...]:
        """Keys of the requests that this step finished."""
        assert self.stepping_since is not None
        self.busy_seconds += now - self.stepping_since
        self.stepping_since = None
        done = self.batch.end_step()
        put_out = done.decode_tokens + len(done.first_tokens)
        self._prompt_tokens += done.prefill_tokens
        self._output_tokens += put_out
        engine = self.physics
        self.done_work_seconds += (
            engine.c_seconds * done.prefill_tokens
            + engine.b_seconds * done.decode_tokens
            + engine.a_seconds / engine.max_num_seqs * put_out
        )
        self.held.difference_update(done.finished)
        return done.finished

    def begin_fault(self, fault: Fault) -> list[int]:
        """Keys of the requests that it costs."""
        self._faults.append(fault)
        self._set_speed()
        if not fault.down:
            return []
        lost = sorted(self.held)
        for key in lost:
            self.abort(key)
        return lost

    def end_fault(self, fault: Fault) -> None:
        self._faults.remove(fault)
        self._set_speed()

    def _set_speed(self) -> None:
        speed = 1.0
        for fault in self._faults:
            speed *= fault.speed
        self.batch.physics = self.physics.sped_up(speed)


def _unset() -> None:
    raise AssertionError("the engine is not driven yet")


def _unset_refusal(key: int) -> None:
    raise AssertionError(f"the engine is not driven yet, request {key}")
