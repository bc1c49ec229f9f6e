"""The order in which requests leave the lanes, and what is taken out of them: expired, given up, swept, removed."""

from __future__ import annotations

import pytest

from forebay_schemas.contract.tiers import TIERS, Tier
from forebay_worker.lanes.lanes import Lane, Lanes
from forebay_worker.lanes.order import LaneOrder
from forebay_worker.request.memory import cost_bytes
from forebay_worker.request.work import Failures, Work
from simulated.ports import NOW_MS
from simulated.works import make_assignment, make_work

HIGH, MID, LOW = Tier.HIGH, Tier.MID, Tier.LOW


def push(lanes: Lanes, work: Work) -> None:
    lanes.push(work, 0.0)


def take(lanes: Lanes) -> Work | None:
    """The next one, when nothing runs and no time has passed: nobody is owed anything."""
    return lanes.pop(0.0, running={}, limit=1)


def drained(lanes: Lanes) -> list[str]:
    """The ids in the order in which they leave."""
    ids = []
    while (work := take(lanes)) is not None:
        assert work.request is not None
        ids.append(work.request.request_id)
    return ids


def lanes_with(*waiting: tuple[Tier, int, str]) -> Lanes:
    lanes = Lanes()
    for offset, (tier, priority, request_id) in enumerate(waiting):
        push(lanes, make_work(make_assignment(tier), offset=offset, priority=priority, request_id=request_id))
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
    first = take(lanes)
    assert first is not None
    push(lanes, first)
    assert drained(lanes) == ["second", "first", "lesser"]


def test_exactly_the_expired_are_taken_out() -> None:
    assignment = make_assignment(MID)
    lanes = Lanes()
    for offset, ttl_ms in enumerate((1_000, 2_000, 3_000)):
        push(lanes, make_work(assignment, offset=offset, ttl_ms=ttl_ms))
    assert lanes.remove_expired(NOW_MS + 999) == []
    # A deadline is the first instant at which the outcome is worth nothing.
    assert [work.offset for work in lanes.remove_expired(NOW_MS + 2_000)] == [0, 1]
    assert drained(lanes) == ["r-2"]


def test_what_was_given_up_leaves_with_a_sweep_and_is_not_reported() -> None:
    ours, given_up = make_assignment(MID, partition=0), make_assignment(MID, partition=1)
    lanes = Lanes()
    for offset, assignment in enumerate((ours, given_up, ours, given_up)):
        push(lanes, make_work(assignment, offset=offset, ttl_ms=1_000 + offset))
    given_up.claims.close()
    assert [work.offset for work in lanes.remove_expired(NOW_MS + 1_001)] == [0]
    assert lanes.sweep(100, lambda _: False) == []
    assert lanes[MID].size_bytes == cost_bytes([make_work(ours, offset=2, ttl_ms=1_002)])
    assert drained(lanes) == ["r-2"]


def test_a_sweep_goes_round_and_drops_what_it_is_told_to() -> None:
    lanes = Lanes()
    for offset in range(30):
        push(lanes, make_work(make_assignment(TIERS[offset % 3]), offset=offset))
    seen: list[int] = []

    def drop(work: Work) -> bool:
        seen.append(work.offset)
        return work.offset == 17

    dropped = [lanes.sweep(budget, drop) for budget in (7, 7, 7, 7, 2)]
    assert sorted(seen) == list(range(30)), "each is looked at once in a round"
    assert [work.offset for works in dropped for work in works] == [17]
    seen.clear()
    assert lanes.sweep(1_000, drop) == []
    assert len(seen) == 29, "no request is looked at twice in one sweep"


def test_while_requests_come_and_go_a_sweep_still_sees_each_that_stays() -> None:
    lanes = Lanes()
    staying = [make_work(make_assignment(LOW), offset=offset, priority=0) for offset in range(50)]
    for work in staying:
        push(lanes, work)
    seen = set()

    def drop(work: Work) -> bool:
        seen.add(work.offset)
        return False

    for offset in range(100, 160):
        push(lanes, make_work(make_assignment(LOW), offset=offset, priority=3))
        lanes.sweep(2, drop)
        assert take(lanes) not in staying
    assert seen >= {work.offset for work in staying}


def test_one_taken_out_leaves_the_others_as_they_stand() -> None:
    works = [make_work(make_assignment(MID), offset=offset) for offset in range(5)]
    lanes = Lanes()
    for work in works:
        push(lanes, work)
    lanes.remove(works[3])
    lanes.remove(works[0])
    with pytest.raises(KeyError):
        lanes.remove(works[3])
    assert drained(lanes) == ["r-1", "r-2", "r-4"]


