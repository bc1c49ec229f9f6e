"""Dispatch: how much the intake may take."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from forebay_schemas.contract.reasons import Reason
from forebay_schemas.contract.tiers import Tier, tier_times
from forebay_worker.bounds import BOUNDS
from forebay_worker.dispatch.failure_policy import SUSPECTS_MAX
from forebay_worker.partition.assignment import Assignment
from forebay_worker.partition.credit import Credit
from forebay_worker.request.memory import cost_bytes
from forebay_worker.request.work import Failure, Work
from simulated.dispatch import ANSWER, BUFFER_BYTES, REFUSED, Stage, status_failure, works
from simulated.works import make_assignment, make_work


def room_bytes(credit: Credit) -> int:
    """Bytes that may be handed over now, as far as a lane can hold them."""
    room = 0
    while credit.room_records > 0:
        room += 1_000
        credit.spend(0, 1_000)
    credit.spend(0, -room)
    return room


def test_at_the_start_each_tier_may_take_the_least_lookahead() -> None:
    stage = Stage()
    for credit in stage.dispatcher.lookahead.credits.values():
        assert credit.room_records == BOUNDS.lookahead_records_min
        assert room_bytes(credit) == BUFFER_BYTES // 3


def test_the_lookahead_follows_the_rate_up_to_the_buffers_bytes() -> None:
    stage = Stage(limit=1000, buffer_bytes_max=3 * 1_000_000)
    assignment = make_assignment(Tier.LOW)
    for second in range(2):
        batch = works(100, assignment=assignment, first=second * 100)
        stage.accept(*batch)
        for work in stage.take_all():
            stage.dispatcher.answered(work, ANSWER)
        stage.tick(1.0)
    stage.tick(0.1)
    # A hundred a second for a day would be eight million.
    low = stage.dispatcher.lookahead.credits[Tier.LOW]
    assert low.capacity_records == 1_000_000 // 1_500
    assert stage.dispatcher.lookahead.credits[Tier.HIGH].capacity_records == 100 * 5


def test_the_lookahead_reaches_as_far_as_the_tiers_deadline() -> None:
    stage = Stage(limit=1000, buffer_bytes_max=60_000_000, tier_times=tier_times({Tier.HIGH: 60_000}, {}))
    served_for(stage, 2, per_second=100, assignment=make_assignment(Tier.HIGH))
    stage.tick(0.1)
    assert stage.dispatcher.lookahead.credits[Tier.HIGH].capacity_records == 100 * 60


def served_for(stage: Stage, seconds: int, *, per_second: int, assignment: Assignment) -> None:
    """Accepts and answers ``per_second`` requests a second."""
    for second in range(seconds):
        stage.accept(*works(per_second, assignment=assignment, first=second * per_second))
        for work in stage.take_all():
            stage.dispatcher.answered(work, ANSWER)
        stage.tick(1.0)


def test_the_lookahead_shrinks_with_a_backend_that_slows_down() -> None:
    """What could start before mid's 30 s: nothing more is taken out of Kafka while the lane holds as much."""
    stage = Stage(limit=1_000, buffer_bytes_max=300_000_000)
    mid = stage.dispatcher.lookahead.credits[Tier.MID]
    assignment = make_assignment(Tier.MID, credit=mid)
    served_for(stage, 5, per_second=100, assignment=assignment)
    stage.tick(0.1)
    assert mid.capacity_records == 100 * 30
    served_for(stage, 20, per_second=4, assignment=assignment)
    stage.tick(0.1)
    assert mid.capacity_records == BOUNDS.lookahead_records_min
    batch = works(BOUNDS.lookahead_records_min + 1, assignment=assignment, first=1_000)
    mid.spend(mid.room_records, 0)  # what the fast backend was allowed is never taken back
    stage.accept(*batch)
    stage.tick(0.2)
    assert mid.room_records <= 0


def test_what_the_backend_refuses_does_not_count_as_done() -> None:
    stage = Stage(limit=1_000)
    stage.accept(*works(100))
    for work in stage.take_all():
        stage.dispatcher.failed(work, REFUSED)
    stage.tick(1.0)
    assert stage.dispatcher.lookahead.rate_per_second == 0


def test_due_retries_join_a_full_lane_up_to_twice_its_capacity() -> None:
    """They waited at a tail once already."""
    stage = Stage()
    requests, retries = stage.dispatcher.lookahead.credits[Tier.MID], stage.dispatcher.lookahead.retry_credits[Tier.MID]
    assert retries.room_records == BOUNDS.retry_room_records
    batch = works(BOUNDS.lookahead_records_min, assignment=make_assignment(credit=requests))
    requests.spend(len(batch), cost_bytes(batch))
    stage.accept(*batch)
    assert requests.room_records == 0
    late = make_assignment(credit=retries, retry_delay_seconds=5)
    for number in range(BOUNDS.retry_room_records):
        [work] = works(1, assignment=late, first=1_000 + number)
        assert retries.room_records > 0
        retries.spend(1, cost_bytes([work]))
        stage.accept(work)
    assert retries.room_records == 0
    taken = stage.take_all()
    for work in taken:
        stage.dispatcher.answered(work, ANSWER)
    stage.tick(1.0)
    assert requests.room_records == 0, "the lane is still fuller than requests alone may make it"
    assert retries.room_records == len(taken)


