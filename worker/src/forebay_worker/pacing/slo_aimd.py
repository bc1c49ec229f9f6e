"""`slo_aimd`, the default policy: the limit grows while a token comes within its target time, and is cut when it does
not, or when the backend refuses or preempts (additive increase, multiplicative decrease). Pure."""

from __future__ import annotations

from forebay_worker.pacing.policy import Ended, Signals

HARD_CUT = 0.7
SOFT_CUT = 0.9
CUT_PAUSE_SECONDS = 2.0
GROW_PAUSE_SECONDS = 3.0
OVER_TARGET = 1.1
USED_SHARE = 0.8
GROWTH_SHARE = 0.05
KV_FULL = 0.95
KV_TIGHT = 0.85
GPU_IDLE = 0.6
GPU_MEMORY_FULL = 0.98


class SloAimd:
    """Holds the time per output token at a target."""

    __slots__ = (
        "_cut_at",
        "_hard_at",
        "_hard_cut_at",
        "_limit",
        "_limit_max",
        "_limit_min",
        "_memory_share",
        "_preemptions",
        "_target_seconds",
    )

    def __init__(self, *, limit_min: int, limit_start: int, limit_max: int, token_seconds_target: float) -> None:
        self._limit_min, self._limit_max = limit_min, limit_max
        self._limit = float(min(max(limit_start, limit_min), limit_max))
        self._target_seconds = token_seconds_target
        self._cut_at = self._hard_at = self._hard_cut_at = float("-inf")
        self._preemptions: float | None = None
        self._memory_share: float | None = None

    @property
    def limit_requests(self) -> int:
        return int(self._limit)

    def observe(self, _ended: Ended) -> None:
        """What it needs of the answers is the time per token, which comes with the signals."""

    def refused(self, now: float) -> str | None:
        return self._hard(now, "the backend refused a request as too much for it")

    def step(self, signals: Signals) -> str | None:
        now = signals.now
        hard = self._hard_signal(signals)
        if hard is not None:
            return self._hard(now, hard)
        if now - self._hard_at < CUT_PAUSE_SECONDS:
            return None
        token_seconds = signals.token_seconds
        if token_seconds is not None and token_seconds > OVER_TARGET * self._target_seconds:
            if now - self._cut_at < CUT_PAUSE_SECONDS:
                return None
            self._cut_at = now
            over = f"{token_seconds * 1000:.0f} ms a token is over the target of {self._target_seconds * 1000:.0f} ms"
            return self._set(self._limit * SOFT_CUT, over)
        return self._grow(signals)

    def _grow(self, signals: Signals) -> str | None:
        if signals.in_flight < USED_SHARE * self._limit or signals.now - self._hard_at < GROW_PAUSE_SECONDS:
            return None
        engine, gpu = signals.engine, signals.gpu
        if engine is not None and engine.kv_used_share is not None and engine.kv_used_share >= KV_TIGHT:
            return None
        step = max(1.0, GROWTH_SHARE * self._limit)
        cause = f"{signals.in_flight} in flight use the limit, and a token comes in time"
        if signals.waiting and gpu is not None and gpu.utilisation is not None and gpu.utilisation < GPU_IDLE:
            step *= 2
            cause = f"{signals.waiting} wait while the GPU is busy for only {gpu.utilisation:.0%}"
        return self._set(self._limit + step, cause)

    def _hard_signal(self, signals: Signals) -> str | None:
        engine, gpu = signals.engine, signals.gpu
        if engine is not None:
            before, self._preemptions = self._preemptions, engine.preemptions_total
            if before is not None and engine.preemptions_total is not None and engine.preemptions_total > before:
                return f"the engine preempted {engine.preemptions_total - before:.0f} requests"
            if engine.kv_used_share is not None and engine.kv_used_share > KV_FULL:
                return f"the KV cache is {engine.kv_used_share:.0%} full"
        elif gpu is not None and gpu.memory_used_share is not None:
            # Engines fill nine tenths of the memory at start: only a rise to the brim says anything.
            share, before = gpu.memory_used_share, self._memory_share
            self._memory_share = share
            if before is not None and before < GPU_MEMORY_FULL <= share:
                return f"the GPU's memory filled up to {share:.0%}"
        return None

    def _hard(self, now: float, cause: str) -> str | None:
        self._hard_at = now
        if now - self._hard_cut_at < CUT_PAUSE_SECONDS:
            return None
        self._hard_cut_at = self._cut_at = now
        return self._set(self._limit * HARD_CUT, cause)

    def _set(self, limit: float, cause: str) -> str | None:
        before = self.limit_requests
        self._limit = min(max(limit, float(self._limit_min)), float(self._limit_max))
        return None if self.limit_requests == before else cause
