"""Properties of a seed's acts: the same for the same seed, of every kind, replays killed and run again. Pure."""

from __future__ import annotations

from chaos.acts import Acts, Ask, Handling, make_acts
from chaos.plan import make_plan

_SEEDS = range(20)


def _acts(seed: int, seconds: float = 300) -> Acts:
    return make_acts(seed=seed, seconds=seconds, faults=make_plan(seed=seed, seconds=seconds).faults)


def test_the_same_seed_gives_the_same_acts() -> None:
    assert _acts(7) == _acts(7)
    assert _acts(7) != _acts(8)


def test_acts_come_in_order_of_time_and_within_it() -> None:
    for seed in _SEEDS:
        acts = _acts(seed)
        for times in ([each.at_seconds for each in acts.handles], [each.at_seconds for each in acts.orders]):
            assert times == sorted(times)
            assert 0 < times[0] <= times[-1] <= 300


def test_dead_letters_are_replayed_and_discarded_and_both_are_killed_and_run_again() -> None:
    handles = [handle for seed in _SEEDS for handle in _acts(seed).handles]
    replays = [handle for handle in handles if handle.handling is Handling.REPLAY]
    assert 0.1 < 1 - len(replays) / len(handles) < 0.35
    for handling in Handling:
        assert {len(each.kills_after_seconds) for each in handles if each.handling is handling} == {0, 1, 2}
    assert 0 < sum(handle.stop_after_seconds is not None for handle in replays) < len(replays) / 3
    assert {handle.reason for handle in replays} >= {"backend_error", "backend_timeout", "backend_rejected"}


def test_a_minute_has_a_replay_that_is_killed_and_orders_of_both_kinds_for_requests_of_every_age() -> None:
    for seed in _SEEDS:
        orders = _acts(seed).orders
        for ask in Ask:
            ages = [order.age_seconds for order in orders if order.ask is ask]
            assert min(ages) < 0.05 < max(ages)
            assert max(ages) > 5.0
        assert _acts(seed, seconds=60).handles[0].kills_after_seconds


def test_orders_come_thicker_while_something_is_broken() -> None:
    plan = make_plan(seed=3, seconds=300)
    calm = make_acts(seed=3, seconds=300, faults=())
    broken = make_acts(seed=3, seconds=300, faults=plan.faults)
    assert len(broken.orders) > len(calm.orders) + len(plan.faults)
    assert broken.handles == calm.handles
