"""Result records: written and read back the same, whatever a backend or a handler put into them. Pure."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import pytest

from forebay_schemas.contract.reasons import Status
from forebay_schemas.contract.results import (
    ERROR_BODY_BYTES_MAX,
    ERROR_CHARS_MAX,
    Result,
    ResultError,
    decode_result,
    encode_result,
    with_reply,
)

REQUIRED: dict[str, Any] = {
    "request_id": "r-1",
    "status": Status.COMPLETED,
    "reason": "completed",
    "finished_at": 1_760_000_000_000,
}
FULL = Result(
    **REQUIRED,
    tier="high",
    attempt=2,
    worker="w-1",
    queue_seconds=0.25,
    service_seconds=1e-06,
    prompt_tokens=10,
    output_tokens=0,
    error="Grüße",
    body={"choices": [{"text": "世界\n\0"}], "n": 1.5, "none": None},
)


def test_a_result_comes_back_as_it_was() -> None:
    assert decode_result(encode_result(FULL)) == FULL
    assert decode_result(encode_result(Result(**REQUIRED))) == Result(**REQUIRED)


def test_a_result_has_the_names_that_people_script_against() -> None:
    names = "request_id status reason attempt worker queue_seconds service_seconds prompt_tokens output_tokens"
    assert {*names.split(), "finished_at", "body"} <= set(json.loads(encode_result(FULL)))


def test_ready_json_goes_in_as_it_is() -> None:
    body = b'{ "id" : "x", "z":1, "a":1.0, "id":"twice" }'
    value = encode_result(msgspec.structs.replace(FULL, body=msgspec.Raw(body)))
    assert body in value
    assert decode_result(value).body == {"id": "twice", "z": 1, "a": 1.0}


def test_an_error_is_cut_and_never_keeps_a_result_from_being_written() -> None:
    for error in ("x" * 10_000, "ü" * 10_000, "half \ud800 a pair" * 1_000):
        found = decode_result(encode_result(msgspec.structs.replace(FULL, error=error))).error
        assert found is not None
        assert len(found) == ERROR_CHARS_MAX
    assert decode_result(encode_result(msgspec.structs.replace(FULL, error="a\udfffb"))).error == "a?b"


def test_nan_in_a_body_becomes_null() -> None:
    value = encode_result(msgspec.structs.replace(FULL, body={"logprob": float("nan"), "max": float("-inf")}))
    assert json.loads(value)["body"] == {"logprob": None, "max": None}


def endless() -> list[Any]:
    items: list[Any] = []
    items.append(items)
    return items


@pytest.mark.parametrize("body", [object(), {(1, 2): 3}, {"a": {"b": lambda: 0}}, "\ud800", endless()])
def test_a_body_that_is_no_json_is_an_error_of_ours(body: Any) -> None:
    with pytest.raises(ResultError, match=r"^body: cannot be written as JSON"):
        encode_result(msgspec.structs.replace(FULL, body=body))


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"[]",
        b"{}",
        b'{"request_id":"r","status":"done","reason":"x","finished_at":1}',
        b'{"request_id":"r","status":"failed","reason":"x","finished_at":"now"}',
        b'{"request_id":"r","status":"failed","reason":"x","finished_at":1,"error":"\xff"}',
    ],
)
def test_what_is_no_result_is_an_error_of_ours(value: bytes | None) -> None:
    with pytest.raises(ResultError, match=r"^not a result: ") as caught:
        decode_result(value)
    assert caught.value.reason == "undecodable"


def test_an_older_reader_takes_newer_fields_and_reasons() -> None:
    value = encode_result(FULL)[:-1] + b',"spot_price":{"usd":[0.1]},"engine":null}'
    assert decode_result(value) == FULL
    newer = msgspec.json.encode(REQUIRED | {"status": "failed", "reason": "invented_later"})
    assert decode_result(newer).reason == "invented_later"


@pytest.mark.parametrize(
    ("number", "read"), [("1e999", math.inf), ("-1e999", -math.inf), ("9" * 5_000, math.inf), ("9" * 300, 10**300 - 1)]
)
def test_a_number_that_is_beyond_python_hides_no_outcome(number: str, read: float) -> None:
    body = msgspec.Raw(f'{{"a": [{number}], "b": "x"}}'.encode())
    value = encode_result(msgspec.structs.replace(FULL, body=body))
    assert decode_result(value) == msgspec.structs.replace(FULL, body={"a": [read], "b": "x"})


NEW = ("tenant", "http_status", "error_body", "first_token_seconds", "usage_added", "reply")


def test_fields_of_the_first_version_are_always_written_and_later_ones_where_they_are_known() -> None:
    bare = json.loads(encode_result(Result(**REQUIRED)))
    assert list(bare) == [name for name in Result.__struct_fields__ if name not in NEW]
    assert (bare["tier"], bare["attempt"], bare["replay_count"], bare["body"]) == (None, 1, 0, None)
    known = Result(
        **REQUIRED,
        tenant="t",
        http_status=400,
        error_body={"error": {"param": "n", "code": None}},
        first_token_seconds=0.5,
        usage_added=False,
        reply={"partition": 3},
    )
    assert decode_result(encode_result(known)) == known
    assert {name: json.loads(encode_result(known))[name] for name in NEW} == {
        name: getattr(known, name) for name in NEW
    }


@pytest.mark.parametrize(
    "error_body",
    [{"error": "x" * ERROR_BODY_BYTES_MAX}, msgspec.Raw(b'"' + b"x" * ERROR_BODY_BYTES_MAX + b'"'), object(), "\ud800"],
)
def test_an_error_body_that_is_too_large_or_no_json_is_left_out(error_body: Any) -> None:
    assert "error_body" not in json.loads(encode_result(Result(**REQUIRED, error_body=error_body)))


def test_an_error_body_of_the_most_bytes_is_kept_as_it_came() -> None:
    raw = b'{"a":1.0, "b":"' + b"x" * (ERROR_BODY_BYTES_MAX - 17) + b'"}'
    assert len(raw) == ERROR_BODY_BYTES_MAX
    assert raw in encode_result(Result(**REQUIRED, error_body=msgspec.Raw(raw)))


def test_numbers_beyond_pythons_in_an_error_body_or_a_reply_hide_no_outcome() -> None:
    value = encode_result(Result(**REQUIRED, error_body=msgspec.Raw(b"[1e999]"), reply=msgspec.Raw(b'{"a":-1e999}')))
    found = decode_result(value)
    assert (found.error_body, found.reply, found.body) == ([math.inf], {"a": -math.inf}, None)


def test_a_reply_is_replaced_and_all_else_stays_as_it_was() -> None:
    whole = Result(
        request_id="r",
        status=Status.FAILED,
        reason="backend_rejected",
        finished_at=1,
        http_status=400,
        body=msgspec.Raw(b'{"n": 1e999}'),
        error_body=msgspec.Raw(b'{"code": "c"}'),
        reply=msgspec.Raw(b'{"partition":1}'),
    )
    value = encode_result(whole)
    other = with_reply(value, msgspec.Raw(b'{"partition":2}'), bytes_max=1_000)
    assert other == value.replace(b'{"partition":1}', b'{"partition":2}')


@pytest.mark.parametrize("value", [b"", b"no result", b"[]", b'{"request_id": "r"}'])
def test_what_is_no_result_keeps_its_reply(value: bytes) -> None:
    assert with_reply(value, msgspec.Raw(b"{}"), bytes_max=1_000) == value


def test_a_reply_that_would_make_a_result_too_large_is_left_as_it_is() -> None:
    value = encode_result(Result(request_id="r", status=Status.COMPLETED, reason="completed", finished_at=1))
    assert with_reply(value, msgspec.Raw(b'{"partition":2}'), bytes_max=len(value)) == value
