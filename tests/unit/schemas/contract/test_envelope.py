"""The envelope, field by field: what is valid, what is refused, and in which words. Pure."""

from __future__ import annotations

import json
import tracemalloc
import uuid
from typing import Any

import msgspec
import pytest

from forebay_schemas.contract.envelope import (
    JsonCodec,
    PayloadHints,
    Request,
    deadline_ms,
    payload_hints,
    priority_in,
    tier_for,
)
from forebay_schemas.contract.tiers import DEFAULT_TTL_MS, PRIORITY_MAX, PRIORITY_MIN, TTL_MS_MAX, Tier, tier_of
from forebay_schemas.contract.topics import REQUEST_BYTES_MAX
from forebay_schemas.errors import EnvelopeError, ExitCode

CODEC = JsonCodec()
MINIMAL: dict[str, Any] = {"request_id": "r-1", "biz_type": "chat_completion", "payload": {}}
NOW = 1_760_000_000_000
HOUR, DAY = 3_600_000, 86_400_000
LEFT_OUT = object()


def written(**changes: Any) -> bytes:
    fields = {name: value for name, value in (MINIMAL | changes).items() if value is not LEFT_OUT}
    return json.dumps(fields).encode()


def refused(value: bytes | None) -> EnvelopeError:
    with pytest.raises(EnvelopeError) as caught:
        CODEC.decode(value)
    return caught.value


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("request_id", "x"),
        ("request_id", "x" * 200),
        ("request_id", "3f0c9e2e-6f0e-4f8e-9d3a-1d2b3c4d5e6f"),
        ("request_id", "bestellung-ü-請求-🙂"),
        ("biz_type", "embedding"),
        ("priority", 0),
        ("priority", 10),
        ("priority", "high"),
        ("priority", "mid"),
        ("priority", "low"),
        ("priority", None),
        ("ttl_ms", 1),
        ("ttl_ms", TTL_MS_MAX),
        ("ttl_ms", None),
        ("expire_at", 1735689600000),
        ("expire_at", 10**14),
        ("expire_at", None),
        ("sent_at", NOW),
        ("tenant", "team a/b"),
        ("tenant", None),
        ("max_attempts", 1),
        ("max_attempts", 100),
    ],
)
def test_a_valid_value_is_read_as_it_was_written(field: str, value: Any) -> None:
    assert getattr(CODEC.decode(written(**{field: value})), field) == value


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("request_id", LEFT_OUT, "is missing"),
        ("request_id", "", "is ''"),
        ("request_id", "x" * 201, "203 characters"),
        ("request_id", "a\nb", r"is 'a\nb'"),
        ("request_id", "a\0", r"is 'a\x00'"),
        ("request_id", "\u202ea", "is "),
        ("request_id", 5, "is an integer"),
        ("request_id", None, "is null"),
        ("request_id", ["a"], "is a list"),
        ("biz_type", LEFT_OUT, "is missing"),
        ("biz_type", "", "is ''"),
        ("biz_type", "x" * 201, "203 characters"),
        ("biz_type", "a\tb", r"is 'a\tb'"),
        ("biz_type", True, "is a boolean"),
        ("payload", LEFT_OUT, "is missing"),
        ("payload", None, "is not an object"),
        ("payload", [], "is not an object"),
        ("payload", "{}", "is not an object"),
        ("payload", 5, "is not an object"),
        ("priority", -1, "is -1"),
        ("priority", 11, "is 11"),
        ("priority", 10**30, "is 1000"),
        ("priority", True, "is a boolean"),
        ("priority", 5.0, "is a number with a decimal point or an exponent"),
        ("priority", "HIGH", "is 'HIGH'"),
        ("priority", "7", "is '7'"),
        ("priority", " - at `$.tenant`", "is ' - at `$.tenant`'"),
        ("priority", "x" * 500, "is 'xxx"),
        ("priority", ["high"], "is a list"),
        ("ttl_ms", 0, "is 0"),
        ("ttl_ms", -5, "is -5"),
        ("ttl_ms", TTL_MS_MAX + 1, "is 604800001"),
        ("ttl_ms", 2**63, "is 9223372036854775808"),
        ("ttl_ms", 2**64, "is 18446744073709551616"),
        ("ttl_ms", False, "is a boolean"),
        ("ttl_ms", "5000", "is a string"),
        ("ttl_ms", 5000.0, "is a number with a decimal point"),
        ("expire_at", 1735689600, "is 1735689600, which looks like seconds"),
        ("expire_at", 0, "looks like seconds"),
        ("expire_at", -NOW, "looks like seconds"),
        ("expire_at", NOW * 1000, "looks like microseconds or nanoseconds"),
        ("expire_at", NOW * 1000_000, "looks like microseconds or nanoseconds"),
        ("expire_at", 2**64, "looks like microseconds or nanoseconds"),
        ("expire_at", True, "is a boolean"),
        ("expire_at", "2025-01-01T00:00:00Z", "is a string"),
        ("sent_at", 1735689600, "looks like seconds"),
        ("sent_at", NOW * 1000, "looks like microseconds"),
        ("sent_at", {}, "is an object"),
        ("tenant", "", "is ''"),
        ("tenant", "x" * 201, "203 characters"),
        ("tenant", "a\r\nb", r"is 'a\r\nb'"),
        ("tenant", 7, "is an integer"),
        ("max_attempts", 0, "is 0"),
        ("max_attempts", 101, "is 101"),
        ("max_attempts", True, "is a boolean"),
        ("max_attempts", "3", "is a string"),
    ],
)
def test_a_wrong_value_is_refused_by_the_fields_name_with_a_fix(field: str, value: Any, problem: str) -> None:
    error = refused(written(**{field: value}))
    assert error.field == field
    assert problem in error.problem
    assert error.fix
    assert error.request_id == (None if field == "request_id" else "r-1")
    assert error.exit_code is ExitCode.USAGE
    assert len(str(error)) < 300
    # Words of the parser or of Python are no help to whoever wrote the record.
    words = str(error).replace(repr(value), "")
    assert not any(jargon in words for jargon in ("$.", "`", "int |", "Expected", "msgspec", "object missing", "codec"))


