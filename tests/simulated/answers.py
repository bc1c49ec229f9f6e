"""Streamed answers, made and read in one line. Pure."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from hypothesis import strategies as st

from forebay_worker.answers.endpoints import Shape
from forebay_worker.answers.judge import EVENT_STREAM, AnswerReader, End
from forebay_worker.answers.verdict import Completed, Limits, Verdict

LIMITS = Limits(answer_bytes_max=1_000_000, stream_bytes_max=10_000_000)


def event(value: Any) -> bytes:
    """A server-sent event with this JSON, or with these bytes."""
    return b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"


DONE = event(b"[DONE]")


def reader_of(*, shape: Shape = Shape.CHAT, content_type: str = EVENT_STREAM, limits: Limits = LIMITS) -> AnswerReader:
    return AnswerReader(shape=shape, status=200, content_type=content_type, limits=limits)


def read(
    *pieces: bytes,
    end: End = End.TIDY,
    shape: Shape = Shape.CHAT,
    content_type: str = EVENT_STREAM,
    limits: Limits = LIMITS,
) -> Verdict:
    reader = reader_of(shape=shape, content_type=content_type, limits=limits)
    for piece in pieces:
        reader.feed(piece)
    return reader.finish(end)


def body_of(verdict: Verdict) -> Any:
    assert isinstance(verdict, Completed), verdict
    return msgspec.json.decode(verdict.body)


def nested(leaves: st.SearchStrategy[Any], *keys: str) -> st.SearchStrategy[Any]:
    """Lists and objects with some of these keys, in each other."""
    return st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(keys), inner, max_size=4),
        max_leaves=12,
    )
