"""What the backend takes for a token, fitted to the answers as they come. Pure."""

from __future__ import annotations

OUTPUT_TOKENS_MIN = 8
"""Of a shorter answer the time per token says nothing: it is mostly prompt and way."""

TOKEN_ALPHA = 0.05
FORGETTING = 0.995

STEP_SECONDS = 0.010
SEQUENCE_SECONDS = 0.0002
PROMPT_TOKEN_SECONDS = 0.00005
"""Of an engine that nothing is known of yet: a large model on one node. The first few answers count more than these."""

_UNITS = (1e-2, 1e-4, 1e-3)
"""Scales of the three, so that their numbers are near 1."""
_SPREAD = (10.0, 40.0, 0.05)


class LeastSquares:
    """Recursive least squares with forgetting (Haykin, Adaptive Filter Theory, chapter 10), for a few weights.

    ``spread``: how far each first weight may be from the truth, squared, in units of an answer's own noise.
    """

    __slots__ = ("_covariance", "_spread", "weights")

    def __init__(self, *, weights: tuple[float, ...], spread: tuple[float, ...]) -> None:
        self.weights = list(weights)
        self._spread = spread
        size = range(len(weights))
        self._covariance = [[spread[row] if row == column else 0.0 for column in size] for row in size]

    def learn(self, inputs: tuple[float, ...], output: float) -> None:
        """An observation of output = sum(weight * input)."""
        covariance, size = self._covariance, range(len(inputs))
        gains = [sum(covariance[row][column] * inputs[column] for column in size) for row in size]
        scale = FORGETTING + sum(gains[row] * inputs[row] for row in size)
        error = output - sum(self.weights[row] * inputs[row] for row in size)
        for row in size:
            self.weights[row] += gains[row] / scale * error
        # Without news in some direction its covariance would grow for ever.
        grown = any(covariance[row][row] > self._spread[row] for row in size)
        keep = 1.0 if grown else 1 / FORGETTING
        for row in size:
            for column in size:
                covariance[row][column] = (covariance[row][column] - gains[row] * gains[column] / scale) * keep


class ServiceModel:
    """Continuous batching: a step takes ``a + b * sequences decoded + c * prompt tokens prefilled`` seconds and puts
    out one token of each sequence. So an answer takes ``a * output + b * output * in flight + c * prefilled``, where
    ``prefilled`` are all prompt tokens that the backend took in while it was worked on.

    ``token_seconds``: what an output token takes lately as a client feels it, its own prompt's prefill taken off;
    None before the first answer.
    """

    __slots__ = ("_fit", "prompt_token_seconds", "sequence_seconds", "step_seconds", "token_seconds")

    def __init__(self) -> None:
        first = (STEP_SECONDS, SEQUENCE_SECONDS, PROMPT_TOKEN_SECONDS)
        self._fit = LeastSquares(weights=tuple(w / unit for w, unit in zip(first, _UNITS, strict=True)), spread=_SPREAD)
        self.step_seconds, self.sequence_seconds, self.prompt_token_seconds = first
        self.token_seconds: float | None = None

    def learn(
        self,
        *,
        service_seconds: float,
        prompt_tokens: int,
        output_tokens: int,
        prefilled_tokens: float,
        in_flight: float,
    ) -> None:
        """An answer; ``in_flight``: how many were, on the average over its time."""
        inputs = (output_tokens, output_tokens * in_flight, prefilled_tokens)
        self._fit.learn((inputs[0] * _UNITS[0], inputs[1] * _UNITS[1], inputs[2] * _UNITS[2]), service_seconds)
        # Noise may make a small one negative.
        self.step_seconds, self.sequence_seconds, self.prompt_token_seconds = (
            max(0.0, weight * unit) for weight, unit in zip(self._fit.weights, _UNITS, strict=True)
        )
        rest = max(0.0, service_seconds - self.prompt_token_seconds * prompt_tokens)
        seconds = rest / max(output_tokens, OUTPUT_TOKENS_MIN)
        known = self.token_seconds
        self.token_seconds = seconds if known is None else known + TOKEN_ALPHA * (seconds - known)

    def seconds(self, *, prompt_tokens: float, output_tokens: int) -> float:
        """How long an answer takes whose prompt, with those ahead of it, has so many tokens; 0 before the first one."""
        if self.token_seconds is None:
            return 0.0
        return self.prompt_token_seconds * prompt_tokens + self.token_seconds * output_tokens
