"""Workers that share a backend, each with its own view, over one ordered topic: who may have how much in flight, and
that all of them together never have more than the limit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay_schemas.contract.coordination import GONE_SECONDS, REQUESTS_MAX, Capacity
from forebay_schemas.contract.tiers import TIERS, Tier
from forebay_worker.pacing.slots.sharing import NEW_SECONDS, SILENT_SECONDS, Own, Sharing

HIGH, MID, LOW = TIERS
BACKEND = "127.0.0.1:8000"
TICK = 0.05


@dataclass(eq=False)
class Member:
    """A worker: what waits in it, what runs, and how far it has read."""

    name: str
    sharing: Sharing
    limit: float
    wanted: dict[Tier, int] = field(default_factory=dict)
    running: int = 0
    read: int = 0
    reads_again_at: float = 0.0
    written_at: float | None = None
    draining: bool = False
    cut_off: bool = False
    cuts: int = 0
    dropped: int = 0
    cut_to: list[float] = field(default_factory=list)

    @property
    def waiting(self) -> int:
        return sum(self.wanted.values())


class Stage:
    """Moves time on in small ticks. Requests run until `end` or `ends_share` of them in each tick."""

    def __init__(
        self, *, limit: int = 20, seed: int = 1, delay_seconds: float = 0.03, ends_share: float = 0.05
    ) -> None:
        self.now = 1000.0
        self.limit = limit
        self.random = Random(seed)
        self.delay_seconds = delay_seconds
        self.ends_share = ends_share
        self.topic: list[tuple[float, Capacity]] = []
        self.members: list[Member] = []
        self.gone: list[Member] = []
        self.most = 0
        self.pending: list[tuple[float, Member, Capacity]] = []

    def add(self, name: str, *, limit: int | None = None, limit_max: int = 256, **wanted: int) -> Member:
        sharing = Sharing(
            worker=name,
            backend=BACKEND,
            minimum={MID: 0.05, LOW: 0.01},
            reserve_share=0.0,
            incarnation=int(1000 * self.now),
            limit_min=1,
            limit_max=limit_max,
        )
        member = Member(name, sharing, limit or self.limit, {Tier(tier): number for tier, number in wanted.items()})
        self.members.append(member)
        return member

    def kill(self, member: Member) -> None:
        """Its requests end with it."""
        self.members.remove(member)
        self.gone.append(member)

    def run(self, seconds: float, check: Callable[[], Any] = lambda: None) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now += TICK
            self._write()
            for member in self.members:
                self._turn(member)
            self.most = max(self.most, self.in_flight - self.limit)
            check()

    @property
    def in_flight(self) -> int:
        return sum(member.running for member in self.members)

    def _write(self) -> None:
        for due in [each for each in self.pending if each[0] <= self.now and not each[1].cut_off]:
            self.pending.remove(due)
            self.topic.append((self.now, due[2]))
            due[1].sharing.delivered()

    def _turn(self, member: Member) -> None:
        if not member.cut_off and member.reads_again_at <= self.now:
            for at, capacity in self.topic[member.read :]:
                cut = member.sharing.hear(capacity, now=self.now, age_seconds=self.now - at)
                if cut is not None:
                    member.cut_to.append(cut)
            member.read = len(self.topic)
            member.reads_again_at = self.now + self.delay_seconds * self.random.random()
        member.running -= sum(self.random.random() < self.ends_share for _ in range(member.running))
        own = Own(
            limit_requests=member.limit,
            in_flight=member.running,
            wanted=self._wanted(member),
            cuts_total=member.cuts,
            dropped_total=member.dropped,
            draining=member.draining,
        )
        said = member.sharing.step(self.now, int(1000 * self.now), own)
        if said is not None:
            written = [at for at, other, _ in self.pending if other is member]
            at = max([self.now + self.delay_seconds * self.random.random(), *written])
            self.pending.append((at, member, said))
        if not member.draining:
            member.running += max(
                0, min(member.sharing.share_requests - member.running, member.waiting - member.running)
            )

    def _wanted(self, member: Member) -> dict[Tier, int]:
        """What waits stays as it is: demand is what the test says."""
        wanted, over = dict(member.wanted), member.running - member.waiting
        if over > 0:
            wanted[LOW] = wanted.get(LOW, 0) + over
        return wanted

    def shares(self) -> list[int]:
        return [member.sharing.share_requests for member in self.members]


def test_one_that_is_alone_has_all_within_a_moment() -> None:
    stage = Stage()
    one = stage.add("one")
    stage.run(0.6)
    assert one.sharing.share_requests == 20
    assert one.sharing.others.workers == 0


def test_two_that_start_at_once_never_have_more_than_the_limit() -> None:
    for seed in range(20):
        stage = Stage(seed=seed)
        for name in "ab":
            stage.add(name, low=100)
        stage.run(6)
        assert stage.shares() == [10, 10]
        assert stage.most <= 0


def test_a_newcomer_does_not_burst() -> None:
    stage = Stage()
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
    stage = Stage()
    one, two = stage.add("one", low=100), stage.add("two", high=2)
    stage.run(6)
    assert (one.running, two.running) == (18, 2)
    two.wanted = {HIGH: 12}
    one.running = two.running = 0
    stage.run(1.0)
    assert (one.sharing.share_requests, two.sharing.share_requests) == (8, 12)
    assert stage.most <= 0


def test_what_nobody_wants_is_split_so_that_new_demand_starts_at_once() -> None:
    stage = Stage()
    one, two = stage.add("one"), stage.add("two")
    stage.run(6)
    one.wanted = {LOW: 10}
    stage.run(TICK)
    assert one.running == 10
    assert two.sharing.share_requests >= 9


def test_running_requests_of_a_share_that_shrank_are_not_given_away() -> None:
    stage = Stage(ends_share=0.0)
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
    stage = Stage()
    one, two = stage.add("one", low=100), stage.add("two", low=100)
    stage.run(6)
    stage.kill(two)
    stage.run(GONE_SECONDS - 1.5)
    assert one.sharing.share_requests == 10, "it may only be slow"
    stage.run(2.0)
    assert one.sharing.share_requests == 20


def test_a_draining_worker_hands_its_share_over_at_once_less_what_runs() -> None:
    stage = Stage()
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
    stage = Stage()
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
    stage = Stage(limit=2, ends_share=0.5)
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
    stage = Stage(ends_share=0.5)
    one, two = stage.add("one", low=100), stage.add("two", low=100)
    stage.run(6)
    one.limit = two.limit = 8
    stage.run(TICK)
    assert stage.shares() == [4, 4]
    one.limit = two.limit = 30
    stage.run(1)
    assert stage.shares() == [15, 15]


def test_workers_told_different_limits_starve_nobody() -> None:
    stage = Stage(limit=40, ends_share=0.3)
    stage.add("old", limit=40, low=100)
    stage.run(3)
    stage.add("new", limit=12, low=100)
    stage.run(6)
    assert stage.shares() == [20, 6]


def test_a_cut_and_drops_of_one_are_news_to_the_others_once() -> None:
    stage = Stage()
    one, two = stage.add("one", low=100), stage.add("two", low=100)
    stage.run(6)
    one.limit, one.cuts, one.dropped = 14.0, 1, 3
    stage.run(3)
    assert two.cut_to == [14.0]
    assert two.sharing.others.dropped_total == 3
    assert one.sharing.others.dropped_total == 0


def test_the_common_limit_is_the_mean_by_what_is_in_flight() -> None:
    stage = Stage(ends_share=0.0)
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


def test_two_processes_with_one_id_are_two() -> None:
    stage = Stage()
    stage.add("same", low=100)
    stage.run(1)
    stage.add("same", low=100)
    stage.run(8)
    assert stage.shares() == [10, 10]
    assert stage.most <= 0


def absurd(stage: Stage, name: str = "absurd", **fields: Any) -> None:
    """A record that can be read lies in the topic next, from somebody who has no requests."""
    said = Capacity(
        worker=name,
        backend=BACKEND,
        limit_requests=20,
        share_requests=0,
        in_flight=0,
        wanted={},
        ended_per_second=0,
        service_seconds=None,
        draining=False,
    )
    stage.topic.append((stage.now, msgspec.structs.replace(said, **fields)))


MOST: dict[str, Any] = {"share_requests": REQUESTS_MAX, "in_flight": REQUESTS_MAX}


@pytest.mark.parametrize(
    "fields",
    [
        {**MOST, "limit_requests": float(REQUESTS_MAX)},
        {**MOST, "limit_requests": 0.0},
        {**MOST, "claim_requests": REQUESTS_MAX, "wanted": dict.fromkeys(TIERS, REQUESTS_MAX)},
        {"limit_requests": float(REQUESTS_MAX)},
        {"limit_requests": 0.0, "in_flight": REQUESTS_MAX},
    ],
)
def test_an_absurd_record_neither_stops_the_others_nor_lets_them_have_more_than_the_limit(
    fields: dict[str, Any],
) -> None:
    stage = Stage(ends_share=0.3)
    workers = [stage.add(name, high=30, low=100) for name in "ab"]
    stage.run(6)
    absurd(stage, **fields)
    stage.run(1)
    for worker in workers:
        own = Own(limit_requests=20.0, in_flight=10, wanted={})
        assert 1 <= worker.sharing.common_limit(own, int(1000 * stage.now)) <= 256
        assert worker.sharing.others.in_flight <= 8 * 256 + 20
        assert worker.sharing.share_requests >= 6
    stage.run(GONE_SECONDS + 1)
    assert stage.shares() == [10, 10]
    assert stage.most <= 0


@pytest.mark.parametrize(("limit", "cut_to"), [(0.0, 1.0), (14.0, 14.0), (float(REQUESTS_MAX), 256.0)])
def test_a_cut_of_another_one_is_taken_within_the_own_bounds(limit: float, cut_to: float) -> None:
    stage = Stage()
    one = stage.add("one", low=100)
    stage.run(3)
    absurd(stage, limit_requests=limit)
    absurd(stage, limit_requests=limit, cuts_total=1, sequence=1)
    stage.run(0.2)
    assert one.cut_to == [cut_to]


def test_a_rollout_to_a_larger_highest_limit_lets_the_new_worker_have_it() -> None:
    stage = Stage(limit=600, ends_share=0.5)
    old = stage.add("old", limit=200, low=1000)
    stage.run(3)
    new = stage.add("new", limit=600, limit_max=1024, low=1000)
    stage.run(6)
    assert stage.shares() == [100, 300]
    old.draining = True
    stage.run(4)
    assert new.sharing.share_requests == 600
    assert stage.most <= 0


def test_two_live_processes_of_one_id_know_it_and_one_after_the_other_does_not_count() -> None:
    stage = Stage()
    first = stage.add("same", low=100)
    stage.run(3)
    stage.kill(first)
    second = stage.add("same", low=100)
    stage.run(GONE_SECONDS + 1)
    knew_before = second.sharing.has_twin
    third = stage.add("same", low=100)
    other = stage.add("other", low=100)
    stage.run(4)
    assert (knew_before, [each.sharing.has_twin for each in (second, third, other)]) == (False, [True, True, False])


def test_a_process_that_replaces_a_draining_one_of_its_id_has_no_twin() -> None:
    stage = Stage(ends_share=0.0)
    old = stage.add("same", low=100)
    stage.run(3)
    old.draining = True
    new = stage.add("same", low=100)
    stage.run(5)
    assert not new.sharing.has_twin


def test_workers_on_another_backend_do_not_count() -> None:
    stage = Stage()
    one = stage.add("one")
    stage.run(1)
    elsewhere = Capacity(
        worker="two",
        backend="127.0.0.1:9000",
        limit_requests=20,
        share_requests=20,
        in_flight=20,
        wanted={},
        ended_per_second=0,
        service_seconds=None,
        draining=False,
    )
    stage.topic.append((stage.now, elsewhere))
    stage.run(2)
    assert one.sharing.share_requests == 20


def test_a_worker_says_its_capacity_once_a_second_and_little_more() -> None:
    stage = Stage(ends_share=0.3)
    for name in "abcd":
        stage.add(name, low=100)
    stage.run(10)
    before = len(stage.topic)
    stage.run(10)
    assert 36 <= len(stage.topic) - before <= 48


acts = st.lists(
    st.tuples(st.sampled_from(["add", "kill", "cut", "join", "drain", "want"]), st.integers(0, 5), st.floats(0.1, 8)),
    max_size=14,
)


@settings(deadline=None, max_examples=15)
@given(acts, st.integers(1, 30), st.integers(0, 1000), st.sampled_from([0.03, 0.4]))
def test_whatever_happens_the_limit_holds_and_nobody_starves(
    history: list[tuple[str, int, float]], limit: int, seed: int, delay_seconds: float
) -> None:
    stage = Stage(limit=limit, seed=seed, delay_seconds=delay_seconds, ends_share=0.1)
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
