"""`slo_aimd`, the default policy: the limit grows while a token takes no longer than its target time. It is cut when
tokens take longer, or when the backend refuses or preempts (additive increase, multiplicative decrease). Pure."""

from __future__ import annotations

from forebay_worker.pacing.policies.limit import OTHERS_CUT
from forebay_worker.pacing.policy import Ended, Signals

HARD_CUT = 0.7
SOFT_CUT = 0.8
"""At most a fifth at once: a slow token may have waited for one long prompt."""

CUT_PAUSE_SECONDS = 2.0
"""A cut takes effect only when some running requests have ended."""

GROW_PAUSE_SECONDS = 3.0
"""The backend still has the load from before the cut, and would refuse again."""

OVER_TARGET = 1.1
NEAR_TARGET = 0.9
"""Between the two nothing changes, so that the limit comes to rest."""

OVER_KNEE = 1.05
"""The knee is known to a few per cent; a limit this close counts as at the knee, and is not moved back and forth."""

FELT_ALPHA = 0.2
"""Five seconds make a mean: bursts of prompts, which pass in one or two, do not cut."""

USED_SHARE = 0.8
GROWTH_SHARE = 0.05
"""An unused limit shows nothing; a used one doubles in a quarter of a minute."""

REGAIN_SHARE = 0.25
"""Growth up to a limit that was good before the backend went wrong: known to work, so in a few steps."""

HARD_FLOOR_SHARE = 0.3
"""Refusals that go on at a third of the limit they began at have another cause: a quota, or a fault."""

EPISODE_SECONDS = 10.0
"""Signals further apart have different causes: the limit before the first is then not regained."""

KV_FULL = 0.95
KV_TIGHT = 0.85
"""From the first on the engine is about to preempt, which costs a second prefill. Running requests still grow into the
rest."""

GPU_IDLE = 0.6
GPU_MEMORY_FULL = 0.98
STRETCH_MAX = 2.5
"""At the knee a fifth of a step is fixed cost, in steps 2.5 times as long 8 %: beyond that there is little to gain."""

STRETCH_GROWTH = 1.1
"""Ten steps to the most, five back: the target is given back faster than it is taken."""

STRETCH_CALM_SECONDS = 15.0
"""Time without drops before the target is stretched: in a steady overload drops come in spurts."""


