"""Any bytes and headers of a stranger give a value or our own error, never another exception. Pure."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st

from forebay_schemas.contract.envelope import JsonCodec, Request, payload_hints
from forebay_schemas.contract.headers import Header, headers_size_bytes, read_history, replace_headers
from forebay_schemas.contract.results import Result, ResultError, decode_result
from forebay_schemas.errors import EnvelopeError

CODEC = JsonCodec()
VALID = (
    '{"request_id": "r-1", "biz_type": "b", "priority": 10, "ttl_ms": 5000, "expire_at": 1760000000000, '
    '"sent_at": 1760000000000, "tenant": "t", "max_attempts": 3, "reply": {"a": [1.5]}, '
    '"payload": {"model": "Grüße \\ud83d\\ude42", "stream": true, "max_tokens": 7, "n": null}}'
).encode()

texts = st.text('ab é世🙂"\\\0\n\ud800', max_size=4)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | texts
values = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(texts, inner), max_leaves=6)
NAMES = (*Request.__struct_fields__, "later")
envelopes = st.dictionaries(st.sampled_from(NAMES), values).map(lambda fields: json.dumps(fields).encode())
spliced = st.builds(
    lambda at, length, middle: VALID[:at] + middle + VALID[at + length :],
    st.integers(0, len(VALID)),
    st.integers(0, 12),
    st.binary(max_size=6) | st.sampled_from([b"\\ud800", b"\x00", b"\xff", b"[[", b"}", b'"', b"9" * 5000, b"1e999"]),
)
anything = st.binary(max_size=200) | envelopes | spliced
header_lists = st.lists(
    st.tuples(
        st.sampled_from(["forebay-attempt", "forebay-tenant", "forebay-not-before", "content-type", "x", "Ü"]),
        st.none() | st.binary(max_size=20) | st.integers().map(lambda number: str(number).encode()),
    )
)


def read(value: bytes | None) -> Request | EnvelopeError:
    try:
        return CODEC.decode(value)
    except EnvelopeError as error:
        return error


@settings(deadline=None)
@given(anything)
@example(b"[" * 100_000)
@example(b'{"a":' * 100_000)
@example(b'{"request_id":' * 50_000)
@example(VALID[:-1] + b',"reply":' + b"[" * 2_000 + b"]" * 2_000 + b"}")
def test_any_bytes_are_a_request_or_an_envelope_error(value: bytes) -> None:
    found = read(value)
    if isinstance(found, EnvelopeError):
        assert found.field
        assert found.fix
        assert found.request_id is None or 0 < len(found.request_id) <= 200
        str(found).encode()  # it goes into headers and results
        return
    # What was accepted can be sent on as JSON, and nothing behind the codec has to look at it again.
    assert json.loads(value)["request_id"] == found.request_id
    assert isinstance(json.loads(bytes(found.payload)), dict)
    found.request_id.encode()
    payload_hints(found)


@settings(deadline=None)
@given(st.integers(0, len(VALID)), st.binary(max_size=3))
def test_a_record_cut_or_broken_behind_its_id_keeps_it(at: int, junk: bytes) -> None:
    found = read(VALID[:at] + b"\x01" + junk)
    assert isinstance(found, EnvelopeError)
    behind_the_id = VALID.index(b'"biz_type"')
    assert found.request_id == ("r-1" if at >= behind_the_id else found.request_id)
    assert found.request_id in (None, "r-1")


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(NAMES) | texts, values))
def test_what_can_be_encoded_can_be_decoded(fields: dict[str, Any]) -> None:
    fields = {"request_id": "r", "biz_type": "b", "payload": {}} | fields
    try:
        value = CODEC.encode(fields)
    except EnvelopeError:
        return
    assert msgspec.json.decode(value) == json.loads(json.dumps(fields, allow_nan=False))
    assert CODEC.decode(value).request_id == fields["request_id"]


def read_result(value: bytes | None) -> Result | ResultError:
    try:
        return decode_result(value)
    except ResultError as error:
        return error


@settings(deadline=None)
@given(anything | st.none())
@example(b"[" * 100_000)
@example(b'{"request_id":"r","status":"completed","reason":"x","finished_at":1,"body":1e999}')
@example(b'{"request_id":"\\ud800","status":"completed","reason":"x","finished_at":1}')
def test_any_bytes_are_a_result_or_a_result_error(value: bytes | None) -> None:
    found = read_result(value)
    assert isinstance(found, Result) or str(found).startswith("not a result: ")


@settings(deadline=None)
@given(header_lists, st.integers(1, 9))
def test_any_headers_are_a_history_and_hops_change_nothing_but_our_own(headers: list[Header], attempt: int) -> None:
    history = read_history(headers)
    assert history.attempt >= 1
    assert history.replay_count >= 0
    once = replace_headers(headers, {"forebay-attempt": str(attempt)})
    assert read_history(once).attempt == attempt
    assert [pair for pair in once if pair[0] != "forebay-attempt"] == [
        pair for pair in headers if pair[0] != "forebay-attempt"
    ]
    again = replace_headers(once, {"forebay-attempt": str(attempt)})
    assert again == once
    assert headers_size_bytes(again) == headers_size_bytes(once)
