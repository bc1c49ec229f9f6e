"""The demo's traffic: shape, tiers and lengths."""

from __future__ import annotations

from collections import Counter

import pytest

from forebay_sandbox.demo.trace import load_trace
from forebay_sandbox.demo.traffic import OUTPUT_TOKENS_MAX, PULSE_FACTOR, Pulse, schedule
from forebay_sandbox.stack.stack import PHYSICS
from forebay_schemas.contract.tiers import Tier
from forebay_schemas.errors import UsageError

PULSE = Pulse.of(total_seconds=60, valley_per_second=10)


def test_the_slice_is_in_order_and_starts_at_zero() -> None:
    trace = load_trace()
    assert len(trace) == 700
    moments = [row.at_seconds for row in trace]
    assert moments[0] == 0
    assert moments == sorted(moments)


def test_the_pulse_brings_four_times_the_valley() -> None:
    arrivals = schedule(PULSE, load_trace())
    assert len(arrivals) == 960
    in_pulse = sum(PULSE.pulse_start_seconds <= one.at_seconds < PULSE.pulse_end_seconds for one in arrivals)
    pulse_rate = in_pulse / (PULSE.pulse_end_seconds - PULSE.pulse_start_seconds)
    valley_rate = (len(arrivals) - in_pulse) / (60 - 12)
    assert pulse_rate == pytest.approx(PULSE_FACTOR * valley_rate, rel=0.15)


def test_arrivals_come_in_order_within_the_time() -> None:
    moments = [one.at_seconds for one in schedule(PULSE, load_trace())]
    assert moments == sorted(moments)
    assert moments[0] >= 0
    assert moments[-1] <= 60


def test_a_quarter_is_high_a_quarter_mid_and_half_low() -> None:
    tiers = Counter(one.tier for one in schedule(PULSE, load_trace()))
    assert tiers == {Tier.HIGH: 240, Tier.MID: 240, Tier.LOW: 480}


def test_an_idle_engine_serves_the_median_request_in_a_quarter_of_a_second() -> None:
    def alone_seconds(prompt_tokens: int, output_tokens: int) -> float:
        return output_tokens * PHYSICS.step_seconds(decoding=1, prefill_tokens=0) + prompt_tokens * PHYSICS.c_seconds

    ordered = sorted(alone_seconds(one.prompt_tokens, one.output_tokens) for one in schedule(PULSE, load_trace()))
    assert ordered[len(ordered) // 2] == pytest.approx(0.25, abs=0.03)
    assert ordered[-1] < 0.4


def test_the_engine_sustains_the_mean_rate_but_not_the_pulse() -> None:
    full = PHYSICS.max_num_seqs

    def work_seconds(prompt_tokens: int, output_tokens: int) -> float:
        per_token = PHYSICS.step_seconds(decoding=full, prefill_tokens=0) / full
        return output_tokens * per_token + prompt_tokens * PHYSICS.c_seconds

    arrivals = schedule(PULSE, load_trace())
    sustained = len(arrivals) / sum(work_seconds(one.prompt_tokens, one.output_tokens) for one in arrivals)
    assert len(arrivals) / 60 < 0.85 * sustained
    assert PULSE.rate_at(18) > 1.5 * sustained


@pytest.mark.parametrize("expected", [0.0, 10.0, 120.0, 300.0, 600.0, 959.9])
def test_when_is_the_inverse_of_what_is_expected(expected: float) -> None:
    assert PULSE.expected_by(PULSE.when(expected)) == pytest.approx(expected)


def test_a_trace_that_is_too_short_starts_again() -> None:
    trace = load_trace()[:50]
    arrivals = schedule(PULSE, trace)
    assert len(arrivals) == 960
    assert arrivals[50].prompt_tokens == arrivals[0].prompt_tokens
    moments = [one.at_seconds for one in arrivals]
    assert moments == sorted(moments)


def test_the_payload_is_a_chat_of_the_traces_lengths() -> None:
    arrival = schedule(PULSE, load_trace())[0]
    payload = arrival.payload(model="m")
    assert len(payload["messages"][0]["content"]) == 4 * arrival.prompt_tokens
    assert payload["max_tokens"] == arrival.output_tokens <= OUTPUT_TOKENS_MAX
    assert arrival.ttl_ms == 24 * 60 * 60 * 1000


@pytest.mark.parametrize(("seconds", "rate", "field"), [(1, 6, "--seconds"), (60, 0, "--rate"), (60, 1e6, "--rate")])
def test_a_shape_that_cannot_be_run_is_refused(seconds: float, rate: float, field: str) -> None:
    with pytest.raises(UsageError) as refused:
        Pulse.of(total_seconds=seconds, valley_per_second=rate)
    assert refused.value.field == field
