"""Division of a backend's slots among workers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_schemas.contract.tiers import TIERS, Tier
from forebay_worker.pacing.slots.allocation import allocate, fill

HIGH, MID, LOW = TIERS
MINIMUM = {MID: 0.05, LOW: 0.01}


@pytest.mark.parametrize(
    ("slots", "wants", "given"),
    [
        (10, [], []),
        (0, [3, 3], [0, 0]),
        (10, [2, 3], [2, 3]),
        (10, [20, 20], [5, 5]),
        (10, [2, 20], [2, 8]),
        (10, [20, 2, 20], [4, 2, 4]),
        (10, [20, 20, 20], [3, 3, 4]),
        (2, [1, 1, 1], [0, 1, 1]),
    ],
)
def test_water_finds_its_level(slots: int, wants: list[int], given: list[int]) -> None:
    assert fill(slots, wants) == given


@pytest.mark.parametrize(
    ("case", "slots", "wanted", "reserve", "shares"),
    [
        ("nobody", 10, {}, 0, {}),
        ("alone", 10, {"a": {}}, 0, {"a": 10}),
        ("nobody wants anything", 10, {"a": {}, "b": {}}, 0, {"a": 5, "b": 5}),
        (
            "all want more than there is",
            12,
            {"a": {LOW: 90}, "b": {LOW: 90}, "c": {LOW: 90}},
            0,
            dict.fromkeys("abc", 4),
        ),
        ("one wants little", 12, {"a": {LOW: 2}, "b": {LOW: 90}}, 0, {"a": 2, "b": 10}),
        ("high before low", 12, {"a": {HIGH: 8, LOW: 90}, "b": {LOW: 90}}, 0, {"a": 10, "b": 2}),
        (
            "high before mid before low",
            12,
            {"a": {LOW: 90}, "b": {MID: 90}, "c": {HIGH: 5}},
            0,
            {"a": 1, "b": 6, "c": 5},
        ),
        ("a flood of high leaves one to each", 12, {"a": {HIGH: 90}, "b": {LOW: 90}}, 0, {"a": 11, "b": 1}),
        ("and mid its minimum", 100, {"a": {HIGH: 900}, "b": {MID: 90}}, 0, {"a": 95, "b": 5}),
        ("what is left is for whoever comes next", 12, {"a": {HIGH: 2}, "b": {}}, 0, {"a": 7, "b": 5}),
        ("low leaves slots free for high", 12, {"a": {HIGH: 2}, "b": {LOW: 90}}, 4, {"a": 4, "b": 8}),
        ("high takes the free slots too", 12, {"a": {HIGH: 90}, "b": {HIGH: 90}}, 4, {"a": 6, "b": 6}),
    ],
)
def test_shares_follow_demand_highest_tier_first(
    case: str, slots: int, wanted: dict[str, dict[Tier, int]], reserve: int, shares: dict[str, int]
) -> None:
    assert allocate(slots, wanted, minimum=MINIMUM, reserve_slots=reserve) == shares, case


def test_more_workers_than_slots_take_turns() -> None:
    wanted = {name: {LOW: 9} for name in "abcde"}
    had = dict.fromkeys(wanted, 0)
    for turn in range(10):
        shares = allocate(2, wanted, minimum=MINIMUM, turn=turn)
        assert sorted(shares.values()) == [0, 0, 0, 1, 1]
        for name, share in shares.items():
            had[name] += share
    assert set(had.values()) == {4}


demands = st.dictionaries(
    st.sampled_from("abcdefgh"), st.dictionaries(st.sampled_from(TIERS), st.integers(0, 300)), min_size=1
)


@given(st.integers(0, 300), demands, st.integers(0, 40), st.integers(0, 20))
def test_all_slots_are_given_and_no_more(
    slots: int, wanted: dict[str, dict[Tier, int]], reserve: int, turn: int
) -> None:
    shares = allocate(slots, wanted, minimum=MINIMUM, reserve_slots=reserve, turn=turn)
    assert sum(shares.values()) == slots
    assert min(shares.values()) >= 0
    assert shares.keys() == wanted.keys()


@given(st.integers(0, 300), demands, st.integers(0, 40))
def test_nobody_with_demand_starves_while_there_are_slots(
    slots: int, wanted: dict[str, dict[Tier, int]], reserve: int
) -> None:
    shares = allocate(slots, wanted, minimum=MINIMUM, reserve_slots=reserve)
    wanting = [name for name, each in wanted.items() if any(each.values())]
    if len(wanting) <= slots:
        assert all(shares[name] >= 1 for name in wanting)
    else:
        assert sum(shares[name] for name in wanting) == slots


@given(st.integers(0, 300), demands)
def test_nobody_has_slots_to_spare_while_another_is_short(slots: int, wanted: dict[str, dict[Tier, int]]) -> None:
    shares = allocate(slots, wanted, minimum=MINIMUM)
    wants = {name: sum(each.values()) for name, each in wanted.items()}
    if any(shares[name] < wants[name] for name in wanted):
        assert all(shares[name] <= wants[name] for name in wanted)


@given(st.integers(0, 300), st.dictionaries(st.sampled_from("abcd"), st.integers(0, 300), min_size=2))
def test_those_who_want_more_than_their_part_have_the_same(slots: int, wants: dict[str, int]) -> None:
    shares = allocate(slots, {name: {LOW: want} for name, want in wants.items()}, minimum={MID: 0.0, LOW: 0.0})
    short = [shares[name] for name in wants if shares[name] < wants[name]]
    if short:
        assert max(shares.values()) <= min(short) + 1
