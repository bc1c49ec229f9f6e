"""The order in which requests leave the lanes, what expires out of them, and how many bytes they hold."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from forebay_schemas.tiers import TIERS, Tier
from forebay_worker.lanes import Lane, Lanes, cost_bytes
from forebay_worker.work import Work
from simulated.ports import NOW_MS
from simulated.works import make_assignment, make_work

HIGH, MID, LOW = Tier.HIGH, Tier.MID, Tier.LOW


def drained(lanes: Lanes) -> list[str]:
    """The ids in the order in which they leave."""
    ids = []
    while (work := lanes.pop()) is not None:
        assert work.request is not None
        ids.append(work.request.request_id)
    return ids


def lanes_with(*waiting: tuple[Tier, int, str]) -> Lanes:
    lanes = Lanes()
    for offset, (tier, priority, request_id) in enumerate(waiting):
        lanes.push(make_work(make_assignment(tier), offset=offset, priority=priority, request_id=request_id))
    return lanes


def test_high_leaves_before_mid_before_low_whatever_their_integers() -> None:
    lanes = lanes_with((LOW, 10, "low"), (MID, 10, "mid"), (HIGH, 0, "high"))
    assert len(lanes) == 3
    assert drained(lanes) == ["high", "mid", "low"]
    assert not lanes


def test_within_a_tier_the_integer_decides_and_then_the_arrival() -> None:
    lanes = lanes_with((MID, 4, "a"), (MID, 6, "b"), (MID, 5, "c"), (MID, 6, "d"), (MID, 4, "e"))
    assert drained(lanes) == ["b", "d", "c", "a", "e"]


def test_what_comes_back_stands_behind_its_equals_and_before_its_lessers() -> None:
    lanes = lanes_with((MID, 5, "first"), (MID, 5, "second"), (MID, 4, "lesser"))
    first = lanes.pop()
    assert first is not None
    lanes.push(first)
    assert drained(lanes) == ["second", "first", "lesser"]


def test_exactly_the_expired_are_taken_out() -> None:
    assignment = make_assignment(MID)
    lanes = Lanes()
    for offset, ttl_ms in enumerate((1_000, 2_000, 3_000)):
        lanes.push(make_work(assignment, offset=offset, ttl_ms=ttl_ms))
    assert lanes.remove_expired(NOW_MS + 999) == []
    # A deadline is the first instant at which the outcome is worth nothing.
    assert [work.offset for work in lanes.remove_expired(NOW_MS + 2_000)] == [0, 1]
    assert drained(lanes) == ["r-2"]


def test_what_was_given_up_leaves_with_the_expired_and_is_not_reported() -> None:
    ours, given_up = make_assignment(MID, partition=0), make_assignment(MID, partition=1)
    lanes = Lanes()
    for offset, assignment in enumerate((ours, given_up, ours, given_up)):
        lanes.push(make_work(assignment, offset=offset, ttl_ms=1_000 + offset))
    given_up.claims.close()
    assert [work.offset for work in lanes.remove_expired(NOW_MS + 1_001)] == [0]
    assert lanes[MID].size_bytes == cost_bytes([make_work(ours, offset=2, ttl_ms=1_002)])
    assert drained(lanes) == ["r-2"]


def test_a_probe_is_a_request_that_did_not_fail_yet_then_the_one_that_failed_longest_ago() -> None:
    lanes = lanes_with((HIGH, 9, "late"), (HIGH, 8, "early"), (MID, 5, "sound"), (MID, 4, "sound too"))
    late, early = lanes.pop(), lanes.pop()
    assert late is not None
    assert early is not None
    late.failed_at, early.failed_at = 20.0, 10.0
    lanes.push(late)
    lanes.push(early)
    probes = [lanes.pop_probe() for _ in range(5)]
    assert [work and work.request_id for work in probes] == ["sound", "sound too", "early", "late", None]
    assert all(lanes[tier].size_bytes == 0 for tier in TIERS)


_steps = st.one_of(
    st.tuples(
        st.just("push"), st.sampled_from(TIERS), st.integers(0, 10), st.integers(1, 30_000), st.integers(0, 20_000)
    ),
    st.tuples(st.just("pop")),
    st.tuples(st.just("probe")),
    st.tuples(st.just("expire"), st.integers(0, 10_000)),
    st.tuples(st.just("give up"), st.sampled_from(TIERS)),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(_steps, max_size=60))
def test_bytes_and_order_are_right_after_any_sequence(steps: list[tuple[object, ...]]) -> None:
    lanes = Lanes()
    assignments = {tier: make_assignment(tier) for tier in TIERS}
    waiting: list[Work] = []
    now_ms = NOW_MS
    for offset, step in enumerate(steps):
        match step:
            case ("push", Tier() as tier, int(priority), int(ttl_ms), int(size)):
                work = make_work(
                    assignments[tier],
                    offset=offset,
                    priority=priority,
                    ttl_ms=now_ms - NOW_MS + ttl_ms,
                    payload={"x": "y" * size},
                )
                lanes.push(work)
                waiting.append(work)
            case ("pop",):
                popped = lanes.pop()
                best = min(
                    waiting, key=lambda each: (TIERS.index(each.tier), -each.priority, each.offset), default=None
                )
                assert popped is best
                waiting = [each for each in waiting if each is not popped]
            case ("probe",):
                popped = lanes.pop_probe()
                assert (popped is None) == (not waiting)
                waiting = [each for each in waiting if each is not popped]
            case ("expire", int(milliseconds)):
                now_ms += milliseconds
                removed = lanes.remove_expired(now_ms)
                due = [each for each in waiting if each.deadline_ms <= now_ms and each.assignment.claims.is_open]
                assert sorted(each.offset for each in removed) == [each.offset for each in due]
                waiting = [each for each in waiting if each.deadline_ms > now_ms and each.assignment.claims.is_open]
            case ("give up", Tier() as tier):
                # Its requests stay until they are looked at.
                assignments[tier].claims.close()
                lanes.remove_expired(now_ms)
                waiting = [each for each in waiting if each.assignment.claims.is_open and each.deadline_ms > now_ms]
                assignments[tier] = make_assignment(tier)
        for tier in TIERS:
            assert lanes[tier].size_bytes == cost_bytes(each for each in waiting if each.tier is tier)
            assert len(lanes[tier]) == sum(each.tier is tier for each in waiting)
        assert bool(lanes) == bool(waiting)


def test_an_empty_lane_has_no_size() -> None:
    lane = Lane()
    assert (len(lane), lane.size_bytes, lane.remove_expired(NOW_MS)) == (0, 0, [])
