"""Pace of replays, by the table: a rate, room behind live traffic, and the canary's findings."""

from __future__ import annotations

import pytest

from forebay_producer.dead_letters.replay_plan import Replay
from forebay_producer.dead_letters.runs.canary import GRACE_SECONDS, NO_OUTCOME, Canary
from forebay_producer.dead_letters.runs.pace import (
    UNMEASURED_RECORDS_MAX,
    BacklogFollower,
    Load,
    RateLimit,
)
from forebay_schemas.contract.reasons import Reason
from forebay_schemas.contract.results import Result
from forebay_schemas.contract.tiers import DEFAULT_TIER_TIMES, Tier, tier_times
from unit.producer.dead_letters.test_letter import letter, plan

HIGH, MID, LOW = Tier.HIGH, Tier.MID, Tier.LOW
DAY_SECONDS = 86_400.0


def follower(*, high: int = 0, mid: int = 0, low: int = 0, finished_per_second: float | None = None) -> BacklogFollower:
    """A follower that has seen the pool finish this many a second, with this many waiting now."""
    made = BacklogFollower(DEFAULT_TIER_TIMES)
    waiting = {HIGH: high, MID: mid, LOW: low}
    if finished_per_second is not None:
        made.observe(Load(at_seconds=0, waiting={HIGH: 1, MID: 0, LOW: 0}, finished=0))
        made.observe(Load(at_seconds=10, waiting=waiting, finished=int(10 * finished_per_second)))
    else:
        made.observe(Load(at_seconds=0, waiting=waiting, finished=0))
    return made


@pytest.mark.parametrize(
    ("seen", "tier", "ttl_seconds", "room"),
    [
        # 3 s of work may wait in high, 18 s in mid.
        (follower(finished_per_second=10), HIGH, 60, 30),
        (follower(high=20, finished_per_second=10), HIGH, 60, 10),
        (follower(high=30, finished_per_second=10), HIGH, 60, 0),
        (follower(mid=100, finished_per_second=10), MID, 60, 80),
        # What is in the tiers above comes first.
        (follower(high=50, mid=100, finished_per_second=10), MID, 60, 30),
        # A replay in high makes those in mid wait that are late already.
        (follower(mid=180, finished_per_second=10), HIGH, 60, 0),
        (follower(mid=175, finished_per_second=10), HIGH, 60, 5),
        (follower(low=100_000, finished_per_second=10), HIGH, 60, 30),
        # Its own deadline counts too: 60 % of what it has.
        (follower(finished_per_second=10), MID, 5, 30),
        (follower(low=100, finished_per_second=10), LOW, 60, 260),
        (follower(high=1, mid=1, low=5_000, finished_per_second=10), LOW, DAY_SECONDS, 513_398),
        # Nothing is known of how fast they go: a few, and any number into the tier that may wait.
        (follower(), MID, 60, UNMEASURED_RECORDS_MAX),
        (follower(mid=4), MID, 60, UNMEASURED_RECORDS_MAX - 4),
        (follower(mid=40), HIGH, 60, UNMEASURED_RECORDS_MAX),
        (follower(mid=40), MID, 60, 0),
        (follower(low=40), LOW, 60, 1_000_000),
        # No worker does anything.
        (follower(mid=4, finished_per_second=0), MID, 60, 0),
        (follower(mid=4, finished_per_second=0), LOW, 60, 1_000_000),
        # Somebody must go first.
        (follower(finished_per_second=0), MID, 60, 1),
        (BacklogFollower(DEFAULT_TIER_TIMES), LOW, 60, 0),
    ],
)
def test_a_tier_takes_replays_while_nobody_waits_longer_than_it_tolerates(
    seen: BacklogFollower, tier: Tier, ttl_seconds: float, room: int
) -> None:
    assert seen.room(tier, ttl_seconds=ttl_seconds) == room


def test_what_was_sent_since_counts_until_it_is_seen() -> None:
    seen = follower(finished_per_second=10)
    for _ in range(30):
        seen.sent(HIGH)
    assert seen.room(HIGH, ttl_seconds=60) == 0
    seen.observe(Load(at_seconds=11, waiting={HIGH: 25, MID: 0, LOW: 0}, finished=110))
    assert seen.room(HIGH, ttl_seconds=60) == 5