class SloAimd:
    """Holds the time per output token at a target, within ``limit_min`` and ``limit_max`` requests in flight.

    - *Hard cut*: a refusal, a preemption, a KV cache nearly full, or, of an engine without metrics, the GPU's memory
      filled to the brim: down by three tenths, once in two seconds, and no growth for three.
    - *Floor*: refusals in a row take no more than down to three tenths of the limit that they began at.
    - *Regain*: up to seven tenths of that limit it then grows by a quarter a second; that far it was good.
    - *Soft cut*: tokens take a tenth too long: down in proportion, by a fifth at most, once in two seconds, and never
      below the *knee* (see `ServiceModel.knee_requests`): fewer in flight would waste the backend on its fixed costs,
      and what waits would be late for that. Near the target, and at the knee, the limit rests.
    - *Growth*: by a twentieth a second while the limit is used, and twice that while requests wait for an idle GPU.
      Below the knee it grows even while tokens take too long.
    - *Stretch*: while requests wait and none had to be dropped for its deadline, the target is stretched, up to 2.5
      times: a larger batch does more work in all, and nobody is the worse for it.
    - *Idle*: a limit below ``limit_start`` goes back to it.
    """

    __slots__ = (
        "_cut_at",
        "_dropped_at",
        "_felt",
        "_good_limit",
        "_hard_at",
        "_hard_cut_at",
        "_limit",
        "_limit_max",
        "_limit_min",
        "_limit_start",
        "_memory_share",
        "_preemptions",
        "_stretch",
        "_target_seconds",
        "hard_cuts",
    )

    def __init__(self, *, limit_min: int, limit_start: int, limit_max: int, token_seconds_target: float) -> None:
        """``token_seconds_target``: seconds, above 0. Raises ``ValueError`` unless 1 <= limit_min <= limit_max."""
        if not 1 <= limit_min <= limit_max:
            raise ValueError(f"limit_min must be from 1 to limit_max ({limit_max}), got {limit_min}")
        if not token_seconds_target > 0:
            raise ValueError(f"token_seconds_target must be above 0, got {token_seconds_target}")
        self._limit_min, self._limit_max = float(limit_min), float(limit_max)
        self._limit_start = min(max(float(limit_start), self._limit_min), self._limit_max)
        self._limit = self._limit_start
        self._good_limit = 0.0
        self._target_seconds = token_seconds_target
        self._stretch = 1.0
        self.hard_cuts = 0
        self._cut_at = self._hard_at = self._hard_cut_at = self._dropped_at = float("-inf")
        self._felt: float | None = None
        self._preemptions: float | None = None
        self._memory_share: float | None = None

    @property
    def limit_requests(self) -> int:
        return int(self._limit)

    @property
    def limit_exact(self) -> float:
        return self._limit

    @property
    def stretch(self) -> float:
        """Factor by which the target is stretched now, at least 1."""
        return self._stretch

    @property
    def token_seconds_target(self) -> float:
        """Target time of an output token now."""
        return self._target_seconds * self._stretch

    def observe(self, _ended: Ended) -> None:
        """Does nothing: the time per token comes with the signals."""

    def refused(self, now: float) -> str | None:
        return self._hard(now, "the backend refused a request as too much for it")

    def adopt(self, limit: float, now: float) -> None:
        self._set(min(limit, self._limit) if now - self._hard_at < CUT_PAUSE_SECONDS else limit, "")

    def cut_to(self, limit: float, now: float) -> str | None:
        self._note_hard(now)
        self._hard_cut_at = self._cut_at = now
        return self._set(min(limit, self._limit), OTHERS_CUT)

    def step(self, signals: Signals) -> str | None:
        now = signals.now
        self._stretch = self._stretched(signals)
        hard = self._hard_signal(signals)
        if hard is not None:
            return self._hard(now, hard)
        if now - self._hard_at < CUT_PAUSE_SECONDS:
            return None
        if not signals.in_flight and not signals.waiting:
            # The last answers do not predict the next ones.
            self._felt = None
            return self._set(max(self._limit, self._limit_start), "nothing is in flight: back to the start")
        knee = signals.knee_requests
        target, seconds = self.token_seconds_target, self._smoothed(signals.token_seconds)
        if seconds is not None and seconds > OVER_TARGET * target and self._limit > OVER_KNEE * knee:
            if now - self._cut_at < CUT_PAUSE_SECONDS:
                return None
            self._cut_at = now
            cause = f"{seconds * 1000:.0f} ms a token is over the target of {target * 1000:.0f} ms"
            return self._set(max(knee, self._limit * max(SOFT_CUT, target / seconds)), cause)
        if seconds is None:
            return None  # before the first answer nothing shows that the start was too low
        is_in_time = seconds <= NEAR_TARGET * target
        if self._limit > NEAR_TARGET * knee and not is_in_time and self._limit >= self._good_limit:
            return None
        why = "a token comes in time" if is_in_time else f"fewer than {knee:.0f} would waste the backend's time"
        return self._grow(signals, why)

    def _smoothed(self, token_seconds: float | None) -> float | None:
        if token_seconds is None or self._felt is None:
            self._felt = token_seconds
        else:
            self._felt += FELT_ALPHA * (token_seconds - self._felt)
        return self._felt

    def _stretched(self, signals: Signals) -> float:
        if signals.dropped:
            self._dropped_at = signals.now
        if signals.now - self._dropped_at < STRETCH_CALM_SECONDS:
            return max(1.0, self._stretch / STRETCH_GROWTH**2)
        if signals.waiting:
            return min(STRETCH_MAX, self._stretch * STRETCH_GROWTH)
        return max(1.0, self._stretch / STRETCH_GROWTH)

    def _grow(self, signals: Signals, why: str) -> str | None:
        # While requests wait, slots that they must not take count as used. Otherwise a limit of 18.9, 3 of them
        # reserved, never grew again.
        used = signals.in_flight + (signals.reserved if signals.waiting else 0)
        if used < USED_SHARE * self._limit or signals.now - self._hard_at < GROW_PAUSE_SECONDS:
            return None
        engine, gpu = signals.engine, signals.gpu
        if engine is not None and engine.kv_used_share is not None and engine.kv_used_share >= KV_TIGHT:
            return None
        if self._limit < self._good_limit:
            step = REGAIN_SHARE * self._limit
            return self._set(min(self._limit + step, self._good_limit), "the backend refuses no more")
        step = max(1.0, GROWTH_SHARE * self._limit)
        cause = f"{signals.in_flight} in flight use the limit, and {why}"
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
            # Engines fill nine tenths of the memory at start: only a rise to nearly full is a signal.
            share, before = gpu.memory_used_share, self._memory_share
            self._memory_share = share
            if before is not None and before < GPU_MEMORY_FULL <= share:
                return f"the GPU's memory filled up to {share:.0%}"
        return None

    def _note_hard(self, now: float) -> None:
        if now - self._hard_at > EPISODE_SECONDS:
            self._good_limit = self._limit * HARD_CUT
        self._hard_at = now

    def _hard(self, now: float, cause: str) -> str | None:
        self._note_hard(now)
        if now - self._hard_cut_at < CUT_PAUSE_SECONDS:
            return None
        self.hard_cuts += 1
        self._hard_cut_at = self._cut_at = now
        floor = min(self._limit, self._good_limit * HARD_FLOOR_SHARE / HARD_CUT)
        return self._set(max(self._limit * HARD_CUT, floor), cause)

    def _set(self, limit: float, cause: str) -> str | None:
        before, old = self.limit_requests, self._limit
        self._limit = min(max(limit, self._limit_min), self._limit_max)
        if self._felt is not None:
            # By Little's law, for a fully loaded backend: the latency follows the limit with a delay.
            self._felt *= self._limit / old
        return None if self.limit_requests == before else cause
