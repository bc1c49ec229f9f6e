"""The tier of the next slot: simulated over virtual hours in front of a server with a fixed number of slots."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from forebay_schemas.contract.tiers import TIERS, Tier
from forebay_worker.lanes.tier_shares import RESERVE_SECONDS, TierShares

HIGH, MID, LOW = Tier.HIGH, Tier.MID, Tier.LOW

STRICT = {MID: 0.0, LOW: 0.0}


@dataclass
class SlotServer:
    """Slots that are filled as soon as they are free. ``service``: draws the seconds that a request takes."""

    limit: int
    service: Callable[[], float]
    shares: TierShares = field(default_factory=TierShares)
    arrivals: Iterator[tuple[float, Tier]] = field(default_factory=lambda: iter(()))
    waiting: dict[Tier, list[float]] = field(default_factory=lambda: {tier: [] for tier in TIERS})
    endless: frozenset[Tier] = frozenset()
    """Tiers of which something always waits."""
    now: float = 0.0
    running: dict[Tier, int] = field(default_factory=lambda: dict.fromkeys(TIERS, 0))
    slot_seconds: dict[Tier, float] = field(default_factory=lambda: dict.fromkeys(TIERS, 0.0))
    waits: dict[Tier, list[float]] = field(default_factory=lambda: {tier: [] for tier in TIERS})
    longest_gap: dict[Tier, float] = field(default_factory=lambda: dict.fromkeys(TIERS, 0.0))
    """The longest time in which none of a tier ran."""
    _gap_began: dict[Tier, float] = field(default_factory=lambda: dict.fromkeys(TIERS, 0.0))
    _ends: list[tuple[float, int, Tier]] = field(default_factory=list)

    def run(self, seconds: float) -> None:
        """Goes on for a while; then ``slot_seconds`` is what each tier had in all."""
        end = self.now + seconds
        number = itertools.count(len(self._ends))
        arrival = next(self.arrivals, None)
        for tier in self.endless:
            self.shares.arrived(tier, self.now, first=True)
        while True:
            self.fill(number)
            at = min(self._ends[0][0] if self._ends else end, arrival[0] if arrival else end, end)
            self.pass_time(at)
            if at >= end:
                return
            if arrival is not None and arrival[0] <= at:
                tier = arrival[1]
                self.shares.arrived(tier, at, first=not self.waiting[tier])
                self.waiting[tier].append(at)
                arrival = next(self.arrivals, None)
            while self._ends and self._ends[0][0] <= at:
                _, _, tier = heapq.heappop(self._ends)
                self.running[tier] -= 1
                if not self.running[tier]:
                    self._gap_began[tier] = at

    def fill(self, number: Iterator[int]) -> None:
        while sum(self.running.values()) < self.limit:
            high, mid, low = (tier in self.endless or bool(self.waiting[tier]) for tier in TIERS)
            if not (high or mid or low):
                return
            tier = self.shares.choose(self.now, high=high, mid=mid, low=low, running=self.running, limit=self.limit)
            if tier is None:
                return
            if self.waiting[tier]:
                self.waits[tier].append(self.now - self.waiting[tier].pop(0))
            if not self.running[tier]:
                self.longest_gap[tier] = max(self.longest_gap[tier], self.now - self._gap_began[tier])
            self.running[tier] += 1
            heapq.heappush(self._ends, (self.now + self.service(), next(number), tier))

    def pass_time(self, to: float) -> None:
        for tier in TIERS:
            self.slot_seconds[tier] += self.running[tier] * (to - self.now)
        self.now = to

    def share(self, tier: Tier) -> float:
        """Share of the slot time that the limit gives."""
        return self.slot_seconds[tier] / (self.limit * self.now)


def mixed(seed: int, *, mean_seconds: float = 4.0) -> Callable[[], float]:
    """Service times as of conversations: most short, some twenty times as long."""
    dice = random.Random(seed)
    return lambda: min(20 * mean_seconds, dice.lognormvariate(0.0, 1.0) * mean_seconds / 1.65)


def poisson(seed: int, **per_second: float) -> Iterator[tuple[float, Tier]]:
    """Arrivals of high, mid and low at these rates."""
    dice, now = random.Random(seed), 0.0
    tiers, rates = [Tier(name) for name in per_second], list(per_second.values())
    while True:
        now += dice.expovariate(sum(rates))
        yield now, dice.choices(tiers, rates)[0]


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[int(share * (len(values) - 1))]


@pytest.mark.parametrize("limit", [4, 8, 32, 200])
def test_under_an_endless_flood_of_high_the_others_get_their_shares_and_no_more(limit: int) -> None:
    server = SlotServer(limit, mixed(1), endless=frozenset(TIERS))
    server.run(160_000 / limit)
    assert server.share(MID) == pytest.approx(0.05, rel=0.1)
    assert server.share(LOW) == pytest.approx(0.01, rel=0.2)
    assert server.share(HIGH) >= 0.935, "nothing else is taken from high"


@pytest.mark.parametrize("limit", [1, 2])
def test_even_one_slot_is_shared(limit: int) -> None:
    server = SlotServer(limit, mixed(2, mean_seconds=1.0), endless=frozenset(TIERS))
    server.run(40_000)
    assert server.share(MID) == pytest.approx(0.05, rel=0.15)
    assert server.share(LOW) == pytest.approx(0.01, rel=0.2)


def test_a_flood_of_mid_does_not_starve_low() -> None:
    server = SlotServer(32, mixed(3), endless=frozenset({MID, LOW}))
    server.run(5_000)
    assert server.share(LOW) == pytest.approx(0.01, rel=0.15)
    assert server.share(MID) == pytest.approx(0.99, rel=0.01), "no high request was seen: there is no reserve"


def test_the_lower_tiers_wait_for_their_turn_no_longer_than_their_share_explains() -> None:
    """A request of 4 s in one of 32 slots is 1 % of them for 12.5 s."""
    server = SlotServer(32, lambda: 4.0, endless=frozenset(TIERS))
    server.run(2_000)
    assert server.longest_gap[LOW] < 12.5
    assert server.longest_gap[MID] <= 4.0


def test_what_was_taken_while_high_was_silent_is_not_held_against_the_others() -> None:
    server = SlotServer(32, mixed(4), endless=frozenset({MID, LOW}))
    server.run(3_600)
    before = dict(server.slot_seconds)
    server.endless = frozenset(TIERS)
    server.run(600)
    for tier, share in ((MID, 0.05), (LOW, 0.01)):
        assert server.slot_seconds[tier] - before[tier] >= 0.8 * share * 32 * 600


def test_who_was_silent_saves_up_no_burst() -> None:
    server = SlotServer(32, lambda: 1.0, endless=frozenset({HIGH}))
    server.run(3_600)
    assert server.share(HIGH) == pytest.approx(1.0, abs=0.001)
    server.endless = frozenset(TIERS)
    server.run(10)
    assert server.slot_seconds[MID] <= 0.05 * 32 * 10 + 3
    assert server.slot_seconds[LOW] <= 0.01 * 32 * 10 + 1.5


def test_a_trickle_of_low_ones_gets_no_more_than_its_share_of_a_flooded_server() -> None:
    """One long low request after another, never two at a time: each would find nothing charged yet."""
    server = SlotServer(
        32, lambda: 10.0, arrivals=((at * 12.0, LOW) for at in range(1, 100_000)), endless=frozenset({HIGH})
    )
    server.run(10_000)
    assert server.share(LOW) == pytest.approx(0.01, rel=0.15)


@pytest.mark.parametrize("load", [0.5, 0.85])
def test_floods_of_the_others_cost_high_no_more_wait_than_their_shares_are_worth(load: float) -> None:
    """A slot becomes free every 1/8 s. If all slots were always busy and 6 % of them another's, the mean wait of those
    who go first would be that of a queue which serves 7.52 a second one by one."""
    rate = load * 32 / 4.0
    one_by_one = 1 / (0.94 * 32 / 4.0 - rate)

    def waits(shares: TierShares) -> list[float]:
        server = SlotServer(32, mixed(5), shares, arrivals=poisson(6, high=rate), endless=frozenset({MID, LOW}))
        server.run(4_000)
        return server.waits[HIGH]

    without_reserve = waits(TierShares(reserve=0.0))
    assert sum(without_reserve) / len(without_reserve) <= 1.1 * one_by_one
    with_reserve = waits(TierShares())
    assert sum(with_reserve) < sum(without_reserve)
    assert percentile(with_reserve, 0.95) < percentile(without_reserve, 0.95)


def test_the_reserve_lets_a_few_high_ones_start_at_once() -> None:
    def waits(shares: TierShares) -> list[float]:
        server = SlotServer(32, mixed(7), shares, arrivals=poisson(8, high=0.2), endless=frozenset({MID, LOW}))
        server.run(3_000)
        return server.waits[HIGH]

    assert percentile(waits(TierShares()), 0.95) == 0.0
    assert percentile(waits(TierShares(reserve=0.0)), 0.95) > 0.2


def test_the_reserve_is_used_by_all_when_no_high_was_seen_for_a_minute() -> None:
    server = SlotServer(32, lambda: 1.0, endless=frozenset({LOW}))
    server.run(10)
    assert server.running[LOW] == 32
    server.shares.arrived(HIGH, server.now, first=True)
    server.run(RESERVE_SECONDS - 2)
    assert server.running[LOW] == 29
    server.run(4)
    assert server.running[LOW] == 32


@pytest.mark.parametrize(("limit", "slots"), [(1, 0), (3, 0), (4, 1), (19, 1), (20, 2), (128, 12)])
def test_the_reserve_is_a_tenth_of_the_slots_and_at_least_one_where_there_are_four(limit: int, slots: int) -> None:
    shares = TierShares()
    shares.arrived(HIGH, 5.0, first=True)
    assert shares.reserved(6.0, limit) == slots


def test_without_shares_and_reserve_the_tiers_are_strict() -> None:
    server = SlotServer(8, mixed(9), TierShares(minimum=STRICT, reserve=0.0), endless=frozenset(TIERS))
    server.run(1_000)
    assert server.share(HIGH) == pytest.approx(1.0)


def test_the_shares_follow_the_limit() -> None:
    server = SlotServer(200, mixed(10), endless=frozenset(TIERS))
    server.run(300)
    server.slot_seconds = dict.fromkeys(TIERS, 0.0)
    server.limit = 20
    server.run(12_000)
    assert server.slot_seconds[MID] / (20 * 12_000) == pytest.approx(0.05, rel=0.15)


def test_nothing_waits_nothing_is_chosen() -> None:
    shares = TierShares()
    assert shares.choose(1.0, high=False, mid=False, low=False, running={}, limit=32) is None


def test_while_dispatch_stands_still_no_endless_debt_grows() -> None:
    """The backend was down for an hour after a low request had started; it failed at once."""
    shares = TierShares()
    for tier in TIERS:
        shares.arrived(tier, 0.0, first=True)
    everything = {"high": True, "mid": False, "low": True}
    shares.choose(0.0, **everything, running={HIGH: 31}, limit=32)
    assert shares.choose(1.0, **everything, running={HIGH: 31}, limit=32) is LOW
    shares.choose(3_601.0, **everything, running={HIGH: 31}, limit=32)
    assert shares.owed_slot_seconds(LOW) >= -120


def flooded(server: SlotServer, *, seconds: float, only_high: bool) -> None:
    """Slots that are filled with executions of 1 s as long as the shares choose anything."""
    shares, now = server.shares, server.now
    ends: list[tuple[float, Tier]] = []
    while now < server.now + seconds:
        while ends and ends[0][0] <= now:
            server.running[heapq.heappop(ends)[1]] -= 1
        while sum(server.running.values()) < server.limit:
            high, mid, low = (tier in server.endless for tier in TIERS)
            tier = shares.choose(
                now, high=high, mid=mid, low=low, running=server.running, limit=server.limit, only_high=only_high
            )
            if tier is None:
                break
            server.running[tier] += 1
            server.slot_seconds[tier] += 1.0
            heapq.heappush(ends, (now + 1.0, tier))
        now += 0.05


@pytest.mark.parametrize(
    ("case", "waits", "chosen"),
    [
        ("high waits: it is taken", {HIGH, MID, LOW}, HIGH),
        ("only mid waits, and is owed nothing: none", {MID}, None),
        ("only low waits, and is owed nothing: none", {LOW}, None),
        ("nothing waits", set(), None),
    ],
)
def test_while_only_high_may_start_the_others_get_no_free_slots(
    case: str, waits: set[Tier], chosen: Tier | None
) -> None:
    shares = TierShares()
    assert (
        shares.choose(0.0, high=HIGH in waits, mid=MID in waits, low=LOW in waits, running={}, limit=32, only_high=True)
        is chosen
    ), case


def test_the_same_slots_are_theirs_when_all_may_start() -> None:
    assert TierShares().choose(0.0, high=False, mid=True, low=True, running={}, limit=32) is MID
    assert TierShares().choose(0.0, high=False, mid=False, low=True, running={}, limit=32) is LOW


def test_while_only_high_may_start_the_others_still_get_what_they_are_guaranteed() -> None:
    server = SlotServer(40, lambda: 1.0, endless=frozenset(TIERS))
    for tier in TIERS:
        server.shares.arrived(tier, 0.0, first=True)
    flooded(server, seconds=600, only_high=True)
    total = sum(server.slot_seconds.values())
    assert server.slot_seconds[MID] / total == pytest.approx(0.05, rel=0.1)
    assert server.slot_seconds[LOW] / total == pytest.approx(0.01, rel=0.25)


def test_while_only_high_may_start_and_none_waits_the_others_get_their_shares_and_not_the_rest() -> None:
    server = SlotServer(40, lambda: 1.0, endless=frozenset({MID, LOW}))
    for tier in (MID, LOW):
        server.shares.arrived(tier, 0.0, first=True)
    flooded(server, seconds=600, only_high=True)
    used = {tier: server.slot_seconds[tier] / (40 * 600) for tier in (MID, LOW)}
    assert 0.04 <= used[MID] <= 0.06
    assert 0.008 <= used[LOW] <= 0.013
