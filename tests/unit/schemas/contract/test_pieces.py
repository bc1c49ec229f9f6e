"""Pieces of streamed answers: written and read back the same; any bytes are a piece or one error. Pure."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from forebay_schemas.contract.pieces import (
    PIECE_BYTES_MAX,
    Piece,
    PieceError,
    StreamEvent,
    StreamFault,
    decode_piece,
    encode_piece,
)


def test_a_piece_carries_the_engines_events_unchanged_and_in_order() -> None:
    datas = [b'{"choices": [ {"delta":{"content":"a"}}], "x":1.0}', b"[1]", b'"\\ud83d\\ude42"']
    events = [StreamEvent(msgspec.Raw(data)) for data in datas]
    events.append(StreamEvent(msgspec.Raw(b"{}"), "response.created"))
    found = decode_piece(encode_piece(Piece(request_id="r", attempt=2, number=7, events=events)))
    assert [bytes(event.data) for event in found.events] == [*datas, b"{}"]
    assert [event.event for event in found.events] == [None, None, None, "response.created"]
    assert (found.request_id, found.attempt, found.number, found.replay_count) == ("r", 2, 7, 0)
    assert (found.run, found.last, found.error, found.continues) == ("", False, None, None)


def test_only_what_is_said_is_written() -> None:
    piece = Piece(request_id="r", attempt=1, number=0, events=[StreamEvent(msgspec.Raw(b"1"))])
    assert json.loads(encode_piece(piece)) == {"request_id": "r", "attempt": 1, "number": 0, "events": [{"data": 1}]}
    last = Piece(request_id="r", attempt=2, run="b", number=0, last=True, continues=("a", 4), replay_count=1)
    assert decode_piece(encode_piece(last)) == last
    broken = Piece(request_id="r", attempt=1, number=3, error=StreamFault.BROKEN)
    assert decode_piece(encode_piece(broken)).error == "stream_broken"


def test_fields_and_faults_of_a_later_version_are_no_error() -> None:
    found = decode_piece(b'{"request_id":"r","attempt":1,"number":0,"error":"later","more":[1e999]}')
    assert (found.error, found.events) == ("later", [])


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"null",
        b"[]",
        b'{"request_id":"r","attempt":1}',
        b'{"request_id":"r","attempt":0,"number":0}',
        b'{"request_id":"r","attempt":1,"number":-1}',
        b'{"request_id":"r","attempt":true,"number":0}',
        b'{"request_id":"r","attempt":1,"number":0,"events":[1]}',
        b'{"request_id":"r","attempt":1,"number":0,"continues":[1]}',
        b'{"request_id":"r","attempt":99999999999999999999999,"number":0}',
        b'{"request_id":"' + b"r" * PIECE_BYTES_MAX + b'","attempt":1,"number":0}',
    ],
)
def test_what_is_no_piece_is_an_error(value: bytes | None) -> None:
    with pytest.raises(PieceError, match=r"^not a piece: "):
        decode_piece(value)


def test_a_piece_beyond_the_bound_cannot_be_written() -> None:
    large = StreamEvent(msgspec.Raw(b'"' + b"x" * PIECE_BYTES_MAX + b'"'))
    with pytest.raises(PieceError, match="the most is 1,048,576"):
        encode_piece(Piece(request_id="r", attempt=1, number=0, events=[large]))


VALID = b'{"request_id":"r","attempt":1,"number":0,"events":[{"data":{"a":[1]},"event":"e"}],"continues":["a",2]}'


@settings(deadline=None)
@given(
    st.binary(max_size=100)
    | st.builds(
        lambda at, length, middle: VALID[:at] + middle + VALID[at + length :],
        st.integers(0, len(VALID)),
        st.integers(0, 12),
        st.binary(max_size=6) | st.sampled_from([b"\\ud800", b"\xff", b"[[", b"9" * 5000, b"1e999"]),
    )
)
@example(b"[" * 100_000)
@example(b'{"events":' + b"[" * 100_000)
@example(b'{"request_id":"\\ud800","attempt":1,"number":0}')
def test_any_bytes_are_a_piece_or_a_piece_error(value: bytes) -> None:
    try:
        found = decode_piece(value)
    except PieceError:
        return
    assert found.attempt > 0
    assert found.number >= 0
