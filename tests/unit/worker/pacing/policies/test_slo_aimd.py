"""`slo_aimd` second by second, one case for each line of its rule."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_worker.pacing.policies.slo_aimd import STRETCH_MAX, SloAimd
from forebay_worker.pacing.policy import Signals
from forebay_worker.signals.readings import EngineReading, GpuReading
from simulated.slo_aimd import BELOW_KNEE, IN_TIME, TARGET, engine, gpu, policy, signals


@pytest.mark.parametrize(
    ("case", "given_signals", "limit", "cause"),
    [
        # Growth
        ("used, and in time: a twentieth more", signals(token_seconds=0.040), 105, IN_TIME),
        ("before the first answer: nothing says that the start was too low", signals(token_seconds=None), 100, None),
        ("four fifths are used enough", signals(in_flight=80), 105, IN_TIME.replace("100", "80")),
        ("less is not: nothing was learnt of more", signals(in_flight=79, token_seconds=0.010), 100, None),
        (
            "with slots that those who wait must not take: the same",
            signals(in_flight=63, waiting=9, reserved=17),
            105,
            IN_TIME.replace("100", "63"),
        ),
        ("slots that are kept free while nobody waits are not used", signals(in_flight=63, reserved=17), 100, None),
        ("the KV cache is tight: stays", signals(engine=engine(kv_used_share=0.85)), 100, None),
        ("the KV cache is nearly tight: grows", signals(engine=engine(kv_used_share=0.84)), 105, IN_TIME),
        (
            "some wait for a GPU that is idle at times: twice as much",
            signals(waiting=7, gpu=gpu(utilisation=0.59)),
            110,
            "7 wait while the GPU is busy for only 59%",
        ),
        ("the GPU is idle, but nothing waits for it", signals(gpu=gpu(utilisation=0.1)), 105, IN_TIME),
        ("some wait, and the GPU is busy", signals(waiting=7, gpu=gpu(utilisation=0.60)), 105, IN_TIME),
        ("some wait, and the GPU does not say", signals(waiting=7, gpu=gpu(memory_used_share=0.5)), 105, IN_TIME),
        # Rest
        ("near its target: rests", signals(token_seconds=0.0451), 100, None),
        ("a little over its target: rests", signals(token_seconds=0.0549), 100, None),
        (
            "near its target, but well below the knee: grows",
            signals(token_seconds=0.0451, knee_requests=112.0),
            105,
            BELOW_KNEE,
        ),
        (
            "over its target, but well below the knee: grows",
            signals(token_seconds=0.5, knee_requests=112.0),
            105,
            BELOW_KNEE,
        ),
        ("over its target, at the knee: rests", signals(token_seconds=0.5, knee_requests=96.0), 100, None),
        # Soft cut
        (
            "over its target: down in proportion",
            signals(token_seconds=0.0556),
            89,
            "56 ms a token is over the target of 50 ms",
        ),
        (
            "far over its target: down by a fifth at most",
            signals(token_seconds=0.5),
            80,
            "500 ms a token is over the target of 50 ms",
        ),
        (
            "far over its target, the knee is near: down to the knee",
            signals(token_seconds=0.5, knee_requests=90.0),
            90,
            "500 ms a token is over the target of 50 ms",
        ),
        (
            "over its target, though nothing runs that uses it: the same",
            signals(in_flight=1, token_seconds=0.5),
            80,
            "500 ms a token is over the target of 50 ms",
        ),
        # Hard cut
        (
            "the KV cache is full: down by three tenths",
            signals(engine=engine(kv_used_share=0.96)),
            70,
            "the KV cache is 96% full",
        ),
        ("the first sight of preemptions tells nothing", signals(engine=engine(preemptions_total=9)), 105, IN_TIME),
        (
            "the GPU's memory is full from the start: engines fill it",
            signals(gpu=gpu(memory_used_share=0.99)),
            105,
            IN_TIME,
        ),
        # Idle
        ("nothing in flight, nothing waits: stays where it started", signals(in_flight=0), 100, None),
    ],
)
def test_a_second(case: str, given_signals: Signals, limit: int, cause: str | None) -> None:
    under_test = policy()
    assert under_test.step(given_signals) == cause, case
    assert under_test.limit_requests == limit, case


@pytest.mark.parametrize("reserve_share", [0.17, 0.5])
def test_a_reserve_never_pins_the_limit_while_requests_wait(reserve_share: float) -> None:
    """Mid and low alone: whatever the limit, they fill all of it but the reserve."""
    under_test = policy(4)
    for at in range(200):
        reserved = max(1, int(reserve_share * under_test.limit_requests))
        in_flight = under_test.limit_requests - reserved
        under_test.step(signals(float(at), in_flight=in_flight, waiting=9, reserved=reserved, token_seconds=0.02))
    assert under_test.limit_requests == 256


def test_growth_is_one_request_at_least() -> None:
    under_test = policy(6)
    under_test.step(signals(in_flight=6))
    assert under_test.limit_requests == 7


# Always


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"limit_min": 0}, "limit_min must be from 1 to limit_max"),
        ({"limit_min": 300}, "limit_min must be from 1 to limit_max"),
        ({"token_seconds_target": 0.0}, "token_seconds_target must be above 0"),
        ({"token_seconds_target": float("nan")}, "token_seconds_target must be above 0"),
    ],
)
def test_bounds_that_make_no_sense_are_refused(fields: dict[str, float], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        SloAimd(**({"limit_min": 4, "limit_start": 32, "limit_max": 256, "token_seconds_target": 0.05} | fields))  # type: ignore[arg-type]


@pytest.mark.parametrize(("limit_start", "limit"), [(1, 4), (32, 32), (1000, 256)])
def test_the_start_is_kept_within_the_bounds(limit_start: int, limit: int) -> None:
    assert policy(limit_start).limit_requests == limit


shares = st.none() | st.floats(0, 1)
readings = st.none() | st.builds(
    EngineReading,
    at=st.just(0.0),
    kv_used_share=shares,
    preemptions_total=st.none() | st.floats(0, 2**53),
    running_requests=st.none() | st.floats(0, 1e6),
)
gpus = st.none() | st.builds(GpuReading, at=st.just(0.0), utilisation=shares, memory_used_share=shares)
moments = st.builds(
    Signals,
    now=st.just(0.0),
    in_flight=st.integers(0, 10_000),
    waiting=st.integers(0, 10),
    dropped=st.integers(0, 3),
    token_seconds=st.none() | st.just(0.0) | st.floats(0, 1e9),
    knee_requests=st.just(0.0) | st.floats(0, 1e12),
    engine=readings,
    gpu=gpus,
)


@given(
    bounds=st.lists(st.integers(1, 1000), min_size=3, max_size=3),
    events=st.lists(st.tuples(st.floats(0, 20), st.booleans(), moments), max_size=40),
)
def test_the_limit_never_leaves_its_bounds_and_each_change_has_its_cause(
    bounds: list[int], events: list[tuple[float, bool, Signals]]
) -> None:
    limit_min, limit_start, limit_max = sorted(bounds)
    under_test = policy(limit_start, limit_min=limit_min, limit_max=limit_max)
    now = 0.0
    for passed, refused, seen in events:
        now += passed
        before = under_test.limit_requests
        cause = under_test.refused(now) if refused else under_test.step(replace(seen, now=now))
        assert limit_min <= under_test.limit_requests <= limit_max
        assert (cause is not None) == (under_test.limit_requests != before)
        assert TARGET <= under_test.token_seconds_target <= TARGET * STRETCH_MAX
