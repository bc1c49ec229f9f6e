"""A gate over a fixed limit, the requests that run through it, and the counters of an engine. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from forebay_worker.pacing.gate import Gate
from forebay_worker.pacing.limitation import Limitation
from forebay_worker.pacing.policies.fixed import FixedLimit
from forebay_worker.pacing.policy import Ended, Signals
from forebay_worker.request.memory import in_flight_bytes
from forebay_worker.request.work import Work
from forebay_worker.signals.readings import EngineReading
from simulated.ports import NOW_MS
from simulated.works import make_assignment, make_work

ASSIGNMENT = make_assignment()
MIB = 1024 * 1024
STEP, SEQUENCE, PROMPT_TOKEN = 0.010, 0.0002, 0.00005
"""The gate's model of the backend before it learns."""


def work_of(
    prompt_tokens: int = 1000, output_tokens: int = 100, *, output_tokens_min: int = 50, size_bytes: int | None = None
) -> Work:
    work = make_work(ASSIGNMENT)
    work.size_bytes = work.size_bytes if size_bytes is None else size_bytes
    work.prompt_tokens, work.output_tokens, work.output_tokens_min = prompt_tokens, output_tokens, output_tokens_min
    return work


class Watched(FixedLimit):
    """A fixed limit that keeps its inputs."""

    def __init__(self, limit: int) -> None:
        super().__init__(limit_requests=limit)
        self.ended: list[Ended] = []
        self.signals: list[Signals] = []

    def observe(self, ended: Ended) -> None:
        self.ended.append(ended)

    def step(self, signals: Signals) -> str | None:
        self.signals.append(signals)
        return None


@dataclass
class GateStage:
    """A gate over a fixed limit, and the requests that run through it."""

    limit: int = 256
    prefill_seconds_max: float | None = 0.05
    memory_bytes_max: int | None = None
    now: float = 100.0
    running: list[Work] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.policy = Watched(self.limit)
        self.gate = Gate(
            policy=self.policy,
            prefill_seconds_max=self.prefill_seconds_max,
            memory_bytes_max=self.memory_bytes_max,
        )

    def start(self, count: int = 1, work: Work | None = None) -> None:
        for _ in range(count):
            started = work_of() if work is None else msgspec.structs.replace(work)
            started.started = self.now
            self.gate.started(started, self.now)
            self.running.append(started)

    def end(
        self,
        number: int = 0,
        *,
        succeeded: bool = True,
        prompt_tokens: int | None = None,
        output_tokens: int | None = None,
    ) -> None:
        in_flight = len(self.running)
        self.gate.ended(
            self.running.pop(number),
            self.now,
            in_flight=in_flight,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            succeeded=succeeded,
        )

    def blocked_by(self) -> Limitation | None:
        return self.gate.blocked_by(self.now, len(self.running), sum(map(in_flight_bytes, self.running)))

    def step(self, engine: EngineReading | None = None, seconds: float = 1.0) -> Signals:
        """Advances one second and lets the policy decide. Returns the policy's input."""
        self.now += seconds
        self.gate.step(
            self.now,
            NOW_MS,
            in_flight=len(self.running),
            waiting=0,
            dropped=0,
            engine=engine,
            gpu=None,
        )
        return self.policy.signals[-1]


@dataclass
class EngineCounters:
    """An engine's own metrics, as time passes: steps of 10 ms and 0.2 ms a sequence, twice as slow if ``slowness`` is
    2. ``others``: what other workers have in flight."""

    slowness: float = 1.0
    others: int = 0
    prompt_tokens: float = 1e6
    output_tokens: float = 1e6

    def second(self, own: int, *, prompt_rate: float = 5000.0) -> None:
        running = own + self.others
        steps = (1 - 0.00006 * self.slowness * prompt_rate) / (self.slowness * (0.010 + 0.0002 * running))
        self.prompt_tokens += prompt_rate
        self.output_tokens += steps * running

    def reading(self, at: float, own: int, **fields: float | None) -> EngineReading:
        known: dict[str, float | None] = {
            "running_requests": own + self.others,
            "waiting_requests": 0,
            "prompt_tokens_total": self.prompt_tokens,
            "output_tokens_total": self.output_tokens,
        }
        return EngineReading(at=at, **(known | fields))


def run_seconds(stage: GateStage, engine: EngineCounters, count: int) -> Signals:
    """Seconds in which the engine is always busy with what the stage has in flight."""
    for _ in range(count):
        engine.second(len(stage.running))
        stage.step(engine.reading(stage.now + 1.0, len(stage.running)))
    return stage.policy.signals[-1]