class CreditModel(RuleBasedStateMachine):
    """An intake that takes all it may, and every way in which a request can leave dispatch."""

    @initialize(limit=st.integers(1, 6), buffer_kib=st.integers(30, 3_000))
    def start(self, limit: int, buffer_kib: int) -> None:
        self.stage = Stage(limit=limit, buffer_bytes_max=buffer_kib * 1024)
        self.limit = limit
        self.lane_bytes_max = buffer_kib * 1024 // 3
        self.tier = Tier.MID
        self.assignment = self.new_assignment()
        self.next_offset = 0
        self.transit: list[Work] = []
        self.running: list[Work] = []
        self.capacity_max = BOUNDS.lookahead_records_min
        self.largest = 0

    @property
    def credit(self) -> Credit:
        return self.stage.dispatcher.lookahead.credits[self.tier]

    def new_assignment(self) -> Assignment:
        return make_assignment(self.tier, credit=self.credit)

    @rule(
        count=st.integers(1, 300),
        size=st.sampled_from([0, 100, 3_000, 50_000]),
        ttl_ms=st.sampled_from([500, 60_000]),
        kind=st.sampled_from(["fine", "garbage"]),
    )
    def intake(self, count: int, size: int, ttl_ms: int, kind: str) -> None:
        for _ in range(count):
            if self.credit.room_records <= 0:
                break
            value = b"x" * (size + 1) if kind == "garbage" else None
            payload = {"x": "y" * size}
            age_ms = int((self.stage.clock.monotonic() - 1_000.0) * 1000)
            work = make_work(
                self.assignment, offset=self.next_offset, value=value, payload=payload, ttl_ms=ttl_ms + age_ms
            )
            self.next_offset += 1
            self.credit.spend(1, cost_bytes([work]))
            self.largest = max(self.largest, cost_bytes([work]))
            self.transit.append(work)

    @rule()
    def deliver(self) -> None:
        batch, self.transit = self.transit, []
        if batch:
            self.stage.accept(*batch)

    @rule()
    def dispatch(self) -> None:
        self.running += self.stage.take_all()

    @precondition(lambda self: self.running)
    @rule(end=st.sampled_from(["answered", "refused", "failed", "rejected", "overdue", "given back"]))
    def finish(self, end: str) -> None:
        work = self.running.pop(0)
        dispatcher = self.stage.dispatcher
        match end:
            case "answered":
                dispatcher.answered(work, ANSWER)
            case "refused":
                dispatcher.failed(work, REFUSED)
            case "failed":
                dispatcher.failed(work, status_failure(500))
            case "rejected":
                dispatcher.failed(work, Failure(reason=Reason.BACKEND_REJECTED, error="no"))
            case _:
                dispatcher.gave_up(work, deadline_passed=end == "overdue")

    @rule()
    def revoke_and_assign_again(self) -> None:
        self.assignment.claims.close()
        self.assignment = self.new_assignment()

    @rule(seconds=st.sampled_from([0.02, 0.5, 5.0, 61.0]))
    def pass_time(self, seconds: float) -> None:
        self.stage.tick(seconds)

    @invariant()
    def never_more_than_the_capacity(self) -> None:
        dispatcher = self.stage.dispatcher
        self.capacity_max = max(self.capacity_max, dispatcher.lookahead.credits[self.tier].capacity_records)
        lane = dispatcher.lanes[self.tier]
        ahead = len(lane) + len(self.transit)
        # What comes back from the backend was running: there are at most as many as the limit, and the suspects.
        suspects_max = 1 + SUSPECTS_MAX
        assert ahead <= self.capacity_max + self.limit + suspects_max
        ahead_bytes = lane.size_bytes + cost_bytes(self.transit)
        assert ahead_bytes < self.lane_bytes_max + (self.limit + suspects_max + 1) * self.largest or not ahead
        assert len(dispatcher.running) <= self.limit

    @invariant()
    def an_empty_lane_may_be_filled_again(self) -> None:
        """Nothing that a request can go through keeps its credit for ever."""
        dispatcher = self.stage.dispatcher
        if not dispatcher.lanes and not self.transit:
            self.stage.tick(0.2)
            self.running = [work for work in self.running if id(work) in dispatcher.running]
            if not dispatcher.lanes:
                assert self.credit.room_records >= BOUNDS.lookahead_records_min
                self.credit.spend(0, self.lane_bytes_max - 1)
                assert self.credit.room_records > 0, "not all of its bytes"
                self.credit.spend(0, 1 - self.lane_bytes_max)


TestCreditModel = CreditModel.TestCase
TestCreditModel.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
