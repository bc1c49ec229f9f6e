"""The backend's time per token, fitted to its counters or to the answers as they arrive. Pure."""

from __future__ import annotations

import math

OUTPUT_TOKENS_MIN = 8
"""A shorter answer shows no time per token: most of its time is prompt and network."""

TOKEN_ALPHA = 0.05
"""A mean of about twenty answers: each reflects its own seconds, and chance."""

METER_ALPHA = 0.3
"""A second of counters is the mean of all running requests: three are enough, and a slower engine is noticed at
once."""

PREFILL_CHUNK_TOKENS = 2048
"""Prompt tokens that engines take in with one step: vLLM's default, and near the others'."""

FORGETTING = 0.995
"""Of each row, and an observation makes two (see `PULL`): it counts a third after a hundred more. An engine
that lost 30 % of its speed is followed to within 5 % in 400 seconds or answers; `token_seconds` follows at once."""

OVERHEAD_SHARE = 0.2
"""See `ServiceModel.knee_requests`. On the pacing benchmark .15 costs urgent requests, .25 throughput."""

PULL = 0.15
"""Weight of the learnt ratio of step and sequence beside an observation. With a varying load it is little; with a
steady one it exceeds the noise."""

PULL_VARIANCE = 1 - FORGETTING**2
"""Variance of the pull's own row where only the pull determines that ratio."""

RELATION_ALPHA = 0.01
"""The ratio belongs to a kind of engine: a mean of some hundred informative observations."""

METERED_WEIGHT = 3.0
"""Weight of a second of the engine's counters against an answer, whose course in the engine is guessed."""

OUTPUT_TOKEN_SECONDS_MIN = 1e-5
PROMPT_TOKEN_SECONDS_MIN = 1e-7
"""Faster values come from a cache before the engine, or from a counter that jumped or is broken. One such row would
outweigh all others for an hour. The fastest engines take ten times as long."""

STEP_SECONDS = 0.010
SEQUENCE_SECONDS = 0.0002
PROMPT_TOKEN_SECONDS = 0.00005
"""For an unknown engine: a large model on one node. The first few answers outweigh these."""

_Three = tuple[float, float, float]
"""For a step, a sequence in it, and a prompt token in it."""

_UNITS: _Three = (1e-2, 1e-4, 1e-3)
"""Scales of the three, so that their numbers are near 1."""
_SPREAD = (10.0, 40.0, 0.05)
"""Likely errors of the first three, squared: 32 ms, 0.6 ms and 0.2 ms."""


class LeastSquares:
    """Recursive least squares with forgetting (Haykin, Adaptive Filter Theory, chapter 10) for three weights. Written
    without loops, which took twice as long: it runs twice at each answer.

    ``spread``: uncertainty of each first weight, squared, in units of an answer's own noise.
    """

    __slots__ = ("_covariance", "_spread", "weights")

    def __init__(self, *, weights: _Three, spread: _Three) -> None:
        self.weights = weights
        self._spread = spread
        self._covariance = (spread[0], 0.0, 0.0, spread[1], 0.0, spread[2])
        """The upper half; it is symmetric."""

    def learn(self, inputs: _Three, output: float) -> float:
        """Learns from an observation of output = sum(weight * input). Returns the variance of that sum before."""
        x, y, z = inputs
        a, b, c = self.weights
        aa, ab, ac, bb, bc, cc = self._covariance
        gain_a, gain_b, gain_c = aa * x + ab * y + ac * z, ab * x + bb * y + bc * z, ac * x + bc * y + cc * z
        variance = gain_a * x + gain_b * y + gain_c * z
        scale = FORGETTING + variance
        step = (output - (a * x + b * y + c * z)) / scale
        self.weights = (a + gain_a * step, b + gain_b * step, c + gain_c * step)
        aa = (aa - gain_a * gain_a / scale) / FORGETTING
        bb = (bb - gain_b * gain_b / scale) / FORGETTING
        cc = (cc - gain_c * gain_c / scale) / FORGETTING
        # A direction without news would grow its covariance for ever; the others must go on forgetting.
        shrink_a, shrink_b, shrink_c = (
            math.sqrt(most / now) if now > most else 1.0 for now, most in zip((aa, bb, cc), self._spread, strict=True)
        )
        self._covariance = (
            aa * shrink_a * shrink_a,
            (ab - gain_a * gain_b / scale) / FORGETTING * shrink_a * shrink_b,
            (ac - gain_a * gain_c / scale) / FORGETTING * shrink_a * shrink_c,
            bb * shrink_b * shrink_b,
            (bc - gain_b * gain_c / scale) / FORGETTING * shrink_b * shrink_c,
            cc * shrink_c * shrink_c,
        )
        return variance


