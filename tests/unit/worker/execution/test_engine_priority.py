"""Priorities of requests for an engine that has priorities of its own, by tier."""

from __future__ import annotations

import msgspec
import pytest

from forebay_schemas.contract.tiers import TIERS, Tier
from forebay_worker.execution.engine_priority import EnginePriority, with_priority
from forebay_worker.request.work import Work
from simulated.works import make_assignment, make_work


def work_of(tier: Tier, priority: int) -> Work:
    return make_work(make_assignment(tier), priority=priority)


@pytest.mark.parametrize(("order", "descending"), [("lower_first", False), ("higher_first", True)])
def test_tiers_come_before_integers_and_more_is_more_urgent(order: str, descending: bool) -> None:
    """Also for an integer of another tier's range: the topic decides the tier."""
    urgent_first = [work_of(tier, priority) for tier in TIERS for priority in range(10, -1, -1)]
    told = [msgspec.json.decode(with_priority(work, b"{}", EnginePriority(order)))["priority"] for work in urgent_first]
    assert told == sorted(told, reverse=descending)
    assert len(set(told)) == len(told)
    assert min(told) == 0


@pytest.mark.parametrize(
    ("payload", "sent"),
    [
        (b'{"model":"m"}', b'{"priority":2,"model":"m"}'),
        (b' { "model" : "m" } ', b'{"priority":2,"model" : "m" } '),
        (b"{ }", b'{"priority":2}'),
        (b'{"priority":7,"model":"m"}', b'{"priority":7,"model":"m"}'),
        (b'{"model":"m","priority":null}', b'{"model":"m","priority":null}'),
        (b'{"inner":{"priority":7}}', b'{"priority":2,"inner":{"priority":7}}'),
        (b'{"model":', b'{"model":'),
    ],
)
def test_a_payload_gets_a_priority_unless_the_client_gave_one(payload: bytes, sent: bytes) -> None:
    assert with_priority(work_of(Tier.HIGH, 8), payload, EnginePriority.LOWER_FIRST) == sent


def test_without_the_setting_the_payload_stays_as_it_came() -> None:
    assert with_priority(work_of(Tier.HIGH, 8), b'{"model":"m"}', EnginePriority.NONE) == b'{"model":"m"}'
