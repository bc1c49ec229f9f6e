"""Capacities of other workers: twins of one id, absurd ones, other bounds, other backends."""

from __future__ import annotations

from typing import Any

import pytest

from forebay_schemas.contract.coordination import GONE_SECONDS, REQUESTS_MAX
from forebay_schemas.contract.tiers import TIERS
from forebay_worker.pacing.slots.sharing import Own
from simulated.capacities import make_capacity
from simulated.sharing import BACKEND, SharingStage


def test_two_processes_with_one_id_are_two() -> None:
    stage = SharingStage()
    stage.add("same", low=100)
    stage.run(1)
    stage.add("same", low=100)
    stage.run(8)
    assert stage.shares() == [10, 10]
    assert stage.most <= 0


def absurd(stage: SharingStage, name: str = "absurd", **fields: Any) -> None:
    """A record that can be read lies in the topic next, from somebody who has no requests."""
    said = {"backend": BACKEND, "limit_requests": 20, "share_requests": 0, **fields}
    stage.topic.append((stage.now, make_capacity(name, **said)))


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
    stage = SharingStage(ends_share=0.3)
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
    stage = SharingStage()
    one = stage.add("one", low=100)
    stage.run(3)
    absurd(stage, limit_requests=limit)
    absurd(stage, limit_requests=limit, cuts_total=1, sequence=1)
    stage.run(0.2)
    assert one.cut_to == [cut_to]


def test_a_rollout_to_a_larger_highest_limit_lets_the_new_worker_have_it() -> None:
    stage = SharingStage(limit=600, ends_share=0.5)
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
    stage = SharingStage()
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
    stage = SharingStage(ends_share=0.0)
    old = stage.add("same", low=100)
    stage.run(3)
    old.draining = True
    new = stage.add("same", low=100)
    stage.run(5)
    assert not new.sharing.has_twin


def test_workers_on_another_backend_do_not_count() -> None:
    stage = SharingStage()
    one = stage.add("one")
    stage.run(1)
    elsewhere = make_capacity("two", backend="127.0.0.1:9000", limit_requests=20, share_requests=20, in_flight=20)
    stage.topic.append((stage.now, elsewhere))
    stage.run(2)
    assert one.sharing.share_requests == 20


def test_a_worker_says_its_capacity_once_a_second_and_little_more() -> None:
    stage = SharingStage(ends_share=0.3)
    for name in "abcd":
        stage.add(name, low=100)
    stage.run(10)
    before = len(stage.topic)
    stage.run(10)
    assert 36 <= len(stage.topic) - before <= 48
