"""Steps the load on a backend in a closed loop: each of n clients sends its next request when it has the answer to its
last one. On the event loop; pure objects decide what is measured and when to stop."""

from __future__ import annotations

import asyncio
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from forebay_schemas.clock import Clock
from forebay_schemas.contract.calibration import CalibrationStep, State
from forebay_worker.calibrate.health import Health
from forebay_worker.calibrate.knee import GOOD_STATES, measure_again, next_concurrency, refinement
from forebay_worker.calibrate.requests import Asks
from forebay_worker.calibrate.samples import Ended, Phase, StepMeter
from forebay_worker.calibrate.target import Target
from forebay_worker.signals.readings import EngineReading, GpuReading

TICK_SECONDS: Final = 0.1
RAMP_SECONDS_MIN: Final = 0.1
AFTER_FAILURE_SECONDS: Final = 0.2
"""A backend that fails at once must not be asked a thousand times a second."""
GONE_SECONDS: Final = 2.0
PROGRESS_SECONDS: Final = 10.0
"""Silence before a line of progress on the step."""
REFINEMENTS_MAX: Final = 2
LAG_SECONDS_MAX: Final = 0.02
"""From here on the loop receives tokens so late that TPOT measures this machine."""


class Signals(Protocol):
    """Readings of engine and GPU: `SignalPoller`."""

    def latest_engine(self, now: float) -> EngineReading | None: ...

    def latest_gpu(self, now: float) -> GpuReading | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Bounds of a calibration. ``tpot_seconds``: the longest time of a token, if given."""

    concurrency_max: int
    window_seconds: float
    seconds_max: float
    tpot_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The result. ``steps``: by their concurrency."""

    steps: tuple[CalibrationStep, ...]
    state: State
    stopped_by: str | None
    seconds: float


class _Ended(Exception):  # noqa: N818 - an end, and none of them an error
    """Ends the calibration before its last step."""

    def __init__(self, state: State, cause: str) -> None:
        super().__init__(cause)
        self.state = state
        self.cause = cause


class Pulse:
    """Pieces of text of all streams: their number, and when the last one arrived."""

    __slots__ = ("chunks", "received_at")

    def __init__(self) -> None:
        self.chunks = 0
        self.received_at = 0.0

    def beat(self, now: float) -> None:
        self.chunks += 1
        self.received_at = now


