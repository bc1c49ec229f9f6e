"""Pieces of one run: what goes at once, what is joined, what ends it, and what is left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay_schemas.contract.pieces import PIECE_BYTES_MAX
from forebay_worker.answers.endpoints import Shape
from forebay_worker.answers.judge import End
from forebay_worker.answers.verdict import Completed, Failed, Verdict
from forebay_worker.streaming.run import JOINED_BYTES_MAX, without_usage
from simulated.answers import DONE, event, read
from simulated.streams import MemoryOutlet, make_run, shown, stream_into

ENGINES = Path(__file__).parents[3] / "fixtures" / "engines"
STREAMS = sorted([*ENGINES.glob("*/*.sse"), *ENGINES.glob("*/*.ndjson")])
CONTENT_TYPES = {".sse": "text/event-stream", ".ndjson": "application/x-ndjson"}


def shape_of(path: Path) -> Shape:
    for word, shape in (("completion", Shape.COMPLETION), ("response", Shape.RESPONSE), ("image", Shape.IMAGE)):
        if word in path.name:
            return shape
    return Shape.OTHER if "api_" in path.name or "generate" in path.name else Shape.CHAT


def chunk(text: str | None = None, *, finish: str | None = None, index: int = 0, **more: Any) -> bytes:
    delta = {} if text is None else {"content": text}
    return event({"id": "c", "choices": [{"index": index, "delta": delta, "finish_reason": finish}], **more})


def normal(verdict: Verdict) -> Any:
    return json.loads(verdict.body) if isinstance(verdict, Completed) else verdict


@pytest.mark.parametrize("cut", [1, 2, 3, 7, 64, 1 << 20])
@pytest.mark.parametrize("path", STREAMS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_the_pieces_of_a_stream_merged_are_its_result_wherever_its_bytes_are_cut(path: Path, cut: int) -> None:
    outlet, shape, content_type = MemoryOutlet(), shape_of(path), CONTENT_TYPES[path.suffix]
    run = make_run(outlet)
    verdict = stream_into(run, path.read_bytes(), shape=shape, content_type=content_type, cut=cut)
    if isinstance(verdict, Failed):
        run.break_off()
        assert not any(piece.last for piece in outlet.pieces)
        assert all(piece.error is None for piece in outlet.pieces[:-1])
        assert not outlet.pieces or outlet.pieces[-1].error == "stream_broken"
        return
    run.end()
    reader = shown(outlet.pieces)
    assert reader.is_whole
    assert normal(read(reader.sse() + DONE, shape=shape)) == normal(verdict)


@settings(deadline=None)
@given(st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=30), st.integers(1, 9), st.data())
def test_any_text_comes_through_whole_and_in_order(texts: list[str], cut: int, data: st.DataObject) -> None:
    body = b"".join(
        b"data: "
        + json.dumps({"choices": [{"delta": {"content": text}}]}, ensure_ascii=False).encode(errors="replace")
        + b"\n\n"
        for text in texts
    )
    outlet = MemoryOutlet()
    run = make_run(outlet)
    wholly = body + chunk(finish="stop") + DONE
    stream_into(run, wholly, cut=cut)
    if data.draw(st.booleans()):
        outlet.tick()
    run.end()
    assert [piece.number for piece in outlet.pieces] == list(range(len(outlet.pieces)))
    reader = shown(outlet.pieces)
    assert reader.is_whole
    expected = "".join(json.loads(json.dumps(text).encode(errors="replace")) for text in texts)
    assert reader.text() == expected.encode(errors="replace").decode()


def test_notes_and_the_first_text_go_at_once_and_what_follows_is_joined() -> None:
    outlet = MemoryOutlet()
    run = make_run(outlet)
    role = event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
    stream_into(run, role + chunk("a") + chunk("b") + chunk("c"), end=End.BROKEN)
    assert [len(piece.events) for piece in outlet.pieces] == [1, 1]
    outlet.tick()
    assert [len(piece.events) for piece in outlet.pieces] == [1, 1, 2]
    outlet.tick()
    assert len(outlet.pieces) == 3
    run.end()
    assert outlet.pieces[-1].last
    assert outlet.pieces[-1].events == []


def test_many_bytes_do_not_wait_for_the_timer() -> None:
    outlet = MemoryOutlet()
    run = make_run(outlet)
    stream_into(run, chunk("a") + chunk("x" * JOINED_BYTES_MAX) + chunk("y" * 100), end=End.BROKEN)
    assert len(outlet.pieces) == 2
    assert len(bytes(outlet.pieces[1].events[0].data)) > JOINED_BYTES_MAX


def test_an_event_larger_than_a_piece_ends_the_pieces_and_not_the_answer() -> None:
    outlet = MemoryOutlet()
    run = make_run(outlet)
    spaces = b" " * PIECE_BYTES_MAX
    huge = b'data: {"choices": [{"delta": {"content": "b"},%b"finish_reason": "stop"}]}\n\n' % spaces
    verdict = stream_into(run, chunk("a") + huge + DONE)
    run.end()
    assert [piece.error for piece in outlet.pieces] == [None, "event_too_large"]
    assert normal(verdict)["choices"][0]["message"]["content"] == "ab"


def test_an_answer_that_is_no_stream_has_no_pieces() -> None:
    outlet = MemoryOutlet()
    run = make_run(outlet)
    body = b'{"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}]}'
    assert isinstance(stream_into(run, body, content_type="application/json"), Completed)
    run.end()
    assert outlet.pieces == []


def test_lines_of_json_come_as_they_are_read() -> None:
    outlet = MemoryOutlet()
    run = make_run(outlet)
    lines = b'{"response":"a","done":false}\n{"response":"b","done":true}\n'
    stream_into(run, lines[:31], shape=Shape.OTHER, content_type="application/x-ndjson", end=End.BROKEN)
    assert [bytes(piece.events[0].data) for piece in outlet.pieces] == [lines[:29]]


def test_a_single_line_is_the_answer_itself() -> None:
    line = b'{"response":"a","done":true}\n'
    verdict = stream_into(make_run(MemoryOutlet()), line, shape=Shape.OTHER, content_type="application/x-ndjson")
    assert normal(verdict) == {"response": "a", "done": True}


def test_added_usage_is_left_out_and_all_else_is_kept_as_it_came() -> None:
    outlet = MemoryOutlet()
    run = make_run(outlet)
    run.usage_added = True
    odd = (
        b'data: {"n": 1.0e0, "choices": [{"delta": {"content": "a"}, "finish_reason": "stop"}], "usage": {"x": 1}}\n\n'
    )
    body = odd + event({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2}}) + DONE
    verdict = stream_into(run, body)
    run.end()
    assert isinstance(verdict, Completed)
    assert verdict.output_tokens == 2
    events = [bytes(one.data) for piece in outlet.pieces for one in piece.events]
    assert events == [b'{"n":1.0e0,"choices":[{"delta": {"content": "a"}, "finish_reason": "stop"}]}']


def test_usage_that_the_client_asked_for_is_a_part_of_its_pieces() -> None:
    outlet = MemoryOutlet()
    run = make_run(outlet)
    stream_into(run, chunk("a", finish="stop") + event({"choices": [], "usage": {"completion_tokens": 2}}) + DONE)
    run.end()
    assert shown(outlet.pieces).values()[-1]["usage"] == {"completion_tokens": 2}


def test_a_dropped_piece_ends_the_run_with_an_error_and_no_reader_shows_what_follows() -> None:
    outlet = MemoryOutlet()
    run = make_run(outlet)
    stream_into(run, chunk("a") + chunk("b"), end=End.BROKEN)
    outlet.is_full = True
    outlet.tick()
    outlet.is_full = False
    run.add(b"", b'{"choices":[]}', [], {}, True)
    run.end()
    assert [piece.number for piece in outlet.pieces] == [0]
    assert shown(outlet.pieces).text() == "a"


def test_a_piece_that_was_not_delivered_ends_the_run_with_an_error() -> None:
    outlet = MemoryOutlet()
    run = make_run(outlet)
    stream_into(run, chunk("a") + chunk("b"), end=End.BROKEN)
    run.lose()
    run.lose()
    assert [piece.error for piece in outlet.pieces] == [None, "stream_broken"]


def test_a_field_is_left_out_byte_by_byte() -> None:
    data = b'{"a": 1.50e+2 , "usage":{"x":[1]},"b":"\\u00e9"}'
    assert without_usage(data) == b'{"a":1.50e+2,"b":"\\u00e9"}'
    assert msgspec.json.decode(without_usage(data)) == {"a": 150.0, "b": "é"}
