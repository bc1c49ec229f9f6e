"""`latency_ratio` second by second: what it compares, when it cuts, when it grows."""

from __future__ import annotations

import pytest

from forebay_worker.pacing.policies.latency_ratio import LatencyRatio
from forebay_worker.pacing.policy import Ended, Signals


def policy(limit_start: int = 100) -> LatencyRatio:
    return LatencyRatio(limit_min=4, limit_start=limit_start, limit_max=256)


def second(under_test: LatencyRatio, *, at: float, latencies: list[float], in_flight: int = 0) -> str | None:
    for latency in latencies:
        under_test.observe(
            Ended(
                at=at,
                service_seconds=latency,
                in_flight=in_flight,
                succeeded=True,
                prompt_tokens=100,
                output_tokens=100,
            )
        )
    return under_test.step(Signals(now=at, in_flight=in_flight, waiting=0))


@pytest.mark.parametrize(
    ("case", "latencies", "in_flight", "limit"),
    [
        ("as fast as the baseline, and used: grows by a twentieth", [1.0, 3.0], 80, 105),
        ("as fast as the baseline, but not used: stays", [1.0, 3.0], 79, 100),
        ("a fifth slower is tolerated", [2.4], 0, 100),
        ("1.5 times the baseline: cut in proportion", [3.0], 100, 80),
        ("ten times the baseline: a second takes no more than half", [20.0], 100, 50),
        ("faster: a new baseline, and nothing to cut", [0.5], 0, 100),
        ("no answer in the second: nothing to compare", [], 100, 100),
    ],
)
def test_a_second_against_the_baseline_of_2_s(case: str, latencies: list[float], in_flight: int, limit: int) -> None:
    under_test = policy()
    second(under_test, at=1, latencies=[2.0])
    second(under_test, at=2, latencies=latencies, in_flight=in_flight)
    assert under_test.limit_requests == limit, case


def test_the_cause_says_what_was_compared() -> None:
    under_test = policy()
    second(under_test, at=1, latencies=[1.84])
    assert second(under_test, at=2, latencies=[2.41]) == "mean latency 2.41 s is 1.31 times its baseline 1.84 s"


def test_a_baseline_that_is_never_met_again_is_forgotten() -> None:
    under_test = policy()
    second(under_test, at=0, latencies=[1.0])
    for at in range(1, 60):
        assert second(under_test, at=at, latencies=[3.0]) is not None or under_test.limit_requests == 4
    for at in range(60, 1800):
        second(under_test, at=at, latencies=[3.0], in_flight=256)
    assert under_test.limit_requests == 256


def test_failures_tell_nothing_of_the_latency() -> None:
    under_test = policy()
    failed = Ended(at=1, service_seconds=9, in_flight=100, succeeded=False, prompt_tokens=0, output_tokens=0)
    under_test.observe(failed)
    assert under_test.step(Signals(now=1, in_flight=100, waiting=9)) is None
    assert under_test.limit_requests == 100


def test_refusals_cut_by_three_tenths_and_only_once_in_two_seconds() -> None:
    under_test = policy()
    assert under_test.refused(10.0) == "the backend refused a request as too much for it"
    assert under_test.refused(11.9) is None
    assert under_test.limit_requests == 70
    for at in range(12, 100, 2):
        under_test.refused(at)
    assert under_test.limit_requests == 4