class Calibrator:
    """One calibration. ``stop``: set by Ctrl-C. ``say`` gets a line after each step, and during a long one. ``began``:
    the monotonic time from which ``seconds_max`` counts."""

    def __init__(
        self,
        *,
        target: Target,
        asks: Asks,
        signals: Signals,
        pulse: Pulse,
        bounds: Bounds,
        clock: Clock,
        stop: asyncio.Event,
        say: Callable[[str], None],
        began: float,
    ) -> None:
        self._target = target
        self._asks = asks
        self._signals = signals
        self._pulse = pulse
        self._bounds = bounds
        self._clock = clock
        self._stop = stop
        self._say = say
        self._began = self._said_at = began
        self._health = Health(now=clock.monotonic())
        self._sick: str | None = None
        self._clients: list[asyncio.Task[None]] = []
        self._meter: StepMeter | None = None
        self._lags: list[float] = []
        self._tries: Counter[int] = Counter()

    async def run(self) -> Found:
        """Runs all steps, as far as the time allows. Returns nothing if it is cancelled."""
        end = self._began + self._bounds.seconds_max
        up: list[CalibrationStep] = []
        extra: list[CalibrationStep] = []
        state: State = "complete"
        cause: str | None = None
        try:
            await self._climb(up, end=end)
            while (concurrency := measure_again(up, tries=self._tries)) is not None:
                await self._step_again(concurrency, up, end=end)
                # A step that is steady only now may show that there is more above it.
                await self._climb(up, end=end)
            for _ in range(REFINEMENTS_MAX):
                around = refinement([*up, *extra], tpot_seconds=self._bounds.tpot_seconds)
                if around is None:
                    break
                await self._step(around, into=extra, end=end)
        except _Ended as ended:
            state, cause = ended.state, ended.cause
        finally:
            await self._resize(0, ramp_seconds=0.0)
        steps = tuple(sorted([*up, *extra], key=lambda step: step.concurrency))
        return Found(steps=steps, state=state, stopped_by=cause, seconds=self._clock.monotonic() - self._began)

    async def _climb(self, steps: list[CalibrationStep], *, end: float) -> None:
        while (concurrency := next_concurrency(steps, concurrency_max=self._bounds.concurrency_max)) is not None:
            await self._step(concurrency, into=steps, end=end)

    async def _step_again(self, concurrency: int, steps: list[CalibrationStep], *, end: float) -> None:
        """Measures unsteady steps again with longer windows, and replaces those that are steady now."""
        place = next(at for at, step in enumerate(steps) if step.concurrency == concurrency)
        repeated: list[CalibrationStep] = []
        try:
            await self._step(concurrency, into=repeated, end=end)
        finally:
            if repeated and repeated[0].state in GOOD_STATES:
                steps[place] = repeated[0]

    async def _step(self, concurrency: int, *, into: list[CalibrationStep], end: float) -> None:
        window_seconds = self._bounds.window_seconds * 2 ** self._tries[concurrency]
        self._tries[concurrency] += 1
        meter = StepMeter(concurrency=concurrency, window_seconds=window_seconds)
        self._meter = meter
        self._lags.clear()
        # Started at once, they would be prefilled and end together, step after step, unlike real traffic.
        ramp = max(RAMP_SECONDS_MIN, into[-1].service_seconds if into else 0.0)
        await self._resize(concurrency, ramp_seconds=ramp)
        ended: _Ended | None = None
        while meter.phase is not Phase.DONE and ended is None:
            ended = await self._tick(meter, end)
        self._meter = None
        meter.close(now=self._clock.monotonic(), chunks_total=self._pulse.chunks)
        step = meter.result(sick=ended is not None and ended.state == "stopped")
        if step is not None:
            step = _noted(step, self._lags)
            into.append(step)
            self._report(step_line(step))
        if ended is not None:
            raise ended
        if step is None:
            raise _Ended("stopped", f"nothing succeeded with {concurrency} in flight")

    async def _tick(self, meter: StepMeter, end: float) -> _Ended | None:
        before = self._clock.monotonic()
        await asyncio.sleep(TICK_SECONDS)
        now = self._clock.monotonic()
        self._lags.append(max(0.0, now - before - TICK_SECONDS))
        if self._pulse.received_at:
            self._health.received(self._pulse.received_at)
        engine = self._signals.latest_engine(now)
        meter.look(engine=engine, gpu=self._signals.latest_gpu(now))
        self._sick = self._sick or self._health.look(now, engine=engine, in_flight=len(self._clients))
        if self._sick is not None:
            return _Ended("stopped", self._sick)
        if self._stop.is_set():
            return _Ended("interrupted", "Ctrl-C")
        if now - self._said_at >= PROGRESS_SECONDS:
            left = max(0.0, end - now)
            self._report(
                f"{meter.concurrency:>4} in flight: {meter.phase.value}, {meter.answers} answers; {left:.0f} s left"
            )
        if now >= end:
            return _Ended("partial", f"--max-duration, {self._bounds.seconds_max:g} s, is over")
        return None

    def _report(self, line: str) -> None:
        self._said_at = self._clock.monotonic()
        self._say(line)

    async def _resize(self, wanted: int, *, ramp_seconds: float) -> None:
        """Sets the number of clients. New ones begin one after another; superfluous ones close their connections."""
        gone, self._clients = self._clients[wanted:], self._clients[:wanted]
        for client in gone:
            client.cancel()
        if gone:
            # A handler may take long to clean up, or ignore its cancellation.
            await asyncio.wait(gone, timeout=GONE_SECONDS)
        new = wanted - len(self._clients)
        for number in range(new):
            self._clients.append(asyncio.create_task(self._client(delay_seconds=ramp_seconds * number / new)))

    async def _client(self, *, delay_seconds: float) -> None:
        await asyncio.sleep(delay_seconds)
        while True:
            ended = await self._target.run(self._asks.next())
            self._note(ended)
            if ended.trouble is not None:
                await asyncio.sleep(AFTER_FAILURE_SECONDS)

    def _note(self, ended: Ended) -> None:
        self._sick = self._sick or self._health.ended(ended)
        if self._meter is not None:
            self._meter.add(ended, chunks_total=self._pulse.chunks)


def step_line(step: CalibrationStep) -> str:
    """A step as one line of progress."""
    tokens = "" if step.output_tokens_per_second is None else f", {step.output_tokens_per_second:,.0f} tokens/s"
    p95 = step.service_p50_seconds if step.service_p95_seconds is None else step.service_p95_seconds
    name = "P50" if step.service_p95_seconds is None else "P95"
    return (
        f"{step.concurrency:>4} in flight: {step.requests_per_second:,.2f} requests/s{tokens}, "
        f"{name} {p95:.3f} s, {step.state} after {step.seconds:.0f} s"
    )


def _noted(step: CalibrationStep, lags: Sequence[float]) -> CalibrationStep:
    notes = []
    lag = statistics.fmean(lags) if lags else 0.0
    if lag > LAG_SECONDS_MAX:
        notes.append(f"this machine was {lag * 1000:.0f} ms late on average, and so are the latencies")
    others = (step.engine_running or 0.0) + (step.engine_waiting or 0.0) - step.concurrency
    if others > max(1.0, 0.1 * step.concurrency):
        notes.append(f"the engine had {others:.1f} requests of others")
    if not notes:
        return step
    return CalibrationStep(**{**{name: getattr(step, name) for name in step.__struct_fields__}, "notes": tuple(notes)})
