"""Workers that share a backend: the limit holds, and nobody starves."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay_schemas.contract.coordination import GONE_SECONDS
from forebay_schemas.contract.tiers import TIERS
from forebay_worker.pacing.slots.sharing import NEW_SECONDS, SILENT_SECONDS, Own
from simulated.sharing import HIGH, LOW, TICK, SharingStage


def test_one_that_is_alone_has_all_within_a_moment() -> None:
    stage = SharingStage()
    one = stage.add("one")
    stage.run(0.6)
    assert one.sharing.share_requests == 20
    assert one.sharing.others.workers == 0


def test_two_that_start_at_once_never_have_more_than_the_limit() -> None:
    for seed in range(20):
        stage = SharingStage(seed=seed)
        for name in "ab":
            stage.add(name, low=100)
        stage.run(6)
        assert stage.shares() == [10, 10]
        assert stage.most <= 0


def test_a_newcomer_does_not_burst() -> None:
    stage = SharingStage()
    stage.add("old", low=100)
    stage.run(3)
    new = stage.add("new", low=100)
    seen: list[int] = []
    stage.run(NEW_SECONDS, lambda: seen.append(new.running))
    assert max(seen) <= 1
    stage.run(3)
    assert stage.shares() == [10, 10]
    assert stage.most <= 0


def test_shares_follow_demand_within_a_second() -> None:
    stage = SharingStage()
    one, two = stage.add("one", low=100), stage.add("two", high=2)
    stage.run(6)
    assert (one.running, two.running) == (18, 2)
    two.wanted = {HIGH: 12}
    one.running = two.running = 0
    stage.run(1.0)
    assert (one.sharing.share_requests, two.sharing.share_requests) == (8, 12)
    assert stage.most <= 0


def test_what_nobody_wants_is_split_so_that_new_demand_starts_at_once() -> None:
    stage = SharingStage()
    one, two = stage.add("one"), stage.add("two")
    stage.run(6)
    one.wanted = {LOW: 10}
    stage.run(TICK)
    assert one.running == 10
    assert two.sharing.share_requests >= 9


def test_running_requests_of_a_share_that_shrank_are_not_given_away() -> None:
    stage = SharingStage(ends_share=0.0)
    stage.add("one", low=100)
    stage.run(3)
    two = stage.add("two", low=100)
    stage.run(20)
    assert two.running == 0, "all 20 slots are still taken"
    stage.members[0].running -= 4
    stage.run(1)
    assert two.running == 4
    assert stage.most <= 0


def test_a_dead_worker_frees_its_share_within_15_seconds() -> None:
    stage = SharingStage()
    one, two = stage.add("one", low=100), stage.add("two", low=100)
    stage.run(6)
    stage.kill(two)
    stage.run(GONE_SECONDS - 1.5)
    assert one.sharing.share_requests == 10, "it may only be slow"
    stage.run(2.0)
    assert one.sharing.share_requests == 20


def test_a_draining_worker_hands_its_share_over_at_once_less_what_runs() -> None:
    stage = SharingStage()
    one, two = stage.add("one", low=100), stage.add("two", low=100)
    stage.run(6)
    stage.ends_share = 0.0
    two.draining = True
    two.running = 7
    stage.run(0.6)
    assert one.sharing.share_requests == 13
    two.running = 0
    stage.run(0.6)
    assert one.sharing.share_requests == 20
    assert one.sharing.others.workers == 0


def test_one_cut_off_stops_before_others_take_its_share_and_comes_back_as_a_newcomer() -> None:
    stage = SharingStage()
    one, two = stage.add("one", low=100), stage.add("two", low=100)
    stage.run(6)
    two.cut_off = True
    stage.run(SILENT_SECONDS + 0.2)
    assert two.sharing.share_requests == 0
    assert two.sharing.is_silent(stage.now)
    assert one.sharing.share_requests == 10
    stage.run(4)
    assert one.sharing.share_requests == 20
    two.cut_off = False
    seen: list[int] = []
    stage.run(NEW_SECONDS, lambda: seen.append(two.running))
    assert max(seen) <= 1
    stage.run(3)
    assert stage.shares() == [10, 10]
    assert stage.most <= 0


def test_more_workers_than_slots_all_get_their_turn() -> None:
    stage = SharingStage(limit=2, ends_share=0.5)
    for name in "abcd":
        stage.add(name, low=5)
    had = dict.fromkeys("abcd", 0.0)

    def count() -> None:
        for member in stage.members:
            had[member.name] += TICK * member.running

    stage.run(60, count)
    assert min(had.values()) > 10
    assert stage.most <= 0


def test_a_lower_limit_holds_at_once_and_a_higher_one_soon() -> None:
    stage = SharingStage(ends_share=0.5)
    one, two = stage.add("one", low=100), stage.add("two", low=100)
    stage.run(6)
    one.limit = two.limit = 8
    stage.run(TICK)
    assert stage.shares() == [4, 4]
    one.limit = two.limit = 30
    stage.run(1)
    assert stage.shares() == [15, 15]


def test_workers_told_different_limits_starve_nobody() -> None:
    stage = SharingStage(limit=40, ends_share=0.3)
    stage.add("old", limit=40, low=100)
    stage.run(3)
    stage.add("new", limit=12, low=100)
    stage.run(6)
    assert stage.shares() == [20, 6]


def test_a_cut_and_drops_of_one_are_news_to_the_others_once() -> None:
    stage = SharingStage()
    one, two = stage.add("one", low=100), stage.add("two", low=100)
    stage.run(6)
    one.limit, one.cuts, one.dropped = 14.0, 1, 3
    stage.run(3)
    assert two.cut_to == [14.0]
    assert two.sharing.others.dropped_total == 3
    assert one.sharing.others.dropped_total == 0


def test_the_common_limit_is_the_mean_by_what_is_in_flight() -> None:
    stage = SharingStage(ends_share=0.0)
    one, two = stage.add("one", limit=20, low=15), stage.add("two", limit=40, low=5)
    stage.run(6)
    own = Own(limit_requests=20.0, in_flight=15, wanted={})
    assert two.running == 5
    now_ms = int(1000 * stage.now)
    assert one.sharing.common_limit(own, now_ms) == pytest.approx((15 * 20 + 5 * 40) / 20)
    stage.run(20)
    stage.add("new", limit=100, low=5)
    stage.run(3)
    now_ms = int(1000 * stage.now)
    assert one.sharing.common_limit(own, now_ms) == pytest.approx((15 * 20 + 5 * 40) / 20), "it knows nothing yet"


acts = st.lists(
    st.tuples(st.sampled_from(["add", "kill", "cut", "join", "drain", "want"]), st.integers(0, 5), st.floats(0.1, 8)),
    max_size=14,
)


@settings(deadline=None, max_examples=15)
@given(acts, st.integers(1, 30), st.integers(0, 1000), st.sampled_from([0.03, 0.4]))
def test_whatever_happens_the_limit_holds_and_nobody_starves(
    history: list[tuple[str, int, float]], limit: int, seed: int, delay_seconds: float
) -> None:
    stage = SharingStage(limit=limit, seed=seed, delay_seconds=delay_seconds, ends_share=0.1)
    stage.add("w0", low=100)
    stage.add("w1", mid=5)
    for number, (act, which, seconds) in enumerate(history):
        alive = [member for member in stage.members if not member.draining]
        chosen = alive[which % len(alive)] if alive else None
        if act == "add":
            if len(stage.members) < 6:
                stage.add(f"w{number + 2}", low=50)
        elif chosen is None:
            pass
        elif act == "kill":
            stage.kill(chosen)
        elif act == "cut":
            chosen.cut_off = True
        elif act == "join":
            chosen.cut_off = False
        elif act == "drain":
            chosen.draining = True
        else:
            chosen.wanted = {TIERS[which % 3]: 7 * which}
        stage.run(seconds)
        # What runs in one that was cut off runs on when its share is the others'.
        if not any(member.cut_off for member in stage.members):
            assert stage.most <= 0
        stage.most = 0
    for member in stage.members:
        member.cut_off = False
        if not member.draining:
            member.wanted = {LOW: 100}
    stage.run(GONE_SECONDS + 5)
    working = [member for member in stage.members if not member.draining]
    for member in working:
        member.running = 0
    had = dict.fromkeys((id(member) for member in working), 0)

    def count() -> None:
        for member in working:
            had[id(member)] += member.sharing.share_requests

    stage.most = 0
    stage.run(5.0 * max(1, len(working)) + 5, count)
    assert stage.most <= 0
    assert all(had.values()), "everyone with demand gets slots"
    if working and limit >= len(working):
        assert sum(stage.shares()) == limit
