"""The records of the coordination topic: each reader takes its own kind and no other, whatever the bytes."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_schemas.contract.coordination import (
    BACKEND_CHARS_MAX,
    PER_SECOND_MAX,
    REQUESTS_MAX,
    SECONDS_MAX,
    SERVICE_SECONDS_MIN,
    Capacity,
    Notice,
    NoticeKind,
    decode_capacity,
    decode_notice,
    encode_capacity,
    encode_clock_probe,
    encode_notice,
)
from forebay_schemas.contract.tiers import Tier

CAPACITY = Capacity(
    worker="w1",
    backend="127.0.0.1:8000",
    limit_requests=40,
    share_requests=12,
    in_flight=9,
    wanted={Tier.HIGH: 3, Tier.LOW: 20},
    ended_per_second=4.5,
    service_seconds=None,
    draining=False,
    claim_requests=14,
    dropped_total=2,
    cuts_total=1,
    sequence=7,
)


def changed(**fields: Any) -> bytes:
    return msgspec.json.encode(msgspec.json.decode(encode_capacity(CAPACITY)) | fields)


def test_a_capacity_comes_back_as_it_was_said() -> None:
    assert decode_capacity(encode_capacity(CAPACITY)) == CAPACITY


def test_a_worker_that_does_not_know_capacities_ignores_them() -> None:
    assert decode_notice(encode_capacity(CAPACITY)) is None


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b'"capacity"',
        encode_clock_probe("w1"),
        encode_notice(Notice(kind=NoticeKind.RUNNING, worker="w1", topic="t", partition=0, offsets=[1])),
        encode_capacity(CAPACITY)[:-1],
        changed(in_flight=-1),
        changed(limit_requests="40"),
        changed(wanted={"urgent": 1}),
        changed(worker=None),
        b'{"kind":"capacity"}',
    ],
)
def test_what_is_no_capacity_is_ignored(value: bytes | None) -> None:
    assert decode_capacity(value) is None


def test_fields_of_a_later_version_are_ignored() -> None:
    assert decode_capacity(changed(gpu="H200")) == CAPACITY


@given(st.binary() | st.binary().map(lambda noise: b'{"kind":"capacity"' + noise))
def test_no_bytes_break_the_reader(value: bytes) -> None:
    decode_capacity(value)


HUGE = 10**400 - 1
SIZES = ("share_requests", "in_flight", "claim_requests")
COUNTERS = ("dropped_total", "cuts_total", "incarnation", "sequence")


@pytest.mark.parametrize(
    ("fields", "value"),
    [
        (SIZES, REQUESTS_MAX),
        (("limit_requests",), float(REQUESTS_MAX)),
        (COUNTERS, 2**53 - 1),
        (("ended_per_second",), PER_SECOND_MAX),
        (("service_seconds",), SERVICE_SECONDS_MIN),
        (("service_seconds",), SECONDS_MAX),
        (("fitted_seconds",), (0.0, SECONDS_MAX, 5e-324)),
        (("wanted",), {Tier.LOW: REQUESTS_MAX}),
        (("worker",), "w" * 200),
        (("backend",), "b" * BACKEND_CHARS_MAX),
    ],
)
def test_every_figure_within_its_bounds_is_heard(fields: tuple[str, ...], value: Any) -> None:
    for field in fields:
        capacity = decode_capacity(changed(**{field: value}))
        assert capacity is not None
        assert getattr(capacity, field) == value


@pytest.mark.parametrize(
    ("fields", "values"),
    [
        (SIZES, (REQUESTS_MAX + 1, HUGE, -1, -HUGE, 1.5)),
        (("limit_requests",), (REQUESTS_MAX + 1, HUGE, -1e-9, None)),
        (COUNTERS, (2**53, 2**64, HUGE, -1)),
        (("ended_per_second",), (1e7, HUGE, -1.0)),
        (("service_seconds",), (5e-324, 0.0, 1e-5, SECONDS_MAX + 1, 1e308, HUGE, -1)),
        (("fitted_seconds",), ((0, 0, 1e308), (0, HUGE, 0), (-1, 0, 0), (0, 0), (None, 0, 0))),
        (("wanted",), ({"high": HUGE}, {"high": REQUESTS_MAX + 1}, {"urgent": 1}, {"": 1})),
        (("worker",), ("", "w" * 201, "a b", "a\n")),
        (("backend",), ("", "b" * (BACKEND_CHARS_MAX + 1))),
    ],
)
def test_a_capacity_with_a_figure_out_of_its_bounds_is_none(fields: tuple[str, ...], values: tuple[Any, ...]) -> None:
    for field in fields:
        for value in values:
            assert decode_capacity(_changed_text(field, value)) is None, (field, value)


def _changed_text(field: str, value: Any) -> bytes:
    """JSON with integers of any length, which msgspec does not write."""
    return json.dumps(json.loads(encode_capacity(CAPACITY)) | {field: value}).encode()


@pytest.mark.parametrize("value", [b"1e400", b"NaN", b"Infinity"])
@pytest.mark.parametrize("field", [b"limit_requests", b"ended_per_second", b"service_seconds"])
def test_what_is_not_finite_is_no_figure(field: bytes, value: bytes) -> None:
    assert decode_capacity(_changed_text(field.decode(), "?").replace(b'"?"', value)) is None


NOTICE = Notice(kind=NoticeKind.LAST_COMMIT, worker="w1", topic="t", partition=3, offsets=[0, 2**63 - 1], committed=5)


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("offsets", ([-1], [2**63], [HUGE], [0] * (REQUESTS_MAX + 1))),
        ("partition", (-1, 2**31, HUGE)),
        ("committed", (-1, 2**63, HUGE)),
        ("worker", ("", "w" * 201)),
        ("topic", ("", "t" * 250)),
    ],
)
def test_a_notice_with_a_figure_out_of_its_bounds_is_none(field: str, values: tuple[Any, ...]) -> None:
    assert decode_notice(encode_notice(NOTICE)) == NOTICE
    for value in values:
        text = json.dumps(json.loads(encode_notice(NOTICE)) | {field: value})
        assert decode_notice(text.encode()) is None, value
