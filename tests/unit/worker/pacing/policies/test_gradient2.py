"""`gradient2` by the figures of its formula."""

from __future__ import annotations

import pytest

from forebay_worker.pacing.policies.gradient2 import Gradient2
from forebay_worker.pacing.policy import Ended, Signals


def policy(limit_start: int = 100) -> Gradient2:
    return Gradient2(limit_min=4, limit_start=limit_start, limit_max=256)


def second(
    under_test: Gradient2, *, at: float, latency: float, answers: int = 10, in_flight: int = 100, succeeded: bool = True
) -> str | None:
    """A second with this many answers, and its decision."""
    for _ in range(answers):
        under_test.observe(
            Ended(
                at=at,
                service_seconds=latency,
                in_flight=in_flight,
                succeeded=succeeded,
                prompt_tokens=100,
                output_tokens=100,
            )
        )
    return under_test.step(Signals(now=at, in_flight=in_flight, waiting=1))


@pytest.mark.parametrize(
    ("case", "latency", "in_flight", "limit"),
    [
        ("as fast as ever: .2 of the queue's 4 is added", 2.0, 100, 100.8 + 0.8),
        # The mean of both windows is 2.4: 1.5 * 2.4 is still above the latest.
        ("a little slower: still within the tolerance", 2.8, 100, 100.8 + 0.8),
        # The mean is 6: the gradient is .9.
        ("much slower: cut by the gradient", 10.0, 100, 0.8 * 100.8 + 0.2 * (0.9 * 100.8 + 4)),
        ("half of it is not used: nothing was learned", 10.0, 50, 100.8),
    ],
)
def test_the_limit_follows_the_latency(case: str, latency: float, in_flight: int, limit: float) -> None:
    under_test = policy()
    second(under_test, at=1, latency=2.0)
    second(under_test, at=2, latency=latency, in_flight=in_flight)
    assert under_test.limit_requests == int(limit), case


def test_the_cause_says_what_was_compared() -> None:
    under_test = policy()
    second(under_test, at=1, latency=2.0)
    assert second(under_test, at=2, latency=10.0) == "mean latency 10.00 s is 1.67 times its long-term mean 6.00 s"


def test_an_outlier_takes_no_more_than_a_tenth() -> None:
    under_test = policy()
    for at in range(10):
        second(under_test, at=at, latency=1.0)
    before = under_test.limit_requests
    second(under_test, at=10, latency=1000.0)
    assert under_test.limit_requests >= int(0.9 * before)


def test_a_window_of_few_answers_goes_on() -> None:
    under_test = policy()
    assert [second(under_test, at=at, latency=2.0, answers=4) for at in (1, 2)] == [None, None]
    assert under_test.limit_requests == 100
    for at in range(3, 9):
        second(under_test, at=at, latency=2.0, answers=4)
    assert under_test.limit_requests == 101


def test_failures_tell_nothing_of_the_latency() -> None:
    under_test = policy()
    for at in range(10):
        assert second(under_test, at=at, latency=0.001, succeeded=False) is None
    assert under_test.limit_requests == 100


def test_after_an_overload_the_long_term_mean_comes_down_within_a_minute() -> None:
    under_test = policy()
    for at in range(20):
        second(under_test, at=at, latency=20.0)
    for at in range(20, 60):
        second(under_test, at=at, latency=1.0)
    causes = [second(under_test, at=at, latency=4.0) for at in range(60, 63)]
    assert any(cause is not None and cause.startswith("mean latency 4.00 s is 1.") for cause in causes)


def test_it_stays_within_its_bounds() -> None:
    under_test = policy(limit_start=250)
    for at in range(60):
        second(under_test, at=at, latency=1.0, in_flight=256)
    assert under_test.limit_requests == 256
    for at in range(100, 200, 2):
        under_test.refused(at)
    assert under_test.limit_requests == 4


def test_refusals_cut_by_three_tenths_and_only_once_in_two_seconds() -> None:
    under_test = policy()
    assert under_test.refused(10.0) == "the backend refused a request as too much for it"
    assert under_test.refused(11.9) is None
    assert under_test.limit_requests == 70
    under_test.refused(12.0)
    assert under_test.limit_requests == 49
