"""The records of the coordination topic: each reader takes its own kind and no other, whatever the bytes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_schemas.coordination import (
    Capacity,
    Notice,
    NoticeKind,
    decode_capacity,
    decode_notice,
    encode_capacity,
    encode_clock_probe,
    encode_notice,
)
from forebay_schemas.tiers import Tier

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
