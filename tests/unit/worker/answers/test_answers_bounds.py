"""Bounds on what is read and kept of an answer: bytes, choices, depth."""

from __future__ import annotations

import json
from typing import Any

import pytest

from forebay_schemas.contract.reasons import Reason
from forebay_worker.answers.endpoints import Shape
from forebay_worker.answers.judge import EVENT_STREAM, AnswerReader, End, judge
from forebay_worker.answers.streams import CHOICES_MAX, Progress
from forebay_worker.answers.verdict import Completed, Failed, Limits
from simulated.answers import DONE, LIMITS, event, read, reader_of

MORE, COMPLETE = Progress.MORE, Progress.COMPLETE


def chunk(delta: Any, finish_reason: Any = None, *, index: int = 0) -> dict[str, Any]:
    return {"choices": [{"index": index, "delta": delta, "finish_reason": finish_reason}]}


STOP = event(chunk({}, "stop"))


def test_bytes_are_bounded() -> None:
    small = Limits(answer_bytes_max=300, stream_bytes_max=3_000)
    reader = reader_of(limits=small)
    pieces = iter(range(1_000))
    while reader.feed(event(chunk({"content": "x"}))) is MORE:
        next(pieces)
    verdict = reader.finish(End.TIDY)
    assert isinstance(verdict, Failed)
    assert verdict.reason is Reason.RESULT_TOO_LARGE
    # What is put together counts too.
    long = event(chunk({"content": "x" * 400}, "stop"))
    verdict = judge(shape=Shape.CHAT, status=200, content_type=EVENT_STREAM, body=long, limits=small)
    assert isinstance(verdict, Failed)
    assert verdict.reason is Reason.RESULT_TOO_LARGE
    # Guided JSON is known to end in empty lines without end.
    for content_type in ("application/json", EVENT_STREAM, "application/x-ndjson"):
        reader = reader_of(content_type=content_type, limits=small)
        assert any(reader.feed(b"\n" * 100) is COMPLETE for _ in range(40))
    reader = AnswerReader(shape=Shape.CHAT, status=500, content_type="", limits=small)
    assert any(reader.feed(b"x" * 1_000) is COMPLETE for _ in range(20))


def test_what_is_kept_of_a_stream_is_bounded_before_its_end() -> None:
    small = Limits(answer_bytes_max=10_000, stream_bytes_max=10_000_000)
    heavy = event({"choices": [{"index": 0, "delta": {}, "logprobs": {"content": [{"token": "x" * 50}]}}]})
    reader = reader_of(limits=small)
    count = 0
    while reader.feed(heavy) is MORE:
        count += 1
    assert count * len(heavy) < 40_000
    # Many small chunks of a small answer are well.
    reader = reader_of(limits=small)
    assert all(reader.feed(event(chunk({"content": "x"}))) is MORE for _ in range(5_000))
    reader.feed(STOP)
    verdict = reader.finish(End.TIDY)
    assert isinstance(verdict, Completed)
    assert json.loads(verdict.body)["choices"][0]["message"]["content"] == "x" * 5_000
    # One event without an end.
    for shape in Shape:
        reader = reader_of(shape=shape, limits=small)
        assert any(reader.feed(b"data: " + b"x" * 1_000) is COMPLETE for _ in range(50))
        assert isinstance(reader.finish(End.TIDY), Failed)


@pytest.mark.parametrize("shape", list(Shape), ids=lambda shape: shape.value)
def test_each_shape_bounds_what_it_keeps(shape: Shape) -> None:
    small = Limits(answer_bytes_max=10_000, stream_bytes_max=10_000_000)
    pieces = {
        Shape.RESPONSE: {"type": "response.output_item.done", "output_index": 0, "item": "x" * 20_000},
        Shape.OTHER: {"x": "x" * 900},
        Shape.EMBEDDING: {"data": [{"embedding": "x" * 900}]},
        Shape.IMAGE: {"type": "image_generation.completed", "b64_json": "x" * 900},
    }
    piece = event(pieces.get(shape, chunk({"content": "x" * 900})))
    reader = reader_of(shape=shape, limits=small)
    assert any(reader.feed(piece) is COMPLETE for _ in range(40))
    verdict = reader.finish(End.TIDY)
    assert isinstance(verdict, Failed)
    assert verdict.reason is Reason.RESULT_TOO_LARGE


def test_choices_are_bounded_and_a_large_index_costs_nothing() -> None:
    verdict = read(event(chunk({"content": "a"}, "stop", index=10**9)), DONE)
    assert isinstance(verdict, Completed)
    assert [choice["index"] for choice in json.loads(verdict.body)["choices"]] == [10**9]
    many = {"choices": [{"index": index, "text": "a", "finish_reason": "stop"} for index in range(CHOICES_MAX + 1)]}
    verdict = read(event(many), DONE)
    assert isinstance(verdict, Failed)
    assert "choices" in verdict.message


def test_deep_nesting_is_merged_or_refused() -> None:
    for depth in (100, 500, 900, 5_000, 100_000):
        deep = b'{"choices":[{"finish_reason":"stop","delta":{"x":' + b'{"a":' * depth + b"1" + b"}" * depth + b"}}]}"
        for limits in (LIMITS, Limits(answer_bytes_max=50, stream_bytes_max=10_000_000)):
            verdict = read(event(deep), event(deep), DONE, limits=limits)
            assert isinstance(verdict, Failed) or depth <= 900
