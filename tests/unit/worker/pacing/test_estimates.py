"""Estimates against what came true: the last answers of each tier, and nothing that was not predicted."""

from __future__ import annotations

from forebay_schemas.contract.tiers import Tier
from forebay_worker.pacing.estimates import ANSWERS_KEPT, Accuracy, Estimates


def test_nothing_is_said_before_the_first_answer() -> None:
    estimates = Estimates()
    assert estimates.service_seconds(Tier.HIGH) is None
    assert estimates.output_tokens(Tier.HIGH) is None


def test_sums_are_compared_and_nine_tenths_of_the_errors_are_bounded() -> None:
    estimates = Estimates()
    for number in range(10):
        estimates.served(Tier.MID, predicted_seconds=2.0, actual_seconds=3.0 if number < 5 else 2.0)
        estimates.put_out(Tier.MID, predicted_tokens=100, actual_tokens=100 - number)
    assert estimates.service_seconds(Tier.MID) == Accuracy(answers=10, actual_over_predicted=1.25, error_p90=1.0)
    assert estimates.output_tokens(Tier.MID) == Accuracy(answers=10, actual_over_predicted=0.955, error_p90=9)
    assert estimates.service_seconds(Tier.LOW) is None


def test_what_was_not_predicted_does_not_count() -> None:
    estimates = Estimates()
    estimates.served(Tier.LOW, predicted_seconds=0.0, actual_seconds=3.0)
    estimates.put_out(Tier.LOW, predicted_tokens=0, actual_tokens=7)
    assert estimates.service_seconds(Tier.LOW) is None
    assert estimates.output_tokens(Tier.LOW) is None


def test_only_the_last_answers_count() -> None:
    estimates = Estimates()
    estimates.served(Tier.HIGH, predicted_seconds=1.0, actual_seconds=100.0)
    for _ in range(ANSWERS_KEPT):
        estimates.served(Tier.HIGH, predicted_seconds=1.0, actual_seconds=1.0)
    found = estimates.service_seconds(Tier.HIGH)
    assert found == Accuracy(answers=ANSWERS_KEPT, actual_over_predicted=1.0, error_p90=0.0)
