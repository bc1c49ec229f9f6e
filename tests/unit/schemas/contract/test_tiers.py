"""Times of each tier: defaults, settings, and the workers that differ."""

from __future__ import annotations

import pytest

from forebay_schemas.contract.coordination import Capacity, decode_capacity, encode_capacity
from forebay_schemas.contract.tier_agreement import agreement_of, difference
from forebay_schemas.contract.tiers import DEFAULT_TIER_TIMES, TIERS, TTL_MS_MAX, Tier, TierTimes, tier_times
from simulated.capacities import make_capacity


def worker(name: str, times: TierTimes | None = None, *, since: int = 0, draining: bool = False) -> Capacity:
    decoded = decode_capacity(encode_capacity(make_capacity(name, times, incarnation=since, draining=draining)))
    assert decoded is not None
    return decoded


def test_without_settings_high_has_5_s_and_waits_3_mid_30_and_18_low_a_day_and_60_per_cent_of_it() -> None:
    assert [DEFAULT_TIER_TIMES.ttl_seconds(tier) for tier in TIERS] == [5, 30, 86_400]
    assert [DEFAULT_TIER_TIMES.wait_seconds(tier) for tier in TIERS] == [3, 18, 51_840]


@pytest.mark.parametrize(
    ("ttl_ms", "wait_ms", "waits"),
    [
        ({Tier.HIGH: 60_000}, {}, [3_000, 18_000, 51_840_000]),
        ({Tier.HIGH: 2_000}, {}, [1_200, 18_000, 51_840_000]),
        ({Tier.MID: 120_000, Tier.LOW: TTL_MS_MAX}, {}, [3_000, 72_000, 362_880_000]),
        ({Tier.HIGH: 60_000}, {Tier.HIGH: 10_000}, [10_000, 18_000, 51_840_000]),
        ({Tier.MID: 1}, {}, [3_000, 1, 51_840_000]),
    ],
)
def test_a_tier_left_out_keeps_its_default_and_a_wait_follows_its_deadline(
    ttl_ms: dict[Tier, int], wait_ms: dict[Tier, int], waits: list[int]
) -> None:
    times = tier_times(ttl_ms, wait_ms)
    assert dict(times.ttl_ms) == dict(DEFAULT_TIER_TIMES.ttl_ms) | ttl_ms
    assert [times.wait_ms[tier] for tier in TIERS] == waits


def test_a_worker_of_a_version_that_does_not_say_its_deadlines_has_the_defaults() -> None:
    assert worker("old").times == DEFAULT_TIER_TIMES
    long = tier_times({Tier.HIGH: 60_000}, {})
    assert worker("new", long).times == long


def test_the_worker_that_started_last_and_does_not_drain_has_the_pools_values() -> None:
    long, longer = tier_times({Tier.HIGH: 60_000}, {}), tier_times({Tier.HIGH: 90_000}, {})
    agreement = agreement_of(
        [
            worker("a", since=1),
            worker("b", long, since=5),
            worker("c", since=3),
            worker("d", longer, since=9, draining=True),
        ]
    )
    assert agreement is not None
    assert (agreement.worker, agreement.times) == ("b", long)
    assert agreement.differing == {"a": DEFAULT_TIER_TIMES, "c": DEFAULT_TIER_TIMES, "d": longer}


def test_workers_that_agree_differ_from_nobody_and_none_say_nothing() -> None:
    agreement = agreement_of([worker("a", since=1), worker("b", DEFAULT_TIER_TIMES, since=2)])
    assert agreement is not None
    assert agreement.differing == {}
    assert agreement_of([]) is None
    only_draining = agreement_of([worker("a", since=1, draining=True)])
    assert only_draining is not None
    assert only_draining.worker == "a"


def test_a_difference_names_the_setting_the_tier_and_both_values() -> None:
    theirs = tier_times({Tier.HIGH: 60_000}, {Tier.LOW: 1_000})
    assert difference(DEFAULT_TIER_TIMES, theirs) == (
        "FOREBAY_TIER_TTL_MS high 5000 against 60000, FOREBAY_TIER_WAIT_MS low 51840000 against 1000"
    )
    assert difference(theirs, theirs) == ""
