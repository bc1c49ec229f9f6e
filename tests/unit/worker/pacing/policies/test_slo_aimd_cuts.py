"""`slo_aimd`: hard and soft cuts, stretch, and idle backends."""

from __future__ import annotations

import pytest

from forebay_worker.pacing.policies.slo_aimd import STRETCH_CALM_SECONDS, STRETCH_MAX, SloAimd
from simulated.slo_aimd import REFUSED, TARGET, engine, gpu, policy, signals


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
