"""The lanes against a naive model: any sequence of what may happen to them leaves the same requests, sums and order."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from forebay_schemas.contract.tiers import TIERS, Tier
from forebay_worker.lanes.lanes import Lanes
from forebay_worker.lanes.order import AGING, LaneOrder
from forebay_worker.partition.assignment import Assignment
from forebay_worker.request.memory import cost_bytes
from forebay_worker.request.work import Work
from simulated.ports import NOW_MS
from simulated.works import make_assignment, make_work

TENANTS = ("a", "b", "c", "d", None)


@dataclass
class Model:
    """Waiting requests, in the order of arrival."""

    waiting: list[Work] = field(default_factory=list)

    def remove(self, work: Work) -> None:
        self.waiting = [each for each in self.waiting if each is not work]

    def best(self, order: LaneOrder) -> Work | None:
        """By definition: the tier, the integer, the order, the arrival."""

        def rank(place: int) -> tuple[float, ...]:
            work = self.waiting[place]
            by_order = {
                LaneOrder.FIFO: 0.0,
                LaneOrder.EDF: work.deadline_ms,
                LaneOrder.SJF_AGED: work.cost_seconds + AGING * work.arrived,
            }
            return (TIERS.index(work.tier), -work.priority, by_order[order], place)

        return self.waiting[min(range(len(self.waiting)), key=rank)] if self.waiting else None


class LanesModel(RuleBasedStateMachine):
    """One tenant: the order is the model's. Many: what leaves is one of the best tier and integer."""

    @initialize(order=st.sampled_from(LaneOrder), tenants=st.sampled_from((1, len(TENANTS))))
    def begin(self, order: LaneOrder, tenants: int) -> None:
        self.order = order
        self.tenants = TENANTS[:tenants]
        self.lanes = Lanes(order=order, weights={"b": 0.3, "c": 5.0})
        self.model = Model()
        self.now_ms = NOW_MS
        self.offset = 0
        self.assignments: dict[Tier, Assignment] = {tier: make_assignment(tier) for tier in TIERS}

    @rule(
        tier=st.sampled_from(TIERS),
        priority=st.integers(4, 6),
        ttl_ms=st.integers(1, 10_000),
        size=st.integers(0, 3_000),
        tenant=st.integers(0, 4),
        cost=st.sampled_from((0.0, 0.1, 0.7, 3.0, 40.0)),
        copies=st.integers(1, 4),
    )
    def push(self, tier: Tier, priority: int, ttl_ms: int, size: int, tenant: int, cost: float, copies: int) -> None:
        for _ in range(copies):
            work = make_work(
                self.assignments[tier],
                offset=self.offset,
                priority=priority,
                ttl_ms=self.now_ms - NOW_MS + ttl_ms,
                payload={"x": "y" * size},
                tenant=self.tenants[tenant % len(self.tenants)],
            )
            work.priority = priority
            work.cost_seconds, work.prompt_tokens = cost, size
            work.arrived = (self.now_ms - NOW_MS) / 1000
            self.offset += 1
            self.lanes.push(work, 0.0)
            self.model.waiting.append(work)

    def taken(self, work: Work | None) -> None:
        best = self.model.best(self.order)
        if len(self.tenants) == 1 or work is None or best is None:
            assert work is best
        else:
            assert (work.tier, work.priority) == (best.tier, best.priority)
        if work is not None:
            before = len(self.model.waiting)
            self.model.remove(work)
            assert len(self.model.waiting) == before - 1

    @rule(times=st.integers(1, 6))
    def pop(self, times: int) -> None:
        for _ in range(times):
            self.taken(self.lanes.pop(0.0, running={}, limit=1))

    @rule()
    def pop_and_come_back(self) -> None:
        work = self.lanes.pop(0.0, running={}, limit=1)
        self.taken(work)
        if work is not None:
            self.lanes.push(work, 0.0)
            self.model.waiting.append(work)

    @rule()
    def probe(self) -> None:
        work = self.lanes.pop_probe()
        assert work is self.model.best(self.order)
        if work is not None:
            self.model.remove(work)

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        if self.model.waiting:
            work = data.draw(st.sampled_from(self.model.waiting))
            self.lanes.remove(work)
            self.model.remove(work)

    @rule(milliseconds=st.integers(0, 4_000))
    def expire(self, milliseconds: int) -> None:
        self.now_ms += milliseconds
        removed = self.lanes.remove_expired(self.now_ms)
        due = [each for each in self.model.waiting if each.deadline_ms <= self.now_ms]
        assert {id(work) for work in removed} == {id(work) for work in due if work.assignment.claims.is_open}
        assert [work.deadline_ms for work in removed if work.tier is Tier.MID] == sorted(
            work.deadline_ms for work in removed if work.tier is Tier.MID
        )
        for work in due:
            self.model.remove(work)

    @rule(budget=st.integers(0, 12), divisor=st.integers(1, 5))
    def sweep(self, budget: int, divisor: int) -> None:
        looked_at: list[Work] = []

        def drop(work: Work) -> bool:
            looked_at.append(work)
            return work.offset % divisor == 1

        dropped = self.lanes.sweep(budget, drop)
        assert [id(work) for work in dropped] == [id(work) for work in looked_at if work.offset % divisor == 1]
        assert len({id(work) for work in looked_at}) == len(looked_at) <= budget
        for work in dropped:
            self.model.remove(work)
        gone = [work for work in self.model.waiting if not work.assignment.claims.is_open and not self.waits(work)]
        before = len(self.model.waiting) + len(dropped)
        assert len(looked_at) + len(gone) <= budget
        assert budget < before or len(looked_at) + len(gone) == before
        for work in gone:
            self.model.remove(work)

    def waits(self, work: Work) -> bool:
        return any(each is work for each in self.lanes[work.tier].waiting_in_order())

    @rule(tier=st.sampled_from(TIERS))
    def give_up(self, tier: Tier) -> None:
        """Its requests stay until they are looked at."""
        self.assignments[tier].claims.close()
        self.assignments[tier] = make_assignment(tier)

    @rule()
    def drain(self) -> None:
        for _ in range(len(self.model.waiting)):
            self.taken(self.lanes.pop(0.0, running={}, limit=1))
        assert not self.lanes

    @invariant()
    def the_same_waits(self) -> None:
        if not hasattr(self, "lanes"):
            return
        for tier in TIERS:
            lane, works = self.lanes[tier], [work for work in self.model.waiting if work.tier is tier]
            assert len(lane) == len(works)
            assert lane.size_bytes == cost_bytes(works)
            assert lane.prompt_tokens == sum(work.prompt_tokens for work in works)
            assert abs(lane.cost_seconds - sum(work.cost_seconds for work in works)) < 1e-6
            assert lane.records_by_tenant() == Counter(work.request and work.request.tenant for work in works)
        assert bool(self.lanes) == bool(self.model.waiting)
        assert len(self.lanes) == len(self.model.waiting)


TestLanesModel = LanesModel.TestCase
TestLanesModel.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
