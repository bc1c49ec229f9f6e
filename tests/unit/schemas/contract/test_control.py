"""Control records: what is none is ignored, whoever wrote it. Pure."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from forebay_schemas.contract.control import decode_control, decode_controlled

WISH: dict[str, Any] = {"action": "cancel", "request_id": "r", "at": 1, "by": "me@here"}


@pytest.mark.parametrize(
    ("value", "is_control"),
    [
        (None, False),
        (b"", False),
        (b"\xff\xfe", False),
        (b"[" * 100_000, False),
        (msgspec.json.encode(WISH), True),
        (msgspec.json.encode(WISH).replace(b":1,", b":1e400,"), False),
        (msgspec.json.encode(WISH).replace(b'"r"', rb'"\ud800"'), False),
        (msgspec.json.encode({**WISH, "request_id": "a\nb"}), False),
        (msgspec.json.encode({**WISH, "action": ["cancel"]}), False),
        (msgspec.json.encode({**WISH, "topic": "../x", "partition": 0, "offset": 2**63 - 1}), True),
        # A look for what cannot be would fail those beside it.
        (msgspec.json.encode({**WISH, "topic": "t", "partition": 0, "offset": 2**63}), False),
        (msgspec.json.encode({**WISH, "topic": "t", "partition": 0, "offset": -1}), False),
        (msgspec.json.encode({**WISH, "topic": "t", "partition": -1, "offset": 0}), False),
        (msgspec.json.encode({**WISH, "topic": "t", "partition": 2**31, "offset": 0}), False),
    ],
    ids=lambda value: repr(value)[-60:],
)
def test_only_a_wish_that_can_be_is_heard(value: bytes | None, is_control: bool) -> None:
    assert (decode_control(value) is not None) is is_control
    assert decode_controlled(value) is None
