"""Requests as the producer prepares them."""

from __future__ import annotations

import json
import uuid
from typing import Any

import msgspec
import pytest

from forebay_producer.client.prepare import Prepared, prepare, time_ordered_id
from forebay_producer.errors import PastDeadlineError
from forebay_schemas.contract.envelope import JsonCodec, Request, deadline_ms
from forebay_schemas.contract.tiers import DEFAULT_TTL_MS, Tier
from forebay_schemas.errors import EnvelopeError, UsageError

NOW_MS = 1_900_000_000_000
BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}

CODECS = dict.fromkeys(Tier, JsonCodec())

REQUEST = {"biz_type": "chat_completion", "payload": BODY}


def prepared(tier: Tier | None = None, traceparent: str | None = None, **fields: Any) -> Prepared:
    request = {"biz_type": "chat_completion", "payload": BODY, **fields}
    return prepare(request, tier=tier, traceparent=traceparent, codecs=CODECS, now_ms=NOW_MS)


def sent(**fields: Any) -> dict[str, Any]:
    decoded: dict[str, Any] = msgspec.json.decode(prepared(**fields).value)
    return decoded


def test_a_request_without_an_id_gets_one_of_its_own() -> None:
    first, second = prepared(), prepared()
    assert first.request_id != second.request_id
    assert msgspec.json.decode(first.value)["request_id"] == first.request_id
    assert prepared(request_id="mine").request_id == "mine"


def test_new_ids_are_uuids_of_version_7_and_sort_by_time() -> None:
    ids = [time_ordered_id(NOW_MS + step) for step in range(100)]
    assert ids == sorted(ids)
    parsed = [uuid.UUID(text) for text in ids]
    assert {one.version for one in parsed} == {7}
    assert {one.variant for one in parsed} == {uuid.RFC_4122}
    assert [one.int >> 80 for one in parsed] == [NOW_MS + step for step in range(100)]
    assert [str(one) for one in parsed] == ids


@pytest.mark.parametrize(
    ("priority", "tier", "chosen"),
    [
        (None, None, Tier.MID),
        (None, Tier.LOW, Tier.LOW),
        ("high", None, Tier.HIGH),
        (10, None, Tier.HIGH),
        (7, Tier.HIGH, Tier.HIGH),
        (4, None, Tier.MID),
        (0, None, Tier.LOW),
        ("low", Tier.LOW, Tier.LOW),
    ],
)
def test_the_tier_is_what_is_asked_for_else_what_the_priority_says(
    priority: int | str | None, tier: Tier | None, chosen: Tier
) -> None:
    assert prepared(tier=tier, priority=priority).tier is chosen


def test_a_tier_that_disagrees_with_the_priority_is_refused() -> None:
    with pytest.raises(UsageError, match="priority: is 9, which is tier high, and tier low was asked for"):
        prepared(tier=Tier.LOW, priority=9)


def test_a_tier_that_is_none_is_refused_by_name() -> None:
    assert prepare(REQUEST, tier="high", traceparent=None, codecs=CODECS, now_ms=NOW_MS).tier is Tier.HIGH
    with pytest.raises(UsageError, match="tier: is 'urgent'; give high, mid or low"):
        prepare(REQUEST, tier="urgent", traceparent=None, codecs=CODECS, now_ms=NOW_MS)


@pytest.mark.parametrize(
    ("fields", "ttl_ms", "expire_at", "sent_at"),
    [
        ({}, 30_000, NOW_MS + 30_000, NOW_MS),
        ({"priority": "high"}, 5_000, NOW_MS + 5_000, NOW_MS),
        ({"priority": 1}, DEFAULT_TTL_MS[Tier.LOW], NOW_MS + DEFAULT_TTL_MS[Tier.LOW], NOW_MS),
        ({"ttl_ms": 1_500}, 1_500, NOW_MS + 1_500, NOW_MS),
        ({"expire_at": NOW_MS + 700}, 700, NOW_MS + 700, NOW_MS),
        ({"expire_at": NOW_MS + 700, "sent_at": NOW_MS + 200}, 500, NOW_MS + 700, NOW_MS + 200),
        ({"ttl_ms": 900, "expire_at": NOW_MS - 5}, 900, NOW_MS - 5, NOW_MS),
        ({"ttl_ms": 900, "sent_at": NOW_MS - 100}, 900, NOW_MS + 800, NOW_MS - 100),
        # An hour behind this machine's clock: one of the two is wrong, and nothing expires for it.
        (
            {"expire_at": NOW_MS - 3_595_000, "sent_at": NOW_MS - 3_600_000},
            5_000,
            NOW_MS - 3_595_000,
            NOW_MS - 3_600_000,
        ),
    ],
)
def test_a_record_carries_ttl_expire_at_and_sent_at(
    fields: dict[str, Any], ttl_ms: int, expire_at: int, sent_at: int
) -> None:
    record = sent(**fields)
    assert (record["ttl_ms"], record["expire_at"], record["sent_at"]) == (ttl_ms, expire_at, sent_at)