@pytest.mark.parametrize(
    ("value", "problem", "request_id"),
    [
        (None, "is a null value", None),
        (b"", "is empty", None),
        (b"null", "is null", None),
        (b"[1]", "is a list", None),
        (b'"x"', "is a string", None),
        (b"hello", "is not JSON", None),
        (b"\xef\xbb\xbf" + written(), "starts with a byte order mark", "r-1"),
        (json.dumps(MINIMAL).encode("utf-16"), "looks like UTF-16", None),
        (json.dumps(MINIMAL).encode("utf-16-le"), "looks like UTF-16", None),
        (written() + b"}", "is not JSON: trailing characters", "r-1"),
        (written()[:-5], "breaks off", "r-1"),
        (b'{"request_id":"r-1","payload":{"text":"caf\xe9"},"biz_type":"b"}', "is not UTF-8 (byte 42)", "r-1"),
        (b'{"request_id":"r-1","biz_type":"b","payload":{},"\xff":1}', "is not UTF-8 (byte 49)", "r-1"),
        (b'{"payload":{"request_id":"inner"},"biz_type":"b"', "breaks off", None),
        (b'{"request_id":"r-1","biz_type":"b","payload":{"a":"\\ud83d"}}', "half of a surrogate pair", "r-1"),
        (b'{"request_id":"r-1","biz_type":"b","payload":{"a":"\\ud83dx"}}', "half of a surrogate pair", "r-1"),
        (b'{"request_id":"\\udfff","biz_type":"b","payload":{}}', "half of a surrogate pair", None),
        (b'{"request_id":"r-1","biz_type":"b","payload":{"a":NaN}}', "is not JSON", "r-1"),
        (b'{"request_id":"r-1","biz_type":"b","payload":{"a":"\n"}}', "is not JSON", "r-1"),
        (b'{"request_id":"r-1","biz_type":"b","payload":{"a":"\0"}}', "is not JSON", "r-1"),
        (b"{'request_id':'r-1'}", "is not JSON", None),
        (b'{"request_id":"r-1","a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "is nested too deeply", "r-1"),
    ],
)
def test_bytes_that_are_no_envelope_are_refused_with_their_id_if_it_can_be_read(
    value: bytes | None, problem: str, request_id: str | None
) -> None:
    error = refused(value)
    assert (error.field, error.request_id) == ("envelope", request_id)
    assert problem in error.problem


def test_numbers_of_thousands_of_digits_are_refused_where_they_would_be_read() -> None:
    digits = b"9" * 10_000
    for field in ("priority", "ttl_ms", "expire_at", "sent_at", "max_attempts"):
        error = refused(written()[:-1] + b', "' + field.encode() + b'": ' + digits + b"}")
        assert (error.field, error.problem, error.request_id) == (field, "has a number out of range", "r-1")
    for field in ("payload", "reply", "unknown"):
        CODEC.decode(written()[:-1] + b', "' + field.encode() + b'": {"n": ' + digits + b"}}")


def test_an_id_inside_the_payload_is_never_taken_for_the_requests_own() -> None:
    inner = {"request_id": "of-another"}
    for fields in ({"payload": inner, "biz_type": 5}, {"payload": inner}, {"a": inner, "payload": [inner]}):
        for value in (json.dumps(fields).encode(), json.dumps(fields).encode()[:-1], json.dumps([fields]).encode()):
            assert refused(value).request_id is None


def test_of_equal_names_the_last_one_counts() -> None:
    value = b'{"request_id":"a","biz_type":"x","payload":{"n":1},"request_id":"b","payload":{"n":2}}'
    request = CODEC.decode(value)
    assert (request.request_id, bytes(request.payload)) == ("b", b'{"n":2}')
    assert refused(value[:-1] + b',"ttl_ms":0}').request_id == "b"
    assert refused(b'{"request_id":"a","request_id":5,"b').request_id is None


@pytest.mark.parametrize("reply", [b'"https://example.com/hook"', b'{ "to": ["a", 1e999, null]}', b"null", b""])
def test_a_reply_stays_the_bytes_that_came(reply: bytes) -> None:
    value = json.dumps(MINIMAL).encode()[:-1] + (b', "reply": ' + reply if reply else b"") + b"}"
    assert bytes(CODEC.decode(value).reply) == (reply or b"null")


@pytest.mark.parametrize("field", ["reply", "unknown", "payload"])
def test_what_the_worker_does_not_read_is_not_made_into_objects(field: str) -> None:
    """8 MiB of empty lists are 190 MB of Python objects; the bytes that are kept are one copy of them."""
    fields = {"request_id": b'"r"', "biz_type": b'"b"', "payload": b"{}"}
    empty_lists = b"[" + b"[]," * (REQUEST_BYTES_MAX // 3 - 100) + b"[]]"
    fields[field] = b'{"model": %s}' % empty_lists if field == "payload" else empty_lists
    value = b"{" + b", ".join(b'"%s": %s' % (name.encode(), item) for name, item in fields.items()) + b"}"
    tracemalloc.start()
    try:
        request = CODEC.decode(value)
        assert payload_hints(request) == PayloadHints()
        made_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # A view of the value costs nothing; the hints look at one copy of what stands in the model's place.
    assert made_bytes < 1.1 * len(value)


def test_the_payload_stays_the_bytes_that_came() -> None:
    payload = b'{ "z":1.0, "a":[1e3 , "\\u00fc\xc3\xbc"], "a":null}'
    value = b'{"request_id":"r","biz_type":"b","payload": ' + payload + b' ,"later_field":[{}]}'
    assert bytes(CODEC.decode(value).payload) == payload


@pytest.mark.parametrize("tier", list(Tier))
def test_the_tiers_name_means_its_middle_and_the_topic_decides_the_tier(tier: Tier) -> None:
    assert tier_for(CODEC.decode(written(priority=tier.value))) is tier
    for priority in (*range(PRIORITY_MIN, PRIORITY_MAX + 1), "high", "mid", "low", None):
        request = CODEC.decode(written(priority=priority))
        found = priority_in(request, tier=tier)
        if isinstance(priority, int):
            assert found == priority
            assert tier_for(request) is tier_of(priority)
        else:
            assert tier_of(found) is (Tier(priority) if priority else tier)


def test_seven_to_ten_are_high_four_to_six_mid_the_rest_low() -> None:
    assert [tier_of(priority).value[0] for priority in range(11)] == list("llllmmmhhhh")
    assert tier_for(CODEC.decode(written())) is Tier.MID


@pytest.mark.parametrize(
    ("fields", "deadline"),
    [
        ({}, NOW + DEFAULT_TTL_MS[Tier.HIGH]),
        ({"sent_at": NOW - HOUR}, NOW + DEFAULT_TTL_MS[Tier.HIGH]),
        ({"expire_at": NOW + 9_000}, NOW + 9_000),
        ({"expire_at": 1735689600000}, 1735689600000),
        # The client's clock is an hour slow, then an hour fast: nothing changes.
        ({"expire_at": NOW - HOUR + 9_000, "sent_at": NOW - HOUR}, NOW + 9_000),
        ({"expire_at": NOW + HOUR + 9_000, "sent_at": NOW + HOUR}, NOW + 9_000),
        ({"expire_at": NOW - 1, "sent_at": NOW}, NOW - 1),
        ({"ttl_ms": 700}, NOW + 700),
        ({"ttl_ms": 700, "expire_at": NOW - DAY, "sent_at": NOW - DAY}, NOW + 700),
        ({"ttl_ms": TTL_MS_MAX}, NOW + 7 * DAY),
        ({"expire_at": 10**14}, NOW + 7 * DAY),
        ({"expire_at": 10**14, "sent_at": 10**11}, NOW + 7 * DAY),
    ],
)
def test_ttl_wins_over_expire_at_which_wins_over_the_tiers_default(fields: dict[str, int], deadline: int) -> None:
    assert deadline_ms(CODEC.decode(written(**fields)), tier=Tier.HIGH, first_enqueued_at=NOW) == deadline


def test_each_tier_has_its_own_default_deadline() -> None:
    request = CODEC.decode(written())
    waits = {tier: deadline_ms(request, tier=tier, first_enqueued_at=NOW) - NOW for tier in Tier}
    assert waits == {Tier.HIGH: 5_000, Tier.MID: 30_000, Tier.LOW: DAY}


@pytest.mark.parametrize(
    ("payload", "hints"),
    [
        ({}, PayloadHints()),
        (
            {"model": "m", "stream": True, "max_tokens": 5, "max_completion_tokens": 6, "messages": [[]]},
            PayloadHints(model="m", stream=True, max_tokens=5, max_completion_tokens=6),
        ),
        ({"model": 5, "stream": "yes", "max_tokens": 7}, PayloadHints(max_tokens=7)),
        ({"max_tokens": True, "max_completion_tokens": 0}, PayloadHints()),
        ({"max_tokens": -1, "max_completion_tokens": 2**70}, PayloadHints()),
        ({"max_tokens": 5.0, "stream": 1, "model": None}, PayloadHints()),
        ({"model": "m", "stream": True, "max_tokens": [5]}, PayloadHints(model="m", stream=True)),
        (
            {"model": ["m"], "stream": False, "max_tokens": 5, "max_completion_tokens": 10**10},
            PayloadHints(max_tokens=5),
        ),
    ],
)
def test_payload_hints_take_what_is_usable_and_never_fail(payload: dict[str, Any], hints: PayloadHints) -> None:
    assert payload_hints(CODEC.decode(written(payload=payload))) == hints


def test_payload_hints_survive_what_only_they_would_read() -> None:
    deep = b"[" * 900 + b"]" * 900
    for payload in (b'{"model": ' + b"9" * 10_000 + b"}", b'{"stream": ' + deep + b"}", b'{"model": 1e999}'):
        request = Request(request_id="r", biz_type="b", payload=msgspec.Raw(payload))
        assert payload_hints(request) == PayloadHints()


def test_encoding_writes_known_fields_in_their_order_then_the_others_by_name() -> None:
    fields = {"zeta": 1, "payload": {"z": 1, "a": 2}, "alpha": [2], "biz_type": "b", "ttl_ms": 5, "request_id": "r"}
    expected = b'{"request_id":"r","biz_type":"b","payload":{"z":1,"a":2},"ttl_ms":5,"alpha":[2],"zeta":1}'
    assert CODEC.encode(fields) == expected
    assert CODEC.encode(dict(reversed(fields.items()))) == expected


def test_encoding_takes_a_uuid_and_ready_json() -> None:
    request_id = uuid.uuid4()
    value = CODEC.encode({"request_id": request_id, "biz_type": "b", "payload": msgspec.Raw(b'{ "a" : 1 }')})
    assert CODEC.decode(value).request_id == str(request_id)
    assert bytes(CODEC.decode(value).payload) == b'{ "a" : 1 }'


def test_null_and_the_word_null_are_fine() -> None:
    assert b'"x":null' in CODEC.encode(MINIMAL | {"payload": {"x": None, "text": "null", "n": 1.5, "list": [(1.0,)]}})


@pytest.mark.parametrize(
    ("changes", "field", "problem"),
    [
        ({"payload": {"t": float("nan")}}, "payload", "NaN"),
        ({"payload": {"t": [{"u": (float("inf"),)}]}}, "payload", "infinity"),
        ({"extra": float("-inf")}, "extra", "infinity"),
        ({"ttl_ms": float("nan")}, "ttl_ms", "NaN"),
        ({"payload": {"t": "\ud800"}}, "payload", "surrogate"),
        ({"tenant": "\udfff"}, "tenant", "surrogate"),
        ({"payload": {"t": object()}}, "payload", "cannot be written as JSON"),
        ({"payload": {(1, 2): 3}}, "payload", "cannot be written as JSON"),
        ({"payload": msgspec.Raw(b'{"a"')}, "envelope", "is not JSON"),
        ({"payload": msgspec.Raw(b'{"a":"\xff"}')}, "envelope", "is not UTF-8"),
        ({"ttl_ms": 0}, "ttl_ms", "is 0"),
        ({"biz_type": None}, "biz_type", "is null"),
        ({5: 6}, "envelope", "strings as names"),
    ],
)
def test_encoding_refuses_what_decoding_would_refuse(changes: dict[Any, Any], field: str, problem: str) -> None:
    with pytest.raises(EnvelopeError) as caught:
        CODEC.encode(MINIMAL | changes)
    assert caught.value.field == field
    assert problem in caught.value.problem


def test_encoding_refuses_what_holds_itself_or_is_no_mapping() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(EnvelopeError, match=r"^payload: is nested too deeply, or holds itself"):
        CODEC.encode(MINIMAL | {"payload": {"x": endless}})
    not_mappings: list[Any] = [None, [1], 5, "text"]
    for fields in not_mappings:
        with pytest.raises(EnvelopeError, match=r"^envelope: is not a mapping"):
            CODEC.encode(fields)