def test_whether_a_worker_runs_is_asked_after_some_seconds_in_which_nothing_ended() -> None:
    seen = BacklogFollower(DEFAULT_TIER_TIMES)
    asked = []
    for second in range(12):
        # What a run's canary was completes in the third second, and nothing after it.
        finished = 11 if second >= 3 else 10
        seen.observe(Load(at_seconds=second, waiting={HIGH: 0, MID: 10, LOW: 0}, finished=finished))
        seen.finished_per_second = 0.0
        asked.append("does a worker run?" in seen.why_full(MID))
        assert seen.knows_why is asked[-1], "it is told of once, so not before"
    assert asked == [False] * 8 + [True] * 4


def test_an_idle_pool_says_nothing_about_its_rate_and_a_standstill_is_noticed() -> None:
    seen = follower(finished_per_second=10)
    idle = {HIGH: 0, MID: 0, LOW: 0}
    for second in range(11, 60):
        seen.observe(Load(at_seconds=second, waiting=idle, finished=100))
    assert seen.finished_per_second == pytest.approx(10)
    for second in range(60, 120):
        seen.observe(Load(at_seconds=second, waiting={HIGH: 0, MID: 7, LOW: 0}, finished=100))
    assert seen.finished_per_second == pytest.approx(0, abs=1e-3)
    assert seen.room(MID, ttl_seconds=60) == 0
    assert seen.why_full(MID) == "7 wait in mid and nothing gets finished: does a worker run?"


def test_it_says_why_a_tier_is_full() -> None:
    assert follower(high=30, finished_per_second=10).why_full(HIGH) == (
        "30 wait in high, 3.0 s of work at 10.0/s: more would make others late"
    )


def test_a_rate_is_kept_and_a_pause_is_not_made_up_for() -> None:
    rate = RateLimit(per_second=10, now=0)
    assert rate.allows(0) == 5
    rate.spend(5)
    assert rate.allows(0.05) == 0
    assert rate.seconds_until(1) == pytest.approx(0.05)
    assert rate.allows(0.3) == 3
    rate.spend(3)
    assert rate.allows(100) == 5


def test_a_slow_rate_still_goes() -> None:
    rate = RateLimit(per_second=0.1, now=0)
    assert rate.allows(0) == 1
    rate.spend(1)
    assert rate.allows(9.9) == 0
    assert rate.allows(10.1) == 1


def result(request_id: str, reason: Reason, replay_count: int = 1) -> Result:
    return Result(
        request_id=request_id, status=reason.status, reason=reason.code, replay_count=replay_count, finished_at=1
    )


def replay_of(request_id: str) -> Replay:
    replay = plan(letter({"request_id": request_id, "biz_type": "x", "payload": {}}))
    assert isinstance(replay, Replay)
    return replay


def test_a_canary_counts_the_first_outcome_of_each_of_its_replays_and_no_other() -> None:
    canary = Canary()
    for name in "abc":
        canary.add(replay_of(name), now=0)
    canary.take([result("a", Reason.BACKEND_ERROR, replay_count=0), result("z", Reason.BACKEND_ERROR)], now=1)
    assert canary.waits_for == 3
    canary.take([result("a", Reason.COMPLETED), result("a", Reason.BACKEND_ERROR)], now=1)
    canary.take([result("b", Reason.BACKEND_ERROR)], now=1)
    assert (canary.sent, canary.completed, dict(canary.failed), canary.waits_for) == (3, 1, {"backend_error": 1}, 1)
    # The high tier's five seconds and a while.
    canary.take([], now=5 + GRACE_SECONDS)
    assert canary.waits_for == 1
    canary.take([], now=5.1 + GRACE_SECONDS)
    assert canary.waits_for == 0
    assert canary.failed[NO_OUTCOME] == 1


def test_live_traffic_tolerates_what_the_settings_say() -> None:
    made = BacklogFollower(tier_times({HIGH: 60_000}, {HIGH: 10_000}))
    made.observe(Load(at_seconds=0, waiting={HIGH: 1, MID: 0, LOW: 0}, finished=0))
    made.observe(Load(at_seconds=10, waiting={HIGH: 0, MID: 0, LOW: 0}, finished=100))
    assert made.room(HIGH, ttl_seconds=60) == 100
