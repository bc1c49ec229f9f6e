"""`gpu_target` by its readings."""

from __future__ import annotations

import pytest

from forebay_worker.pacing.policies.gpu_target import GpuTarget
from forebay_worker.pacing.policy import Signals
from forebay_worker.signals.readings import GpuReading


def policy(limit_start: int = 100) -> GpuTarget:
    return GpuTarget(limit_min=4, limit_start=limit_start, limit_max=256, target_share=0.9)


def step(under_test: GpuTarget, *, busy: float | None, sm: float | None = None, in_flight: int = 100) -> str | None:
    reading = GpuReading(at=1.0, utilisation=busy, sm_utilisation=sm)
    return under_test.step(Signals(now=1.0, in_flight=in_flight, waiting=5, gpu=reading))


@pytest.mark.parametrize(
    ("case", "busy", "sm", "in_flight", "limit", "cause"),
    [
        (
            "below the target and used: grows by a twentieth",
            0.6,
            None,
            80,
            105,
            "GPU utilisation 60% is below the target of 90%, and 80 in flight use the limit",
        ),
        ("below the target, but not used: stays", 0.6, None, 79, 100, None),
        ("above: cut in proportion", 1.0, None, 100, 90, "GPU utilisation 100% is above the target of 90%"),
        ("at the target: stays", 0.9, None, 100, 100, None),
        ("no figure: stays", None, None, 100, 100, None),
        (
            "the multiprocessors tell more",
            1.0,
            0.45,
            100,
            105,
            "SM utilisation 45% is below the target of 90%, and 100 in flight use the limit",
        ),
    ],
)
def test_a_reading_against_the_target(
    case: str, busy: float | None, sm: float | None, in_flight: int, limit: int, cause: str | None
) -> None:
    under_test = policy()
    assert step(under_test, busy=busy, sm=sm, in_flight=in_flight) == cause, case
    assert under_test.limit_requests == limit, case


def test_it_holds_still_without_a_reading() -> None:
    under_test = policy()
    assert under_test.step(Signals(now=1.0, in_flight=100, waiting=5)) is None
    assert under_test.limit_requests == 100


def test_it_settles_where_the_gpu_reaches_the_target() -> None:
    under_test = policy(limit_start=10)
    limits = []
    for _ in range(120):
        limit = under_test.limit_requests
        step(under_test, busy=min(1.0, limit / 200), in_flight=limit)
        limits.append(limit)
    assert all(165 <= limit <= 195 for limit in limits[-40:])


def test_it_stays_within_its_bounds() -> None:
    under_test = policy()
    for _ in range(100):
        step(under_test, busy=0.1, in_flight=256)
    assert under_test.limit_requests == 256
    for _ in range(100):
        step(under_test, busy=1.0)
    assert under_test.limit_requests == 4


def test_refusals_cut_by_three_tenths_and_only_once_in_two_seconds() -> None:
    under_test = policy()
    assert under_test.refused(10.0) == "the backend refused a request as too much for it"
    assert under_test.refused(11.9) is None
    assert under_test.limit_requests == 70


@pytest.mark.parametrize("share", [0.0, -0.1, 1.1])
def test_a_target_that_is_no_share_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match="target_share must be above 0 and at most 1"):
        GpuTarget(limit_min=4, limit_start=32, limit_max=256, target_share=share)
