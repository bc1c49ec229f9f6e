"""Runs the physics in real time: one asyncio task steps the batch and distributes the output of each step."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING

from forebay_sandbox.engine.metrics import EngineMetrics
from forebay_sandbox.engine.physics import Admission, ContinuousBatch

if TYPE_CHECKING:
    from forebay_sandbox.engine.physics import EnginePhysics, StepEvents
    from forebay_sandbox.engine.protocol import InferenceRequest
    from forebay_schemas.clock import Clock

# A loop that was held up catches up at most this much; more would come out as a burst that no engine has.
_LAG_SECONDS_MAX = 0.25
# Steps in a row without letting others run, when steps are shorter than the timer's resolution.
_STEPS_PER_TURN = 32


class Generation:
    """One request in the engine. `tokens` is current for streaming ones and for those that are done."""

    __slots__ = ("_progress", "arrived_at", "done", "key", "request", "tokens")

    def __init__(self, *, key: int, request: InferenceRequest, arrived_at: float) -> None:
        self.key = key
        self.request = request
        self.arrived_at = arrived_at
        self.tokens = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._progress = asyncio.Event()

    def advance(self, tokens: int) -> None:
        if tokens > self.tokens:
            self.tokens = tokens
            self._progress.set()

    async def more_tokens(self, *, than: int) -> int:
        """Waits for more tokens than that; returns how many there are."""
        while self.tokens <= than:
            self._progress.clear()
            await self._progress.wait()
        return self.tokens


class EngineLoop:
    """Owns the batch. Not thread-safe: everything happens on one event loop. Non-streaming requests cost one future."""

    def __init__(self, *, physics: EnginePhysics, model: str, clock: Clock) -> None:
        """Durations are read from `clock`; sleeping is asyncio's."""
        self.batch = ContinuousBatch(physics)
        self.metrics = EngineMetrics(batch=self.batch, model=model)
        self.step_factor = 1.0
        """The factor of each step's duration."""
        self._now = clock.monotonic
        self._keys = itertools.count()
        self._generations: dict[int, Generation] = {}
        self._streaming: dict[int, Generation] = {}
        self._work = asyncio.Event()

    def submit(self, request: InferenceRequest) -> Generation | Admission:
        """Adds a request; a refusal is in the Admission. A caller that no longer needs it calls `abort`."""
        generation = Generation(key=next(self._keys), request=request, arrived_at=self._now())
        admission = self.batch.submit(
            generation.key, prompt_tokens=request.prompt_tokens, output_tokens=request.output_tokens
        )
        if admission is not Admission.ACCEPTED:
            return admission
        self._generations[generation.key] = generation
        if request.stream:
            self._streaming[generation.key] = generation
        self._work.set()
        return generation

    def abort(self, generation: Generation) -> None:
        """Frees the request's place, unless it is done."""
        if self._generations.pop(generation.key, None) is None:
            return
        self._streaming.pop(generation.key, None)
        generation.tokens = self.batch.generated_tokens(generation.key)
        self.batch.abort(generation.key)
        self.metrics.finished_total["abort"] += 1

    async def run(self) -> None:
        """Step until cancelled. Steps follow one another on a schedule, so that late timers do not slow the engine."""
        step_ends_at = self._now()
        steps_this_turn = 0
        while True:
            planned_seconds = self.batch.begin_step()
            if planned_seconds is None:
                self._work.clear()
                await self._work.wait()
                step_ends_at = self._now()
                continue
            seconds = planned_seconds * self.step_factor
            step_ends_at = max(step_ends_at + seconds, self._now() - _LAG_SECONDS_MAX)
            delay = step_ends_at - self._now()
            steps_this_turn += 1
            if delay > 0 or steps_this_turn >= _STEPS_PER_TURN:
                await asyncio.sleep(max(0.0, delay))
                steps_this_turn = 0
            self._tell(self.batch.end_step(), seconds)

    def _tell(self, events: StepEvents, step_seconds: float) -> None:
        now = self._now()
        metrics = self.metrics
        metrics.busy_seconds_total += step_seconds
        metrics.prompt_tokens_total += events.prefill_tokens
        metrics.generation_tokens_total += events.decode_tokens + len(events.first_tokens)
        metrics.token_seconds.observe(step_seconds, events.decode_tokens)
        for key in events.first_tokens:
            metrics.first_token_seconds.observe(now - self._generations[key].arrived_at)
        for key in events.finished:
            generation = self._generations.pop(key)
            self._streaming.pop(key, None)
            metrics.request_seconds.observe(now - generation.arrived_at)
            metrics.finished_total[generation.request.finish_reason] += 1
            generation.advance(generation.request.output_tokens)
            if not generation.done.done():  # cancelled along with a task that waits for it, a turn before its abort
                generation.done.set_result(None)
        for key, generation in self._streaming.items():
            generation.advance(self.batch.generated_tokens(key))
