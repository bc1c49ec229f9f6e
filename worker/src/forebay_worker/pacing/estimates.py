"""Accuracy of predictions: predicted against actual seconds and tokens of each tier's last answers. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from forebay_schemas.contract.tiers import TIERS, Tier

ANSWERS_KEPT = 200
ERROR_SHARE = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """``actual_over_predicted``: ratio of the sums over the last ``answers``. ``error_p90``: nine tenths of the errors,
    in either direction, are at most this, in the unit of the prediction."""

    answers: int
    actual_over_predicted: float
    error_p90: float


class Estimates:
    """Keeps the last `ANSWERS_KEPT` of each tier. Noting one takes less than a microsecond."""

    def __init__(self) -> None:
        self._service_seconds: dict[Tier, deque[tuple[float, float]]] = _kept()
        self._output_tokens: dict[Tier, deque[tuple[float, float]]] = _kept()

    def served(self, tier: Tier, *, predicted_seconds: float, actual_seconds: float) -> None:
        """Notes an answer. Requests without a prediction do not count."""
        if predicted_seconds:
            self._service_seconds[tier].append((predicted_seconds, actual_seconds))

    def put_out(self, tier: Tier, *, predicted_tokens: int, actual_tokens: int) -> None:
        """Notes the number of tokens that the backend reports for an answer."""
        if predicted_tokens:
            self._output_tokens[tier].append((predicted_tokens, actual_tokens))

    def service_seconds(self, tier: Tier) -> Accuracy | None:
        """Accuracy of predicted execution seconds; None before the first answer."""
        return _accuracy(self._service_seconds[tier])

    def error_ratio(self, tier: Tier) -> float | None:
        """Mean error of an execution's prediction, in either direction, as a share of its length; None before the
        first."""
        errors = [abs(predicted - actual) / actual for predicted, actual in self._service_seconds[tier] if actual > 0]
        return sum(errors) / len(errors) if errors else None

    def output_tokens(self, tier: Tier) -> Accuracy | None:
        """Accuracy of predicted answer tokens; None before the first answer with a count."""
        return _accuracy(self._output_tokens[tier])


def _kept() -> dict[Tier, deque[tuple[float, float]]]:
    return {tier: deque(maxlen=ANSWERS_KEPT) for tier in TIERS}


def _accuracy(pairs: deque[tuple[float, float]]) -> Accuracy | None:
    if not pairs:
        return None
    errors = sorted(abs(actual - predicted) for predicted, actual in pairs)
    return Accuracy(
        answers=len(pairs),
        actual_over_predicted=round(sum(actual for _, actual in pairs) / sum(predicted for predicted, _ in pairs), 3),
        error_p90=round(errors[min(len(errors) - 1, int(ERROR_SHARE * len(errors)))], 3),
    )