class ServiceModel:
    """Continuous batching: a step takes ``a + b * sequences decoded + c * prompt tokens prefilled`` seconds and puts
    out one token of each sequence.

    So an answer takes ``a * output + b * output * in flight + c * prefilled``, where ``prefilled`` are all prompt
    tokens that the backend took in during the answer. The same holds for a second of work, with the tokens of all
    requests together. Where the engine counts its tokens, the seconds are fitted, else the answers.

    Seconds of counters include other workers' work on the same engine. Answers show only this worker's requests; the
    others' cost shows as a longer step.

    ``token_seconds``: present time of an output token, as a client sees it; None before the first answer.
    ``is_metered``: the model now learns from the engine's counters.
    """

    __slots__ = (
        "_fit",
        "_step_to_sequence",
        "is_metered",
        "prompt_token_seconds",
        "sequence_seconds",
        "step_seconds",
        "token_seconds",
    )

    def __init__(self) -> None:
        self.step_seconds, self.sequence_seconds = STEP_SECONDS, SEQUENCE_SECONDS
        self.prompt_token_seconds = PROMPT_TOKEN_SECONDS
        first = (STEP_SECONDS / _UNITS[0], SEQUENCE_SECONDS / _UNITS[1], PROMPT_TOKEN_SECONDS / _UNITS[2])
        self._fit = LeastSquares(weights=first, spread=_SPREAD)
        self._step_to_sequence = self._fit.weights[0] / self._fit.weights[1]
        self.token_seconds: float | None = None
        self.is_metered = False

    @property
    def fitted_seconds(self) -> tuple[float, float, float] | None:
        """Seconds of a step, of a sequence in it, and of a prompt token in it; None before the first answer."""
        if self.token_seconds is None:
            return None
        return self.step_seconds, self.sequence_seconds, self.prompt_token_seconds

    def start_from(self, fitted_seconds: tuple[float, float, float]) -> None:
        """Starts from another worker's figures for the same engine. Only varying loads separate a step from its
        sequences. A worker that joins at a full engine may never see one, and would keep its initial figures."""
        self.step_seconds, self.sequence_seconds, self.prompt_token_seconds = fitted_seconds
        step, sequence, prompt_token = (seconds / unit for seconds, unit in zip(fitted_seconds, _UNITS, strict=True))
        self._fit = LeastSquares(weights=(step, sequence, prompt_token), spread=_SPREAD)
        if step > 0 and sequence > 0:
            self._step_to_sequence = step / sequence

    def learn(
        self,
        *,
        service_seconds: float,
        prompt_tokens: int,
        output_tokens: int,
        ahead_tokens: float,
        prefilled_tokens: float,
        in_flight: float,
    ) -> None:
        """Learns from an answer. ``ahead_tokens``: prompt tokens to be prefilled before its own. ``in_flight``: mean
        number of requests during its time."""
        if self.is_metered or not _is_possible(service_seconds, output_tokens, prefilled_tokens):
            return
        self._learn(output_tokens, output_tokens * in_flight, prefilled_tokens, service_seconds)
        rest = service_seconds - self.prompt_token_seconds * (prompt_tokens + ahead_tokens)
        self._felt(max(0.0, rest) / max(output_tokens, OUTPUT_TOKENS_MIN), TOKEN_ALPHA)

    def meter(self, *, seconds: float, prompt_tokens: float, output_tokens: float, in_flight: float) -> None:
        """Learns from the engine's counters over a time in which it was never idle. ``in_flight``: mean number of
        requests that it ran, from all clients."""
        self.is_metered = True
        steps = output_tokens / max(1.0, in_flight)
        if not _is_possible(seconds, steps, prompt_tokens):
            return
        weight = METERED_WEIGHT
        self._learn(weight * steps, weight * output_tokens, weight * prompt_tokens, weight * seconds)
        if steps >= 1:
            self._felt(seconds / steps, METER_ALPHA)

    def unmetered(self) -> None:
        """Notes that the engine's counters are missing or empty: answers count again."""
        self.is_metered = False

    def seconds(self, *, prompt_tokens: float, output_tokens: int, in_flight: float) -> float:
        """Duration of an answer whose prompt, with those ahead of it, has this many tokens; 0 before the first one."""
        if self.token_seconds is None:
            return 0.0
        return self.prefill_token_seconds(in_flight) * prompt_tokens + self.token_seconds * output_tokens

    def prefill_token_seconds(self, in_flight: float) -> float:
        """Time of a prompt token that waits for prefill while ``in_flight`` others are decoded: each chunk of prompts
        shares its step with them."""
        decode = self.step_seconds + self.sequence_seconds * in_flight
        return self.prompt_token_seconds + decode / PREFILL_CHUNK_TOKENS

    def knee_requests(self, *, prompt_tokens: float, output_tokens: float) -> float:
        """Number of requests of this size in flight at which `OVERHEAD_SHARE` of the backend's time goes to the fixed
        part of steps.

        With L in flight a request takes ``a * output / L`` of that, and ``b * output + c * prompt`` of its own.
        """
        own = self.prompt_token_seconds * prompt_tokens + self.sequence_seconds * output_tokens
        return self.step_seconds * output_tokens * (1 - OVERHEAD_SHARE) / (OVERHEAD_SHARE * own) if own else 0.0

    def _felt(self, seconds: float, alpha: float) -> None:
        known = self.token_seconds
        self.token_seconds = seconds if known is None else known + alpha * (seconds - known)

    def _learn(self, steps: float, tokens: float, prefilled: float, seconds: float) -> None:
        if steps > 0:
            self._pull(PULL * steps * _UNITS[0])
        self._fit.learn((steps * _UNITS[0], tokens * _UNITS[1], prefilled * _UNITS[2]), seconds)
        step, sequence, prompt_token = self._fit.weights
        # Noise may make a small one negative.
        self.step_seconds = max(0.0, step * _UNITS[0])
        self.sequence_seconds = max(0.0, sequence * _UNITS[1])
        self.prompt_token_seconds = max(0.0, prompt_token * _UNITS[2])

    def _pull(self, weight: float) -> None:
        """Keeps the ratio of step and sequence while the load is too steady to learn it."""
        variance = self._fit.learn((weight, -weight * self._step_to_sequence, 0.0), 0.0)
        told = max(0.0, 1 - variance / PULL_VARIANCE)
        step, sequence, _ = self._fit.weights
        if step > 0 and sequence > 0:
            self._step_to_sequence *= (step / sequence / self._step_to_sequence) ** (RELATION_ALPHA * told**2)


def _is_possible(seconds: float, steps: float, prefilled: float) -> bool:
    return seconds >= steps * OUTPUT_TOKEN_SECONDS_MIN and seconds >= prefilled * PROMPT_TOKEN_SECONDS_MIN