@pytest.mark.parametrize("order", LaneOrder)
def test_a_lane_shows_what_waits_in_the_order_in_which_it_leaves(order: LaneOrder) -> None:
    lanes = Lanes(order=order)
    for offset, (cost_seconds, ttl_ms, priority) in enumerate(
        ((5.0, 9_000, 4), (1.0, 2_000, 5), (3.0, 1_000, 4), (0.5, 1_500, 6), (2.0, 3_000, 4))
    ):
        work = make_work(make_assignment(MID), offset=offset, ttl_ms=ttl_ms, priority=priority)
        work.cost_seconds = cost_seconds
        push(lanes, work)
    shown = [work.request_id for work in lanes[MID].waiting_in_order()]
    assert shown == drained(lanes)


def test_a_lane_knows_since_when_its_oldest_waits() -> None:
    lanes = Lanes()
    assert lanes[LOW].oldest_enqueued_at is None
    for offset, enqueued_at in enumerate((NOW_MS + 5, NOW_MS - 70, NOW_MS)):
        push(lanes, make_work(make_assignment(LOW), offset=offset, enqueued_at=enqueued_at, priority=offset))
    assert lanes[LOW].oldest_enqueued_at == NOW_MS - 70


def test_a_lane_knows_the_predicted_work_in_it_and_its_tenants() -> None:
    lanes = Lanes()
    for offset, tenant in enumerate(("a", "b", None, "a")):
        work = make_work(make_assignment(MID), offset=offset, tenant=tenant, priority=4 + offset % 2)
        work.cost_seconds, work.prompt_tokens = offset + 0.5, 100 * offset
        push(lanes, work)
    lane = lanes[MID]
    assert (lane.cost_seconds, lane.prompt_tokens, len(lane.records_by_tenant())) == (8.0, 600, 3)
    taken = take(lanes)
    assert taken is not None
    assert (lane.cost_seconds, lane.prompt_tokens) == (8.0 - taken.cost_seconds, 600 - taken.prompt_tokens)
    drained(lanes)
    assert (lane.cost_seconds, lane.prompt_tokens, len(lane.records_by_tenant())) == (0, 0, 0)


@pytest.mark.parametrize(
    ("order", "ids"),
    [
        (LaneOrder.FIFO, ["long", "late", "short", "old"]),
        (LaneOrder.EDF, ["late", "old", "short", "long"]),
        (LaneOrder.SJF_AGED, ["old", "short", "late", "long"]),
    ],
)
def test_the_order_decides_between_equals(order: LaneOrder, ids: list[str]) -> None:
    lanes = Lanes(order=order)
    for offset, (request_id, ttl_ms, cost_seconds, arrived) in enumerate(
        (("long", 9_000, 20.0, 1_000.0), ("late", 1_000, 5.0, 1_000.0), ("short", 8_000, 1.0, 1_000.0)),
    ):
        work = make_work(make_assignment(MID), offset=offset, request_id=request_id, ttl_ms=ttl_ms)
        work.cost_seconds, work.arrived = cost_seconds, arrived
        push(lanes, work)
    # It costs nine seconds more than the short one, and has waited for 5,000 s longer.
    old = make_work(make_assignment(MID), offset=9, request_id="old", ttl_ms=7_000)
    old.cost_seconds, old.arrived = 10.0, -4_000.0
    push(lanes, old)
    assert drained(lanes) == ids


def test_requests_of_unknown_cost_leave_as_they_came() -> None:
    lanes = Lanes(order=LaneOrder.SJF_AGED)
    for offset in range(5):
        work = make_work(make_assignment(MID), offset=offset)
        work.arrived = 100.0 + offset
        push(lanes, work)
    assert drained(lanes) == [f"r-{offset}" for offset in range(5)]


def test_a_weight_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="weight"):
        Lanes(weights={"batch": 0.0})


def test_a_probe_is_a_request_that_did_not_fail_yet_then_the_one_that_failed_longest_ago() -> None:
    lanes = lanes_with((HIGH, 9, "late"), (HIGH, 8, "early"), (MID, 5, "sound"), (MID, 4, "sound too"))
    late, early = take(lanes), take(lanes)
    assert late is not None
    assert early is not None
    late.failures, early.failures = Failures(20.0), Failures(10.0)
    push(lanes, late)
    push(lanes, early)
    probes = [lanes.pop_probe() for _ in range(5)]
    assert [work and work.request_id for work in probes] == ["sound", "sound too", "early", "late", None]
    assert all(lanes[tier].size_bytes == 0 for tier in TIERS)


def test_an_empty_lane_has_no_size() -> None:
    lane = Lane()
    assert (len(lane), lane.size_bytes, lane.remove_expired(NOW_MS)) == (0, 0, [])
