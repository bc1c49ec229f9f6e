"""The overload ladder: up where a tier waits too long, down when it is over, and only what would be late is shed."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping

import pytest
from structlog.testing import capture_logs

from forebay_schemas.contract.tiers import TIERS, Tier, tier_times
from forebay_worker.dispatch.overload import (
    ACT_SECONDS,
    DOWN_SECONDS,
    SHED_TIERS,
    STEPS_KEPT,
    UP_SECONDS,
    OverloadLadder,
    OverloadLevel,
    plan_shedding,
)
from forebay_worker.request.work import Work
from simulated.ports import NOW_MS
from simulated.works import make_assignment, make_work

NORMAL, SHED_LOW, SHED_MID = OverloadLevel


def climb(ladder: OverloadLadder, waits: Callable[[int], Mapping[Tier, float]], seconds: int) -> list[OverloadLevel]:
    """The level in each second."""
    levels = []
    for second in range(seconds):
        ladder.step(float(second), second * 1000, waits(second))
        levels.append(ladder.level)
    return levels


def high(seconds: float) -> dict[Tier, float]:
    return {Tier.HIGH: seconds, Tier.MID: seconds, Tier.LOW: seconds}


# Levels


@pytest.mark.parametrize(
    ("waits", "level"),
    [
        ({Tier.HIGH: 2.0, Tier.MID: 2.0, Tier.LOW: 2.0}, NORMAL),
        ({Tier.HIGH: 2.1, Tier.MID: 2.1, Tier.LOW: 2.1}, SHED_LOW),
        ({Tier.HIGH: 0.1, Tier.MID: 12.5, Tier.LOW: 90.0}, NORMAL),
        ({Tier.HIGH: 0.1, Tier.MID: 12.6, Tier.LOW: 90.0}, SHED_LOW),
        ({Tier.HIGH: 0.1, Tier.MID: 1.0, Tier.LOW: 80_000.0}, NORMAL),
        ({}, NORMAL),
    ],
    ids=["high below", "high at 70 %", "mid below", "mid at 70 %", "low may wait", "no estimate"],
)
def test_seventy_per_cent_of_what_a_tier_tolerates_is_the_first_step(
    waits: dict[Tier, float], level: OverloadLevel
) -> None:
    ladder = OverloadLadder()
    assert ladder.step(5.0, 5_000, waits) is None, "a single estimate is noise"
    step = ladder.step(5.0 + UP_SECONDS, 6_000, waits)
    assert ladder.level is level
    assert (step is not None) == (level is not NORMAL)


def test_the_first_step_has_time_to_act_before_the_second() -> None:
    ladder = OverloadLadder()
    levels = climb(ladder, lambda _: high(2.9), 10)
    assert levels == [NORMAL] + [SHED_LOW] * int(ACT_SECONDS) + [SHED_MID] * (9 - int(ACT_SECONDS))


def test_a_pulse_goes_up_and_down_the_ladder_a_step_at_a_time() -> None:
    ladder = OverloadLadder()

    def pulse(second: int) -> dict[Tier, float]:
        return high(2.8 if 10 <= second < 30 else 0.2)

    climb(ladder, pulse, 60)
    changes = [(step.at_ms / 1000, step.before, step.after) for step in ladder.steps]
    assert changes == [
        (10 + UP_SECONDS, NORMAL, SHED_LOW),
        (10 + UP_SECONDS + ACT_SECONDS, SHED_LOW, SHED_MID),
        (30 + DOWN_SECONDS, SHED_MID, SHED_LOW),
        (30 + 2 * DOWN_SECONDS, SHED_LOW, NORMAL),
    ]
    assert ladder.steps_total == {"up": 2, "down": 2}


def test_what_the_first_step_mends_needs_no_second() -> None:
    ladder = OverloadLadder()
    climb(ladder, lambda second: high(2.5 if second < 3 else 1.9), 60)
    assert ladder.level is SHED_LOW
    assert ladder.steps_total == {"up": 1, "down": 0}


def test_between_half_and_seventy_per_cent_nothing_changes() -> None:
    ladder = OverloadLadder()
    climb(ladder, lambda second: high(2.4 if second < 2 else (1.6, 2.0)[second % 2]), 600)
    assert len(ladder.steps) == 1


@pytest.mark.parametrize("mean_seconds", [0.6, 1.2, 1.8, 2.1, 2.4])
def test_a_noisy_load_makes_no_flapping(mean_seconds: float) -> None:
    ladder, noise = OverloadLadder(), random.Random(7)
    climb(ladder, lambda _: high(max(0.0, noise.gauss(mean_seconds, 0.3))), 3_600)
    assert len(ladder.steps) <= 4


def test_calm_must_last() -> None:
    ladder = OverloadLadder()
    climb(ladder, lambda second: high(2.4 if second < 2 else (0.1, 0.1, 0.1, 0.1, 1.6)[second % 5]), 600)
    assert ladder.level is SHED_LOW


def test_without_an_estimate_the_level_stays() -> None:
    ladder = OverloadLadder()
    climb(ladder, lambda _: high(2.4), 2)
    for second in range(2, 100):
        assert ladder.step(float(second), 0, {}) is None
    assert ladder.level is SHED_LOW
    assert ladder.step(100.0, 0, high(0.1)) is None, "calm begins with the first estimate"
    assert ladder.step(100.0 + DOWN_SECONDS, 0, high(0.1)) is not None


def test_high_is_never_shed() -> None:
    assert all(Tier.HIGH not in tiers for tiers in SHED_TIERS.values())
    ladder = OverloadLadder()
    climb(ladder, lambda _: high(math.inf), 100)
    assert ladder.level is SHED_MID
    assert ladder.shed_tiers == (Tier.LOW, Tier.MID)


def test_a_step_says_why_with_figures_and_is_logged() -> None:
    ladder = OverloadLadder()
    with capture_logs() as logs:
        climb(ladder, lambda second: {Tier.HIGH: 0.5, Tier.MID: 14.4} if second < 2 else high(0.3), 8)
    up = ladder.steps[0]
    assert (up.tier, up.wait_seconds, up.tolerated_seconds, up.direction) == (Tier.MID, 14.4, 18.0, "up")
    assert ladder.cause == ladder.steps[-1].cause
    assert up.cause == "a new mid request waits 14.40 s, 80% of the 18 s tolerated; 70% is too much"
    assert [(line["log_level"], line["after"], line["cause"]) for line in logs] == [
        ("warning", "shed_low", up.cause),
        ("info", "normal", "a new high request waits 0.30 s, 10% of the 3 s tolerated; under 50% for 5 s"),
    ]


def test_the_last_steps_are_kept_and_shown() -> None:
    ladder = OverloadLadder()
    climb(ladder, lambda second: high(2.4 if second % 20 < 3 else 0.1), 985)
    assert len(ladder.steps) == STEPS_KEPT
    assert ladder.steps_total == {"up": 50, "down": 49}
    status = ladder.status()
    assert (status["level"], status["sheds"]) == ("shed_low", ["low"])
    assert status["steps"][-1] == {"at_ms": 981_000, "before": "normal", "after": "shed_low", "cause": ladder.cause}


# What is shed


def low(offset: int, *, left_seconds: float) -> Work:
    return make_work(make_assignment(Tier.LOW), offset=offset, ttl_ms=round(left_seconds * 1000))


@pytest.mark.parametrize(
    ("left_seconds", "ahead_seconds", "shed"),
    [
        ([100, 100, 100], 0.0, []),
        ([5, 100, 100], 20.0, [0]),
        ([5, 6, 7], 20.0, [0, 1, 2]),
        # Each takes 2 s of those behind it and 1 s itself: the third would end after 5 s, the fourth after 7.
        ([9, 9, 9, 3, 9], 0.0, [3]),
        # What is shed delays nobody: the last one is kept because of it.
        ([1, 1, 1, 2], 3.5, [0, 1, 2, 3]),
        ([1, 1, 1, 3], 3.5, [0, 1, 2]),
        # Late by less than half of the prediction.
        ([5.1], 9.0, []),
        ([4.9], 9.0, [0]),
        ([], 9.0, []),
    ],
)
def test_only_what_would_be_late_is_shed_oldest_first(
    left_seconds: list[float], ahead_seconds: float, shed: list[int]
) -> None:
    waiting = [low(number, left_seconds=left) for number, left in enumerate(left_seconds)]
    planned = plan_shedding(
        waiting, now_ms=NOW_MS, ahead_seconds=ahead_seconds, turn_seconds=lambda _: 2.0, service_seconds=lambda _: 1.0
    ).shed
    assert [each.work.offset for each in planned] == shed
    assert all(each.predicted_seconds > left_seconds[each.work.offset] for each in planned)


def test_a_long_backlog_is_cut_to_what_can_be_done_in_time() -> None:
    waiting = [low(number, left_seconds=60) for number in range(1_000)]
    plan = plan_shedding(
        waiting, now_ms=NOW_MS, ahead_seconds=0.0, turn_seconds=lambda _: 0.5, service_seconds=lambda _: 4.0
    )
    kept = len(waiting) - len(plan.shed)
    assert 60 / 0.5 < kept < 2 * 60 / 0.5
    assert plan.ahead_seconds == 0.5 * kept
    assert [each.work.offset for each in plan.shed] == list(range(kept, 1_000))


def test_every_level_sheds_less_urgent_tiers_first() -> None:
    order = {tier: rank for rank, tier in enumerate(TIERS)}
    for tiers in SHED_TIERS.values():
        assert [order[tier] for tier in tiers] == sorted((order[tier] for tier in tiers), reverse=True)


def test_what_a_tier_tolerates_is_a_setting() -> None:
    ladder = OverloadLadder(tier_times({Tier.HIGH: 60_000}, {Tier.HIGH: 10_000}))
    climb(ladder, lambda second: high(6.9 if second < 10 else 7.1), 12)
    assert ladder.level is SHED_LOW
    assert ladder.cause == "a new high request waits 7.10 s, 71% of the 10 s tolerated; 70% is too much"
