"""Several workers in front of one engine, in virtual time: the real dispatch and the real sharing, one topic in memory.

Requests belong to partitions, and partitions to workers; when workers come and go, what waits moves to its new owner.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from benchmarks.pacing.engine import Engine, Ledger, VirtualClock
from benchmarks.pacing.lanes_front import LanesFront, make_lanes_front
from benchmarks.pacing.workloads import Arrival
from forebay_schemas.contract.coordination import GONE_SECONDS, Capacity
from forebay_worker.coordination.slot_sharing import SlotSharing
from forebay_worker.pacing.policy import PacingPolicy
from forebay_worker.settings import WorkerSettings
from forebay_worker.signals.readings import EngineReading, GpuReading
from forebay_worker.wiring.choices import make_sharing

PARTITIONS = 24
RECORD_SECONDS = 0.02
"""From a worker through the brokers to all workers."""

STEP_APART_SECONDS = 0.23
"""Workers do not start at the same moment, and do not look at their limits at the same moment."""

LOOK_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Scale:
    """Sets the number of workers."""

    at_seconds: float
    workers: int


class _OneEngine:
    """The engine as one of several workers sees it. The GPU is looked at once for all of them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._gpu: GpuReading | None = None

    def submit(self, key: int) -> None:
        self._engine.submit(key)

    def abort(self, key: int) -> None:
        self._engine.abort(key)

    def reading(self, now: float) -> EngineReading:
        return self._engine.reading(now)

    def gpu(self, now: float) -> GpuReading:
        if self._gpu is None or now - self._gpu.at >= LOOK_SECONDS:
            self._gpu = replace(self._engine.gpu(now), at=now)
        return self._gpu


class _BlindEngine(_OneEngine):
    """An engine without metrics."""

    def reading(self, now: float) -> EngineReading:
        return EngineReading(at=now)


class _Worker:
    def __init__(self, *, number: int, front: LanesFront, sharer: SlotSharing, starts_at: float) -> None:
        self.number = number
        self.front = front
        self.sharer = sharer
        self.starts_at = starts_at
        self.read = 0

    @property
    def in_flight(self) -> int:
        return len(self.front.dispatcher.running)


class SharedFront:
    """Implements `Front`."""

    def __init__(
        self,
        engine: Engine,
        ledger: Ledger,
        clock: VirtualClock,
        *,
        make_policy: Callable[[], PacingPolicy],
        scales: Sequence[Scale],
        blind: bool,
    ) -> None:
        self._engine: Engine = _BlindEngine(engine) if blind else _OneEngine(engine)
        self._ledger = ledger
        self._clock = clock
        self._make_policy = make_policy
        self._scales = list(scales)
        self._topic: list[tuple[float, Capacity]] = []
        self._started = 0
        self.workers: list[_Worker] = []
        self.draining: list[_Worker] = []
        self.in_flight_seen: list[tuple[float, list[int]]] = []
        """Every tick: of each worker that is not draining."""
        self.over_limit_most = 0
        self._scale(0.0)

    @property
    def waiting(self) -> int:
        return sum(worker.front.waiting for worker in self.workers)

    @property
    def limit_requests(self) -> int:
        return max(worker.front.limit_requests for worker in self.workers)

    def offer(self, key: int, arrival: Arrival, now: float) -> None:
        self._owner(key).front.offer(key, arrival, now)

    def tick(self, now: float) -> None:
        self._scale(now)
        for worker in (*self.workers, *self.draining):
            if now < worker.starts_at:
                continue
            while worker.read < len(self._topic) and self._topic[worker.read][0] <= now:
                said_at, capacity = self._topic[worker.read]
                worker.sharer.receive(capacity, max(0.0, now - said_at - RECORD_SECONDS))
                worker.read += 1
            worker.sharer.step(now)
            worker.front.tick(now)
        for worker in [each for each in self.draining if not each.in_flight]:
            worker.sharer.leave()
            self.draining.remove(worker)
        seen = [worker.in_flight for worker in self.workers]
        self.in_flight_seen.append((now, seen))
        in_flight = sum(seen) + sum(worker.in_flight for worker in self.draining)
        self.over_limit_most = max(self.over_limit_most, in_flight - self.limit_requests)

    def step(self, now: float) -> str | None:
        return self.workers[0].front.step(now)

    def finished(self, key: int, now: float, prompt_tokens: int, output_tokens: int) -> None:
        self._runner(key).front.finished(key, now, prompt_tokens, output_tokens)

    def refused(self, key: int, now: float, status: int) -> None:
        self._runner(key).front.refused(key, now, status)

    def _owner(self, key: int) -> _Worker:
        return self.workers[key % PARTITIONS % len(self.workers)]

    def _runner(self, key: int) -> _Worker:
        return next(worker for worker in (*self.workers, *self.draining) if worker.front.runs(key))

    def _scale(self, now: float) -> None:
        if not self._scales or now < self._scales[0].at_seconds:
            return
        wanted = self._scales.pop(0).workers
        while len(self.workers) < wanted:
            self.workers.append(self._start(now))
        while len(self.workers) > wanted:
            worker = self.workers.pop(0)  # the oldest goes, as in a rollout
            worker.front.dispatcher.stopping = True
            self.draining.append(worker)
        for worker in (*self.workers, *self.draining):
            for key in worker.front.waiting_keys():
                owner = self._owner(key)
                if owner is not worker:
                    worker.front.withdraw(key)
                    owner.front.offer(key, self._ledger.offered[key], now)

    def _start(self, now: float) -> _Worker:
        self._started += 1
        front = make_lanes_front(self._engine, self._ledger, self._clock, policy=self._make_policy())
        settings = WorkerSettings(backend_url="http://127.0.0.1:8000", worker_id=f"w{self._started}")

        def send(capacity: Capacity, on_delivery: object) -> None:
            assert callable(on_delivery)
            self._topic.append((self._clock.now + RECORD_SECONDS, capacity))
            on_delivery(True)

        sharer = SlotSharing(
            sharing=make_sharing(settings, started_ms=self._clock.wall_ms()),
            dispatcher=front.dispatcher,
            clock=self._clock,
            send=send,
        )
        starts_at = now + STEP_APART_SECONDS * len(self.workers)
        worker = _Worker(number=self._started, front=front, sharer=sharer, starts_at=starts_at)
        worker.read = next(
            (index for index, (at, _) in enumerate(self._topic) if at > now - GONE_SECONDS), len(self._topic)
        )
        return worker
