"""`slo_aimd` second by second, one case for each line of its rule: what cuts, what grows, where it rests."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_worker.pacing.policies.slo_aimd import STRETCH_CALM_SECONDS, STRETCH_MAX, SloAimd
from forebay_worker.pacing.policy import Signals
from forebay_worker.signals.readings import EngineReading, GpuReading

TARGET = 0.050
REFUSED = "the backend refused a request as too much for it"
IN_TIME = "100 in flight use the limit, and a token comes in time"
BELOW_KNEE = "100 in flight use the limit, and fewer than 112 would waste the backend's time"


def policy(limit_start: int = 100, *, limit_min: int = 4, limit_max: int = 256) -> SloAimd:
    return SloAimd(limit_min=limit_min, limit_start=limit_start, limit_max=limit_max, token_seconds_target=TARGET)


def signals(now: float = 100.0, *, in_flight: int = 100, **fields: object) -> Signals:
    return replace(Signals(now=now, in_flight=in_flight, waiting=0, token_seconds=0.02), **fields)  # type: ignore[arg-type]


def engine(**fields: float) -> EngineReading:
    return EngineReading(at=100.0, **fields)


def gpu(**fields: float) -> GpuReading:
    return GpuReading(at=100.0, **fields)


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


# Hard cuts


def test_refusals_cut_once_in_two_seconds() -> None:
    under_test = policy()
    assert under_test.refused(10.0) == REFUSED
    assert under_test.limit_requests == 70
    assert under_test.refused(10.5) is None
    assert under_test.refused(11.9) is None
    assert under_test.limit_requests == 70
    assert under_test.refused(12.0) == REFUSED
    assert under_test.limit_requests == 49


def test_preemptions_that_grew_cut() -> None:
    under_test = policy()
    under_test.step(signals(1.0, in_flight=1, engine=engine(preemptions_total=10)))
    assert under_test.step(signals(2.0, in_flight=1, engine=engine(preemptions_total=10))) is None
    cause = under_test.step(signals(3.0, in_flight=1, engine=engine(preemptions_total=13)))
    assert cause == "the engine preempted 3 requests"
    assert under_test.limit_requests == 70


def test_an_engine_that_was_started_anew_preempted_nothing() -> None:
    under_test = policy()
    under_test.step(signals(1.0, in_flight=1, engine=engine(preemptions_total=10)))
    assert under_test.step(signals(2.0, in_flight=1, engine=engine(preemptions_total=0))) is None
    assert under_test.step(signals(3.0, in_flight=1, engine=engine(preemptions_total=1))) is not None


def test_gpu_memory_that_fills_to_the_brim_cuts_once() -> None:
    under_test = policy()
    under_test.step(signals(1.0, in_flight=1, gpu=gpu(memory_used_share=0.90)))
    cause = under_test.step(signals(2.0, in_flight=1, gpu=gpu(memory_used_share=0.98)))
    assert cause == "the GPU's memory filled up to 98%"
    assert under_test.limit_requests == 70
    assert under_test.step(signals(5.0, in_flight=1, gpu=gpu(memory_used_share=0.99))) is None


def test_gpu_memory_says_nothing_where_the_engine_has_metrics() -> None:
    under_test = policy()
    for at, share in ((1.0, 0.90), (2.0, 0.99)):
        under_test.step(signals(at, in_flight=1, engine=engine(running_requests=1), gpu=gpu(memory_used_share=share)))
    assert under_test.limit_requests == 100


def test_after_a_hard_cut_nothing_moves_for_two_seconds_and_nothing_grows_for_three() -> None:
    under_test = policy()
    under_test.refused(10.0)
    assert under_test.step(signals(11.9, token_seconds=0.5)) is None, "what runs is still the old batch"
    assert under_test.step(signals(12.9, in_flight=70)) is None
    assert under_test.step(signals(13.0, in_flight=70)) is not None


def test_each_refusal_puts_growth_off_also_one_that_cuts_nothing() -> None:
    under_test = policy()
    under_test.refused(10.0)
    under_test.refused(11.9)
    assert under_test.step(signals(14.8, in_flight=70)) is None
    assert under_test.step(signals(14.9, in_flight=70)) is not None


def test_refusals_that_go_on_take_it_to_three_tenths_and_no_further() -> None:
    """Then they are not the limit's doing: a quota's, or a fault's."""
    under_test = policy()
    for at in range(10, 100, 2):
        under_test.refused(float(at))
    assert under_test.limit_requests == 30


def test_the_floor_never_raises_a_limit() -> None:
    under_test = policy()
    under_test.refused(10.0)
    for at in range(11, 60, 2):
        under_test.step(signals(float(at), token_seconds=0.5))
    low = under_test.limit_requests
    assert low < 20
    under_test.refused(60.0)
    assert under_test.limit_requests <= low


def test_what_was_good_is_regained_by_quarters_and_beyond_it_grows_as_usual() -> None:
    under_test = policy()
    for at in (10.0, 12.0, 14.0):
        under_test.refused(at)
    assert under_test.limit_requests == 34
    seen = []
    for at in range(17, 24):
        under_test.step(signals(float(at), in_flight=under_test.limit_requests, token_seconds=0.050, waiting=1))
        seen.append(under_test.limit_requests)
    assert seen[:4] == [42, 53, 66, 70], "to seven tenths of 100, though a token takes what it may"
    assert seen[4:] == [70, 73, 77], "only when the target is stretched, as requests wait"