def test_the_deadline_a_worker_reads_is_the_one_that_was_given() -> None:
    request = JsonCodec().decode(prepared(expire_at=NOW_MS + 60_000).value)
    assert deadline_ms(request, tier=Tier.MID, first_enqueued_at=NOW_MS) == NOW_MS + 60_000


def test_a_deadline_in_the_past_is_refused_by_name() -> None:
    with pytest.raises(
        PastDeadlineError, match=r"expire_at: past deadline: 1735689600000 was 2025-01-01T00:00:00"
    ) as caught:
        prepared(expire_at=1_735_689_600_000)
    assert caught.value.field == "expire_at"
    assert isinstance(caught.value, UsageError)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"expire_at": 1_735_689_600}, "expire_at"),
        ({"expire_at": "soon"}, "expire_at"),
        ({"sent_at": 5}, "sent_at"),
        ({"ttl_ms": -1}, "ttl_ms"),
        ({"ttl_ms": True}, "ttl_ms"),
        ({"ttl_ms": 10**12}, "ttl_ms"),
        ({"priority": "urgent"}, "priority"),
        ({"priority": 11}, "priority"),
        ({"payload": [1]}, "payload"),
        ({"payload": {"x": float("nan")}}, "payload"),
        ({"biz_type": ""}, "biz_type"),
        ({"tenant": 7}, "tenant"),
        ({"request_id": ""}, "request_id"),
        ({"sent_at": NOW_MS + 5, "expire_at": NOW_MS + 5}, "sent_at"),
    ],
)
def test_bad_fields_are_refused_by_name(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(UsageError) as caught:
        prepared(**fields)
    assert caught.value.field == field


def test_what_is_no_mapping_is_refused() -> None:
    with pytest.raises(EnvelopeError, match="envelope: is a str; give a mapping or a Request"):
        prepare("hello", tier=None, traceparent=None, codecs=CODECS, now_ms=NOW_MS)  # type: ignore[arg-type]


def test_unknown_fields_are_sent_along_and_the_caller_s_mapping_stays_as_it_was() -> None:
    request = {"biz_type": "chat_completion", "payload": BODY, "shade": {"of": "blue"}}
    before = dict(request)
    value = prepare(request, tier=None, traceparent=None, codecs=CODECS, now_ms=NOW_MS).value
    assert msgspec.json.decode(value)["shade"] == {"of": "blue"}
    assert request == before


def test_a_decoded_request_can_be_sent_again() -> None:
    request = JsonCodec().decode(prepared(tenant="acme", priority=8).value)
    assert isinstance(request, Request)
    again = prepare(request, tier=None, traceparent=None, codecs=CODECS, now_ms=NOW_MS)
    assert again.tier is Tier.HIGH
    assert JsonCodec().decode(again.value) == request
    assert b"reply" not in again.value
    with_reply = JsonCodec().decode(prepared(reply={"to": [1]}).value)
    value = prepare(with_reply, tier=None, traceparent=None, codecs=CODECS, now_ms=NOW_MS).value
    assert json.loads(value)["reply"] == {"to": [1]}


def test_tenant_and_traceparent_become_headers() -> None:
    assert prepared().headers == []
    headers = prepared(tenant="acmé", traceparent="00-1-2-01").headers
    assert headers == [("forebay-tenant", "acmé".encode()), ("traceparent", b"00-1-2-01")]
