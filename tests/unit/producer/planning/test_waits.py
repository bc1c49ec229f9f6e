"""Waits in tiers against closed forms."""

from __future__ import annotations

import math

import pytest

from forebay_producer.planning.waits import Flow, all_busy, floods, waits
from forebay_schemas.contract.tiers import Tier


@pytest.mark.parametrize(
    ("places", "erlangs", "share"),
    [
        (1, 0.5, 0.5),  # with one place it is busy as long as its load says
        (2, 1.0, 1 / 3),
        (5, 4.0, 0.5541),  # the usual tables
        (10, 8.0, 0.4092),
        (4, 4.0, 1.0),
        (4, 9.0, 1.0),
        (4, 0.0, 0.0),
    ],
)
def test_how_often_all_places_are_taken(places: int, erlangs: float, share: float) -> None:
    assert all_busy(places, erlangs) == pytest.approx(share, abs=1e-4)


def test_thousands_of_places_are_no_trouble() -> None:
    assert 0 < all_busy(5000, 4900.0) < 0.5


@pytest.mark.parametrize(("places", "erlangs"), [(5, 4.9), (200, 180.0), (5000, 4900.0), (5000, 100.0)])
def test_what_is_left_out_of_the_long_sum_does_not_show(places: int, erlangs: float) -> None:
    inverse = 1.0
    for taken in range(1, places + 1):
        inverse = min(1 + inverse * taken / erlangs, 1e300)
    whole = 1 / inverse / (1 - erlangs / places * (1 - 1 / inverse))
    assert all_busy(places, erlangs) == pytest.approx(whole, rel=1e-9, abs=1e-15)


def test_a_hundred_million_places_take_no_time() -> None:
    assert 0 < all_busy(100_000_000, 99_990_000.0) < 1
    assert all_busy(100_000_000, 50_000_000.0) == 0


@pytest.mark.parametrize(
    ("service_cv", "mean"),
    [(1.0, 1.0), (0.0, 0.5)],  # M/M/1 and M/D/1 with half the load and a second of service
)
def test_the_wait_with_one_place_is_the_textbook_s(service_cv: float, mean: float) -> None:
    [wait] = waits(places=1, service_seconds=1.0, service_cv=service_cv, per_second=[0.5])
    assert wait is not None
    assert wait.mean_seconds == pytest.approx(mean)


def test_higher_tiers_wait_less_and_all_together_as_long_as_without_tiers() -> None:
    rates = [1.0, 2.0, 4.0]
    found = waits(places=10, service_seconds=1.2, service_cv=1.0, per_second=rates)
    means = [wait.mean_seconds for wait in found if wait is not None]
    assert means == sorted(means)
    [together] = waits(places=10, service_seconds=1.2, service_cv=1.0, per_second=[sum(rates)])
    assert together is not None
    mixed = sum(rate * mean for rate, mean in zip(rates, means, strict=True)) / sum(rates)
    assert mixed == pytest.approx(together.mean_seconds)


def test_a_tier_that_is_more_than_can_be_done_has_no_wait_by_chance() -> None:
    found = waits(places=10, service_seconds=1.0, service_cv=1.0, per_second=[5.0, 6.0])
    assert found[0] is not None
    assert found[1] is None


def test_a_flood_is_drained_by_what_is_left_after_it() -> None:
    # 10/s for 1,000 s where 6/s are done leave 4,000; at 2/s afterwards 4/s are left for them.
    flow = Flow(peak_per_second=10.0, peak_seconds=1000.0, rest_per_second=2.0)
    found = floods({Tier.LOW: flow}, done_per_second=6.0)[Tier.LOW]
    assert found.backlog_requests == pytest.approx(4000, rel=0.01)
    assert found.drained_seconds == pytest.approx(1000, rel=0.05)
    assert found.wait_seconds == pytest.approx(4000 / 6, rel=0.02)


def test_higher_tiers_pass_a_flood_and_lower_ones_pay_for_it() -> None:
    flows = {
        Tier.HIGH: Flow(peak_per_second=4.0, peak_seconds=600.0, rest_per_second=1.0),
        Tier.LOW: Flow(peak_per_second=4.0, peak_seconds=600.0, rest_per_second=1.0),
    }
    found = floods(flows, done_per_second=5.0)
    assert found[Tier.HIGH].wait_seconds == pytest.approx(0.0, abs=1.0)
    assert found[Tier.LOW].backlog_requests == pytest.approx(1800, rel=0.01)


def test_more_than_a_day_s_work_is_never_drained() -> None:
    flow = Flow(peak_per_second=2.0, peak_seconds=0.0, rest_per_second=2.0)
    found = floods({Tier.LOW: flow}, done_per_second=1.0)[Tier.LOW]
    assert found.drained_seconds is None
    assert math.isinf(found.wait_seconds)
