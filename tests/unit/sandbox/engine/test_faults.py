"""Injected faults: the requests that meet them, and descriptions that are refused."""

from __future__ import annotations

from typing import Any

import pytest

from forebay_sandbox.engine.faults import FaultPlan, parse_faults
from forebay_schemas.errors import UsageError


def plan_of(*specs: dict[str, Any], seed: int = 0) -> FaultPlan:
    plan = FaultPlan(seed=seed)
    plan.replace(parse_faults({"faults": list(specs)}))
    return plan


def met(plan: FaultPlan, *, request_id: str = "id", body: bytes = b"{}") -> int | None:
    """The status of the fault that a request meets."""
    fault = plan.choose(request_id=request_id, body=body)
    return None if fault is None else fault.status


def test_without_faults_nothing_happens() -> None:
    assert met(plan_of()) is None


def test_a_count_ends_a_fault_and_the_next_one_takes_over() -> None:
    plan = plan_of({"kind": "status", "status": 503, "count": 2}, {"kind": "status", "status": 429, "count": 1})
    assert [met(plan) for _ in range(4)] == [503, 503, 429, None]
    assert [fault["hits"] for fault in plan.describe()] == [2, 1]


def test_a_match_looks_at_the_body_and_at_the_request_id() -> None:
    plan = plan_of({"kind": "status", "status": 500, "match": "poison"})
    assert met(plan) is None
    assert met(plan, request_id="poison-7") == 500
    assert met(plan, body=b'{"user": "poison"}') == 500


def test_chance_is_seeded_and_starts_anew_with_each_plan() -> None:
    spec = {"kind": "status", "status": 503, "probability": 0.3}
    plan = plan_of(spec, seed=7)
    first = [met(plan) for _ in range(500)]
    plan.replace(parse_faults({"faults": [spec]}))
    assert [met(plan) for _ in range(500)] == first
    assert 100 < first.count(503) < 200


def test_slow_without_a_choice_slows_steps_and_with_one_slows_requests() -> None:
    plan = plan_of({"kind": "slow", "factor": 3}, {"kind": "slow", "factor": 2, "match": "me"})
    assert plan.step_factor == 3
    assert plan.choose(request_id="other", body=b"") is None
    chosen = plan.choose(request_id="me", body=b"")
    assert chosen is not None
    assert chosen.factor == 2


def test_a_refusal_ends_and_leaves_the_others() -> None:
    plan = plan_of({"kind": "refuse", "seconds": 1}, {"kind": "status", "status": 500})
    plan.end_refusal()
    assert [fault["kind"] for fault in plan.describe()] == ["status"]
    assert plan.refusal is None
    assert met(plan) == 500


def test_a_plan_describes_itself_as_it_was_given() -> None:
    plan = plan_of({"kind": "status", "status": 429, "retry_after_seconds": 2}, {"kind": "cut", "where": "middle"})
    assert plan.describe() == [
        {"kind": "status", "status": 429, "retry_after_seconds": 2, "probability": 1.0, "hits": 0},
        {"kind": "cut", "where": "middle", "probability": 1.0, "hits": 0},
    ]


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        (5, "faults[0]"),
        ({}, "faults[0].kind"),
        ({"kind": "explode"}, "faults[0].kind"),
        ({"kind": ["status"]}, "faults[0].kind"),
        ({"kind": "status"}, "faults[0].status"),
        ({"kind": "status", "status": 200}, "faults[0].status"),
        ({"kind": "status", "status": "503"}, "faults[0].status"),
        ({"kind": "status", "status": 429, "retry_after_seconds": -1}, "faults[0].retry_after_seconds"),
        ({"kind": "status", "status": 503, "factor": 2}, "faults[0].factor"),
        ({"kind": "cut"}, "faults[0].where"),
        ({"kind": "cut", "where": []}, "faults[0].where"),
        ({"kind": "slow"}, "faults[0].factor"),
        ({"kind": "slow", "factor": 0.5}, "faults[0].factor"),
        ({"kind": "hang", "probability": 0}, "faults[0].probability"),
        ({"kind": "hang", "probability": 1.5}, "faults[0].probability"),
        ({"kind": "hang", "count": 0}, "faults[0].count"),
        ({"kind": "hang", "count": True}, "faults[0].count"),
        ({"kind": "hang", "match": ""}, "faults[0].match"),
        ({"kind": "refuse", "seconds": 0}, "faults[0].seconds"),
        ({"kind": "refuse", "match": "x"}, "faults[0].match"),
    ],
)
def test_a_wrong_fault_is_refused_and_its_field_named(spec: object, field: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_faults({"faults": [spec]})
    assert caught.value.field == field


@pytest.mark.parametrize("document", [None, [], {}, {"faults": {}}, {"faults": [], "more": 1}])
def test_the_document_is_an_object_with_a_list(document: object) -> None:
    with pytest.raises(UsageError, match="faults"):
        parse_faults(document)


def test_two_refusals_are_one_too_many() -> None:
    with pytest.raises(UsageError, match="refuse"):
        parse_faults({"faults": [{"kind": "refuse"}, {"kind": "refuse", "seconds": 1}]})
