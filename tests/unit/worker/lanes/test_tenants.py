"""Fair turns among tenants: whose request is next, and how far shares may stray from the weights."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from forebay_schemas.contract.tiers import Tier
from forebay_worker.lanes.lanes import NO_WEIGHTS, Lane
from forebay_worker.request.work import Work
from simulated.works import make_assignment, make_work

ASSIGNMENT = make_assignment(Tier.LOW)


def request(tenant: str | None, cost_seconds: float = 1.0, *, arrived: float = 0.0) -> Work:
    work = make_work(ASSIGNMENT, priority=2, tenant=tenant)
    work.cost_seconds, work.arrived = cost_seconds, arrived
    return work


def tenant_of(work: Work) -> str | None:
    assert work.request is not None
    return work.request.tenant


def lane_with(costs: Mapping[Any, list[float]], *, weights: Mapping[str, float] = NO_WEIGHTS) -> Lane:
    lane = Lane(weights=weights)
    for tenant, requests in costs.items():
        for cost_seconds in requests:
            lane.push(request(tenant, cost_seconds))
    return lane


def spent(lane: Lane, requests: int) -> Counter[str | None]:
    """Each tenant's part of the next ``requests``, in seconds of cost."""
    seconds: Counter[str | None] = Counter()
    for _ in range(requests):
        work = lane.pop()
        seconds[tenant_of(work)] += work.cost_seconds  # type: ignore[assignment]
    return seconds


def test_a_flood_of_one_tenant_does_not_delay_the_few_of_another() -> None:
    lane = lane_with({"flood": [1.0] * 1_000})
    for _ in range(10):
        lane.pop()
    for _ in range(3):
        lane.push(request("few"))
    assert spent(lane, 12)["few"] == 3.0


@pytest.mark.parametrize("names", [("a", "b"), ("a", None)])
def test_tenants_share_by_cost_and_not_by_number(names: tuple[str | None, ...]) -> None:
    lane = lane_with({names[0]: [0.1] * 3_000, names[1]: [5.0] * 100})
    shares = spent(lane, 1_500)
    assert shares[names[1]] == pytest.approx(shares[names[0]], rel=0.1)


def test_weights_are_kept() -> None:
    dice = random.Random(1)
    costs = {name: [dice.lognormvariate(0, 1) for _ in range(4_000)] for name in ("paid", "free", "other")}
    lane = lane_with(costs, weights={"paid": 3.0, "free": 0.5})
    shares = spent(lane, 4_000)
    assert shares["paid"] / shares["other"] == pytest.approx(3.0, rel=0.1)
    assert shares["free"] / shares["other"] == pytest.approx(0.5, rel=0.15)


def test_at_every_moment_no_two_that_wait_are_further_apart_than_a_round() -> None:
    dice = random.Random(2)
    costs = {name: [dice.choice((0.2, 1.0, 3.0)) for _ in range(600)] for name in "abcde"}
    lane = lane_with(dict(costs))
    so_far: Counter[str | None] = Counter()
    for _ in range(1_500):
        so_far += spent(lane, 1)
        values = [so_far[name] for name in "abcde"]
        # A quantum of four requests of mean cost, and the largest request on top.
        assert max(values) - min(values) <= 4 * 3.0 + 3.0


def test_a_huge_request_gets_its_turn_and_its_tenant_alone_pays_for_it() -> None:
    lane = lane_with({"small": [1.0] * 400})
    for _ in range(10):
        lane.pop()
    lane.push(request("huge", 100.0))
    lane.push(request("huge", 101.0))
    order = [tenant_of(lane.pop()) for _ in range(20)]
    assert order.index("huge") < 12
    lane.push(request("late", 1.0))
    order += [tenant_of(lane.pop()) for _ in range(150)]
    assert order.index("late") < 35, "it pays nothing for the huge one"
    first = order.index("huge")
    assert 80 <= order.index("huge", first + 1) - first <= 110


def test_a_tenant_in_debt_that_comes_back_still_owes() -> None:
    lane = lane_with({"steady": [1.0] * 500})
    lane.push(request("once", 60.0))
    while tenant_of(lane.pop()) != "once":
        pass
    lane.push(request("once", 0.1))
    order = [tenant_of(lane.pop()) for _ in range(80)]
    assert 40 <= order.index("once") <= 70, "it had 60 s ahead of the others"


def test_a_tenant_that_was_away_saved_up_nothing() -> None:
    lane = lane_with({"a": [1.0] * 1_000, "b": [1.0] * 1_000, "away": [1.0]})
    spent(lane, 600)
    for _ in range(300):
        lane.push(request("away"))
    shares = spent(lane, 300)
    assert shares["away"] == pytest.approx(100, abs=8)


def test_endless_newcomers_do_not_starve_one_with_many() -> None:
    """Each second two requests of tenants never seen before, cheaper than the others, and one slot for one of them all.

    Twenty of them wait at most, then the oldest expires: one tenant of 21 is due 95 s of 2,000.
    """
    lane = lane_with({"heavy": [2.0] * 1_000})
    newcomers: list[Work] = []
    seconds = 0.0
    for second in range(2_000):
        for number in (0, 1):
            work = request(f"new-{second}-{number}", 1.0, arrived=float(second))
            newcomers.append(work)
            lane.push(work)
        taken = lane.pop()
        if tenant_of(taken) == "heavy":
            seconds += taken.cost_seconds
        else:
            newcomers.remove(taken)
        while len(newcomers) > 20:
            lane.remove(newcomers.pop(0))
    assert seconds == pytest.approx(95, rel=0.15)


def test_among_tenants_with_a_request_each_the_order_decides() -> None:
    dice = random.Random(3)
    costs = [dice.uniform(0.1, 10.0) for _ in range(500)]
    lane = lane_with({f"user-{number}": [cost] for number, cost in enumerate(costs)})
    assert [lane.pop().cost_seconds for _ in costs] == sorted(costs)


def test_without_known_costs_tenants_take_turns() -> None:
    lane = lane_with({"a": [0.0] * 100, "b": [0.0] * 100})
    assert Counter(tenant_of(lane.pop()) for _ in range(100)) == pytest.approx({"a": 50, "b": 50}, abs=4)


def test_a_higher_integer_goes_before_fairness() -> None:
    lane = lane_with({"a": [1.0] * 10})
    for _ in range(10):
        work = request("b")
        work.priority = 3
        lane.push(work)
    assert [tenant_of(lane.pop()) for _ in range(20)] == ["b"] * 10 + ["a"] * 10


def test_many_tenants_come_and_go_and_none_is_remembered_for_ever() -> None:
    dice = random.Random(4)
    lane = Lane()
    waiting: set[int] = set()
    works: dict[int, Work] = {}
    remembered_max = 0
    for step in range(20_000):
        work = request(f"t-{dice.randrange(step + 1)}", dice.uniform(0.1, 3.0), arrived=step)
        lane.push(work)
        waiting.add(id(work))
        works[id(work)] = work
        if len(waiting) > 50:
            if step % 7 == 0:
                gone = works[next(iter(waiting))]
                lane.remove(gone)
            else:
                gone = lane.pop()
            waiting.remove(id(gone))
            del works[id(gone)]
        (queue,) = lane._queues
        remembered_max = max(
            remembered_max, len(queue._tenants), len(queue._in_round), len(queue._sitting_out), len(queue._away)
        )
    assert remembered_max < 1_000
    assert {id(work) for work in lane.waiting_in_order()} == waiting
    while len(lane):
        waiting.remove(id(lane.pop()))
    assert not waiting
    assert [len(queue._tenants) for queue in lane._queues] == [0]