def test_after_ten_quiet_seconds_a_refusal_begins_anew() -> None:
    under_test = policy()
    under_test.refused(10.0)
    under_test.refused(20.1)
    under_test.refused(22.1)
    assert under_test.limit_requests == 34
    for at in range(24, 60, 2):
        under_test.refused(float(at))
    assert under_test.limit_requests == 21, "three tenths of the 70 that it had then"


# Soft cuts


def test_soft_cuts_come_two_seconds_apart() -> None:
    under_test = policy()
    changes = [under_test.step(signals(float(at), token_seconds=0.5)) is not None for at in range(10, 16)]
    assert changes == [True, False, True, False, True, False]


def test_a_second_of_slow_tokens_is_no_reason() -> None:
    under_test = policy()
    for at in range(10):
        under_test.step(signals(float(at), token_seconds=0.047, in_flight=100))
    assert under_test.step(signals(10.0, token_seconds=0.080)) is None
    assert under_test.limit_requests == 100


def test_after_a_cut_what_is_felt_follows_the_limit() -> None:
    """The answers that come now were begun under the old limit: one cut is enough for them."""
    under_test = policy()
    under_test.step(signals(10.0, token_seconds=0.060))
    limit = under_test.limit_requests
    assert limit == 83
    under_test.step(signals(12.0, in_flight=limit, token_seconds=0.060))
    assert under_test.limit_requests == limit


@pytest.mark.parametrize("knee", [20.0, 40.0, 80.0])
def test_slow_tokens_take_it_to_the_knee_and_it_rests_there(knee: float) -> None:
    under_test = policy()
    for at in range(60):
        under_test.step(signals(float(at), in_flight=under_test.limit_requests, token_seconds=0.5, knee_requests=knee))
    seen = set()
    for at in range(60, 120):
        under_test.step(signals(float(at), in_flight=under_test.limit_requests, token_seconds=0.5, knee_requests=knee))
        seen.add(under_test.limit_requests)
    assert len(seen) == 1, "no swing"
    assert knee * 0.9 <= seen.pop() <= knee * 1.05


# Stretch


def stretched(under_test: SloAimd, *, start: float, seconds: int, waiting: int = 5, dropped: int = 0) -> float:
    for second in range(seconds):
        under_test.step(signals(start + second, token_seconds=0.05, waiting=waiting, dropped=dropped))
    return under_test.token_seconds_target / TARGET


def test_while_requests_wait_and_none_is_dropped_the_target_stretches_to_its_most() -> None:
    under_test = policy()
    assert stretched(under_test, start=0, seconds=1) == pytest.approx(1.1)
    assert stretched(under_test, start=1, seconds=1) == pytest.approx(1.21)
    assert stretched(under_test, start=2, seconds=20) == STRETCH_MAX
    assert under_test.limit_requests > 100, "and the limit makes use of it"


def test_one_that_was_dropped_takes_the_stretch_back_and_holds_it_for_a_while() -> None:
    under_test = policy()
    stretched(under_test, start=0, seconds=20)
    assert stretched(under_test, start=20, seconds=1, dropped=1) == pytest.approx(STRETCH_MAX / 1.21)
    assert stretched(under_test, start=21, seconds=int(STRETCH_CALM_SECONDS) - 1) == 1.0
    assert stretched(under_test, start=20 + STRETCH_CALM_SECONDS, seconds=1) == pytest.approx(1.1)


def test_when_nothing_waits_any_more_the_stretch_ends() -> None:
    under_test = policy()
    stretched(under_test, start=0, seconds=20)
    assert stretched(under_test, start=20, seconds=1, waiting=0) == pytest.approx(STRETCH_MAX / 1.1)
    assert stretched(under_test, start=21, seconds=10, waiting=0) == 1.0


# Idle


def test_an_idle_backend_brings_a_lower_limit_back_to_the_start() -> None:
    under_test = policy(32)
    for at in range(10, 30, 2):
        under_test.refused(float(at))
    assert under_test.limit_requests == 9
    assert under_test.step(signals(30.0, in_flight=0)) == "nothing is in flight: back to the start"
    assert under_test.limit_requests == 32


def test_an_idle_backend_leaves_a_higher_limit() -> None:
    under_test = policy(32)
    for at in range(10):
        under_test.step(signals(float(at), in_flight=under_test.limit_requests, token_seconds=0.01))
    high = under_test.limit_requests
    assert high > 40
    under_test.step(signals(20.0, in_flight=0))
    assert under_test.limit_requests == high


def test_what_was_felt_before_idling_cuts_nothing_after() -> None:
    under_test = policy(32)
    for at in range(20):
        under_test.step(signals(float(at), in_flight=32, token_seconds=0.2))
    assert under_test.limit_requests == 4
    under_test.step(signals(30.0, in_flight=0, token_seconds=0.2))
    under_test.step(signals(31.0, in_flight=30, token_seconds=0.02))
    assert under_test.limit_requests == 33


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
