"""The envelope's reply: read where it is ours, passed by where it is not, echoed within bounds. Pure."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from forebay_schemas.contract.reply import ECHO_BYTES_MAX, JOB_CHARS_MAX, PARTITION_MAX, read_reply


@pytest.mark.parametrize(
    ("raw", "means"),
    [
        (b"{}", (None, False, None)),
        (b'{"partition":0}', (0, False, None)),
        (b' {"partition": 7, "stream": true, "job": "j-1"}', (7, True, "j-1")),
        (b'{"partition":null,"stream":false,"job":null}', (None, False, None)),
        (b'{"stream":1,"job":7}', (None, False, None)),
        (b'{"stream":"true","job":["x"]}', (None, False, None)),
        (b'{"partition":2147483647,"other":[1e999]}', (PARTITION_MAX, False, None)),
        (b'{"partition":1,"partition":2}', (2, False, None)),
        ('{"job":"世界"}'.encode(), (None, False, "世界")),
        (b'{"job":"' + b"x" * (JOB_CHARS_MAX + 1) + b'"}', (None, False, None)),
    ],
)
def test_an_object_is_read(raw: bytes, means: tuple[object, ...]) -> None:
    reply = read_reply(msgspec.Raw(raw))
    assert reply is not None
    assert (reply.partition, reply.stream, reply.job) == means


@pytest.mark.parametrize(
    "raw",
    [
        b"null",
        b"",
        b"3",
        b'"a"',
        b"[1]",
        b"true",
        b'{"partition":true}',
        b'{"partition":-1}',
        b'{"partition":-0}',
        b'{"partition":1.0}',
        b'{"partition":1e3}',
        b'{"partition":"1"}',
        b'{"partition":[1]}',
        b'{"partition":2147483648}',
        b'{"partition":' + b"9" * 100_000 + b"}",
        b'{"partition":1',
        b"{" * 100_000,
        b'{"a":' * 100_000,
    ],
)
def test_what_is_no_object_or_names_no_partition_passes_unread(raw: bytes) -> None:
    assert read_reply(msgspec.Raw(raw)) is None


def test_a_reply_is_echoed_as_it_came_up_to_the_bound_and_then_by_partition_and_job() -> None:
    def reply(size: int) -> bytes:
        head, tail = b'{"partition":3,"job":"j","stream":true,"more":"', b'"}'
        return head + b"x" * (size - len(head) - len(tail)) + tail

    kept, cut = read_reply(reply(ECHO_BYTES_MAX)), read_reply(reply(ECHO_BYTES_MAX + 1))
    assert kept is not None
    assert cut is not None
    assert bytes(kept.echo) == reply(ECHO_BYTES_MAX)
    assert json.loads(bytes(cut.echo)) == {"partition": 3, "job": "j"}
    assert (cut.partition, cut.stream, cut.job) == (3, True, "j")


def test_a_reply_that_a_result_could_not_hold_is_echoed_by_partition_and_job() -> None:
    for inner in (b'"\\ud800"', b'"\xff"', b"1e999", b"01", b"[1,]"):
        reply = read_reply(b'{"partition":3,"x":' + inner + b"}")
        if reply is not None:
            assert json.loads(bytes(reply.echo)) == {"partition": 3}


@settings(deadline=None)
@given(st.binary(max_size=100) | st.binary(max_size=40).map(lambda some: b'{"partition":1,"job":' + some + b"}"))
@example(b'{"job":"\\ud800"}')
@example(b'{"job":"' + b"\\ud83d\\ude42" * 200 + b'"}')
@example(b'{"partition":1,"a":"\xff"}')
def test_any_bytes_are_a_reply_with_an_echo_that_is_json_or_none(raw: bytes) -> None:
    reply = read_reply(raw)
    if reply is not None:
        assert reply.partition is None or 0 <= reply.partition <= PARTITION_MAX
        assert isinstance(msgspec.json.decode(bytes(reply.echo)), dict)
        assert len(bytes(reply.echo)) <= ECHO_BYTES_MAX
        assert reply.job is None or len(reply.job) <= JOB_CHARS_MAX
