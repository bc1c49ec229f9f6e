"""Results of single requests, the figures of a step, and when a step has enough of them. Pure.

The rule is Triton's Perf Analyzer's: measure in windows, until the last three agree. (GenAI-Perf says of its stability
percentage: stable is when max and min of the recent 3 measurements lie within it, in throughput and in latency.)
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from forebay_schemas.contract.calibration import CalibrationStep, StepState
from forebay_worker.signals.readings import EngineReading, GpuReading

WINDOWS: Final = 3
WINDOWS_MAX: Final = 8
WINDOW_REQUESTS_MIN: Final = 7
"""Three windows then hold the 20 requests that a P95 needs."""

TOLERANCE: Final = 0.10
P95_REQUESTS_MIN: Final = 20
P99_REQUESTS_MIN: Final = 100
ENGINE_QUEUE_SHARE: Final = 0.05
ENGINE_QUEUE_MIN: Final = 0.5
"""Requests in the engine's own queue on average, as a share of those in flight and as a number: its batch is full. With
fewer, each is queued only for a moment."""


class Trouble(Enum):
    """How a request failed."""

    UNREACHED = "no connection"
    BROKEN_OFF = "connection lost"
    TIMED_OUT = "timed out"
    REFUSED = "refused"
    """429, 503 or 529: the backend is overloaded."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A request that ended. Monotonic seconds. ``first_token_at``: None without a stream. ``chunks``: pieces of the
    stream with text. ``trouble`` and ``error``: None for a success."""

    started: float
    ended: float
    first_token_at: float | None = None
    chunks: int = 0
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    trouble: Trouble | None = None
    error: str | None = None

    @property
    def service_seconds(self) -> float:
        return self.ended - self.started

    @property
    def tpot_seconds(self) -> float | None:
        """Time after the first token divided by the tokens after it, as `vllm bench serve` counts."""
        if self.first_token_at is None or self.output_tokens is None or self.output_tokens < 2:
            return None
        return (self.ended - self.first_token_at) / (self.output_tokens - 1)


class Phase(Enum):
    WARMING = "warming up"
    MEASURING = "measuring"
    DONE = "done"


@dataclass(slots=True, kw_only=True)
class _Window:
    started: float
    chunks_before: int
    ended: list[Ended] = field(default_factory=list)
    errors: int = 0
    seconds: float = 0.0
    chunks: int = 0


class StepMeter:
    """Measures one step. The first answers, as many as are in flight, began in the step before and do not count. Then
    follow windows of at least ``window_seconds``, seven answers, and as many answers as are in flight, since requests
    that began together end together. The step ends when three windows in a row agree, or after eight; it is stable then
    if its two halves agree."""

    def __init__(self, *, concurrency: int, window_seconds: float) -> None:
        self.concurrency = concurrency
        self._window_seconds = window_seconds
        self._window_requests = max(WINDOW_REQUESTS_MIN, concurrency)
        self._warm_requests = 0
        self._windows: list[_Window] = []
        self._open: _Window | None = None
        self._running: list[float] = []
        self._waiting: list[float] = []
        self._kv: list[float] = []
        self._gpu: list[float] = []
        self._gpu_memory: list[float] = []
        self._preemptions: list[float] = []
        self.is_stable = False
        self.phase = Phase.WARMING

    @property
    def answers(self) -> int:
        """Number of answers so far, with those of the warm-up."""
        windows = [*self._windows, *([self._open] if self._open is not None else [])]
        return self._warm_requests + sum(len(window.ended) for window in windows)

    def add(self, ended: Ended, *, chunks_total: int) -> None:
        """Adds an ended request. ``chunks_total``: pieces of text of all streams so far."""
        if self.phase is Phase.DONE:
            return
        if self.phase is Phase.WARMING:
            self._warm_requests += ended.trouble is None
            if self._warm_requests >= self.concurrency:
                self.phase = Phase.MEASURING
                self._open = _Window(started=ended.ended, chunks_before=chunks_total)
            return
        window = self._open
        assert window is not None
        if ended.trouble is not None:
            window.errors += 1
            return
        window.ended.append(ended)
        if ended.ended - window.started < self._window_seconds or len(window.ended) < self._window_requests:
            return
        self._close(window, ended.ended, chunks_total)
        self._open = _Window(started=ended.ended, chunks_before=chunks_total)
        if len(self._windows) >= WINDOWS and _agree([[window] for window in self._windows[-WINDOWS:]]):
            self.is_stable = True
        elif len(self._windows) >= WINDOWS_MAX:
            self.is_stable = _agree([self._windows[: WINDOWS_MAX // 2], self._windows[WINDOWS_MAX // 2 :]])
        else:
            return
        self.phase = Phase.DONE

    def look(self, *, engine: EngineReading | None, gpu: GpuReading | None) -> None:
        """Adds readings of engine and GPU during the measurement."""
        if self.phase is not Phase.MEASURING:
            return
        if engine is not None:
            for values, value in (
                (self._running, engine.running_requests),
                (self._waiting, engine.waiting_requests),
                (self._kv, engine.kv_used_share),
                (self._preemptions, engine.preemptions_total),
            ):
                if value is not None:
                    values.append(value)
        if gpu is not None:
            if gpu.utilisation is not None:
                self._gpu.append(gpu.utilisation)
            if gpu.memory_used_share is not None:
                self._gpu_memory.append(gpu.memory_used_share)

    def close(self, *, now: float, chunks_total: int) -> None:
        """Ends the measurement. Without a complete window the open one counts, if a request ended in it."""
        if self.phase is not Phase.DONE and self._open is not None and self._open.ended and not self._windows:
            self._close(self._open, now, chunks_total)
        self.phase = Phase.DONE

    def result(self, *, sick: bool) -> CalibrationStep | None:
        """The step's figures, of all its windows; None if nothing was measured."""
        windows = self._windows
        done = [one for window in windows for one in window.ended]
        seconds = sum(window.seconds for window in windows)
        if not done or not seconds:
            return None
        service = sorted(one.service_seconds for one in done)
        mean = statistics.fmean(service)
        ttft = sorted(one.first_token_at - one.started for one in done if one.first_token_at is not None)
        tpot = sorted(one.tpot_seconds for one in done if one.tpot_seconds is not None)
        prompts = [one.prompt_tokens for one in done if one.prompt_tokens is not None]
        outputs = [one.output_tokens for one in done if one.output_tokens is not None]
        waiting = _mean(self._waiting)
        is_saturated = waiting is not None and waiting > max(ENGINE_QUEUE_MIN, ENGINE_QUEUE_SHARE * self.concurrency)
        state: StepState = (
            "sick" if sick else "saturated" if is_saturated else "stable" if self.is_stable else "unstable"
        )
        return CalibrationStep(
            concurrency=self.concurrency,
            state=state,
            seconds=seconds,
            requests=len(done),
            errors=sum(window.errors for window in windows),
            requests_per_second=len(done) / seconds,
            service_seconds=mean,
            service_cv=statistics.pstdev(service) / mean if mean else 0.0,
            service_p50_seconds=quantile(service, 0.5),
            service_p95_seconds=quantile(service, 0.95) if len(service) >= P95_REQUESTS_MIN else None,
            service_p99_seconds=quantile(service, 0.99) if len(service) >= P99_REQUESTS_MIN else None,
            output_tokens_per_second=self._tokens_per_second(done, outputs, seconds),
            prompt_tokens=_mean(prompts),
            output_tokens=_mean(outputs),
            ttft_p50_seconds=quantile(ttft, 0.5) if ttft else None,
            ttft_p95_seconds=quantile(ttft, 0.95) if len(ttft) >= P95_REQUESTS_MIN else None,
            tpot_seconds=_mean(tpot),
            tpot_p95_seconds=quantile(tpot, 0.95) if len(tpot) >= P95_REQUESTS_MIN else None,
            engine_running=_mean(self._running),
            engine_waiting=waiting,
            kv_used_share=max(self._kv) if self._kv else None,
            preemptions=self._preemptions[-1] - self._preemptions[0] if self._preemptions else None,
            gpu_utilisation=_mean(self._gpu),
            gpu_memory_share=max(self._gpu_memory) if self._gpu_memory else None,
        )

    def _close(self, window: _Window, now: float, chunks_total: int) -> None:
        window.seconds = now - window.started
        window.chunks = chunks_total - window.chunks_before
        self._windows.append(window)

    def _tokens_per_second(self, done: Sequence[Ended], outputs: Sequence[int], seconds: float) -> float | None:
        """Streams count as they flow; a request that ends in the window began before it."""
        if not outputs:
            return None
        chunks = sum(one.chunks for one in done if one.output_tokens is not None)
        if chunks:
            return sum(window.chunks for window in self._windows) * sum(outputs) / chunks / seconds
        return sum(outputs) / seconds


def _agree(groups: Sequence[Sequence[_Window]]) -> bool:
    """Whether means and rates of windows are within a tenth, or within the random difference of requests of different
    length: two means of n differ by less than two standard errors in 19 of 20 cases."""
    service = [[one.service_seconds for window in group for one in window.ended] for group in groups]
    rates = [len(one) / sum(window.seconds for window in group) for one, group in zip(service, groups, strict=True)]
    every = [seconds for one in service for seconds in one]
    cv = statistics.pstdev(every) / statistics.fmean(every)
    tolerance = max(TOLERANCE, 2 * math.sqrt(2 / min(map(len, service))) * cv)
    return _spread([statistics.fmean(one) for one in service]) <= tolerance and _spread(rates) <= tolerance


def quantile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of ``ordered`` does not exceed. ``ordered``: ascending, not empty."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def _spread(values: Sequence[float]) -> float:
    return max(values) / min(values) - 1 if min(values) > 0 else math.inf
