"""What a retry's readers get: its text goes on from what was sent, or an error says that it does not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay_worker.answers.endpoints import Shape
from forebay_worker.answers.judge import End
from forebay_worker.answers.verdict import Completed
from forebay_worker.streaming.continuity import TEXT_CHARS_MAX, Sent, SentMemory
from simulated.answers import DONE, body_of, event
from simulated.streams import MemoryOutlet, Reader, make_run, shown, stream_into


def delta(fields: dict[str, Any], *, finish: str | None = None, index: int = 0, run: str = "a") -> bytes:
    return event({"id": run, "choices": [{"index": index, "delta": fields, "finish_reason": finish}]})


def texts(*parts: str, run: str = "a") -> bytes:
    return b"".join(delta({"content": part}, run=run) for part in parts)


END = delta({}, finish="stop", run="b") + DONE


def broken(outlet: MemoryOutlet, body: bytes, *, name: str = "a", attempt: int = 1, sent: Sent | None = None) -> Sent:
    run = make_run(outlet, name=name, attempt=attempt, sent=sent)
    stream_into(run, body, end=End.BROKEN)
    left = run.break_off()
    assert left is not None
    return left


def retried(first: bytes, second: bytes) -> tuple[Reader, Any]:
    """What a reader of both runs shows, and the body of the result."""
    outlet = MemoryOutlet()
    run = make_run(outlet, name="b", attempt=2, sent=broken(outlet, first))
    verdict = stream_into(run, second)
    run.end()
    assert isinstance(verdict, Completed)
    return shown(outlet.pieces), body_of(verdict)["choices"][0]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("ab",), ("ab", "cd")),
        (("a", "b"), ("abcd",)),
        (("ab", "c"), ("a", "bcd")),
        (("a", "b", "c"), ("ab", "cd")),
        (("ab",), ("ab",)),
        (("h\N{GRINNING FACE}",), ("h", "\N{GRINNING FACE}!")),
    ],
)
def test_a_retry_goes_on_where_its_text_begins_with_what_was_sent(
    first: tuple[str, ...], second: tuple[str, ...]
) -> None:
    reader, choice = retried(texts(*first), texts(*second, run="b") + END)
    assert (reader.error, reader.is_whole) == (None, True)
    assert reader.text() == "".join(second) == choice["message"]["content"]


@pytest.mark.parametrize("second", [("ax", "y"), ("x",), ("a",), ("a", "bX")])
def test_a_retry_whose_text_differs_or_is_shorter_ends_in_an_error_piece(second: tuple[str, ...]) -> None:
    reader, _ = retried(texts("a", "bc"), texts(*second, run="b") + END)
    assert reader.text() == "abc"
    assert not reader.is_whole


def test_an_error_piece_of_a_retry_says_that_its_text_differs() -> None:
    outlet = MemoryOutlet()
    sent = broken(outlet, texts("abc"))
    run = make_run(outlet, name="b", attempt=2, sent=sent)
    stream_into(run, texts("abX") + END)
    run.end()
    last = outlet.pieces[-1]
    assert (last.run, last.number, last.error, last.events, last.continues) == ("b", 0, "text_differs", [], None)


@settings(deadline=None)
@given(
    st.text("ab", max_size=8), st.text("ab", max_size=8), st.lists(st.integers(1, 4), max_size=8), st.integers(1, 99)
)
def test_a_reader_never_shows_what_disagrees_with_the_result(
    first: str, second: str, sizes: list[int], cut: int
) -> None:
    outlet = MemoryOutlet()
    run = make_run(outlet)
    stream_into(run, texts(*first), end=End.BROKEN, cut=cut)
    sent = run.break_off()
    run = make_run(outlet, name="b", attempt=2, sent=sent)
    parts, rest = [], second
    for size in sizes:
        parts.append(rest[:size])
        rest = rest[size:]
    verdict = stream_into(run, texts(*parts, rest, run="b") + END, cut=cut)
    run.end()
    reader = shown(outlet.pieces)
    if second.startswith(first):
        assert (reader.is_whole, reader.text()) == (True, second)
    else:
        assert (reader.is_whole, reader.text()) == (False, first)
    assert (body_of(verdict)["choices"][0]["message"].get("content") or "") == second


def test_reasoning_and_content_are_compared_each_and_two_choices_too() -> None:
    first = delta({"reasoning_content": "hm"}) + delta({"content": "x"}, index=1)
    second = (
        delta({"content": "xy"}, index=1, run="b")
        + delta({"reasoning_content": "h"}, run="b")
        + delta({"reasoning_content": "mm"}, run="b")
        + delta({}, finish="stop", index=1)
        + END
    )
    outlet = MemoryOutlet()
    run = make_run(outlet, name="b", attempt=2, sent=broken(outlet, first))
    stream_into(run, second)
    run.end()
    reader = shown(outlet.pieces)
    assert reader.is_whole
    together: dict[tuple[int, str], str] = {}
    for value in reader.values():
        for choice in value["choices"]:
            for name, text in choice["delta"].items():
                place = (choice["index"], name)
                together[place] = together.get(place, "") + text
    assert together == {(0, "reasoning_content"): "hmm", (1, "content"): "xy"}


@pytest.mark.parametrize(("second_id", "goes_on"), [("call-1", True), ("call-2", False)])
def test_a_tool_call_under_another_id_is_another_answer(second_id: str, goes_on: bool) -> None:
    def call(call_id: str, arguments: str) -> bytes:
        function = {"name": "look", "arguments": arguments}
        return delta({"tool_calls": [{"index": 0, "id": call_id, "type": "function", "function": function}]})

    reader, choice = retried(call("call-1", '{"a'), call(second_id, '{"a": 1}') + END)
    assert reader.is_whole is goes_on
    if goes_on:
        arguments = [v["choices"][0]["delta"]["tool_calls"][0]["function"]["arguments"] for v in reader.values()[:2]]
        assert "".join(arguments) == choice["message"]["tool_calls"][0]["function"]["arguments"]


def test_a_third_run_goes_on_from_what_two_have_sent() -> None:
    outlet = MemoryOutlet()
    sent = broken(outlet, texts("ab"))
    sent = broken(outlet, texts("abc", "d"), name="b", attempt=2, sent=sent)
    run = make_run(outlet, name="c", attempt=3, sent=sent)
    stream_into(run, texts("abcdef") + END)
    run.end()
    reader = shown(outlet.pieces)
    assert (reader.text(), reader.is_whole) == ("abcdef", True)


def test_a_run_that_broke_before_it_passed_what_was_sent_leaves_the_next_one_where_it_was() -> None:
    outlet = MemoryOutlet()
    sent = broken(outlet, texts("ab"))
    sent = broken(outlet, texts("a"), name="b", attempt=2, sent=sent)
    assert (sent.run, len(outlet.pieces)) == ("a", 2)
    run = make_run(outlet, name="c", attempt=3, sent=sent)
    stream_into(run, texts("abc") + END)
    run.end()
    assert shown(outlet.pieces).text() == "abc"


def test_events_of_an_unknown_api_go_on_only_where_they_are_the_same() -> None:
    def lines(*words: str) -> bytes:
        return b"".join(event({"word": word}) for word in words)

    for second, whole in ((("a", "b", "c"), True), (("a", "x", "c"), False)):
        outlet = MemoryOutlet()
        run = make_run(outlet)
        stream_into(run, lines("a", "b"), shape=Shape.OTHER, end=End.BROKEN)
        sent = run.break_off()
        run = make_run(outlet, name="b", attempt=2, sent=sent)
        stream_into(run, lines(*second), shape=Shape.OTHER)
        run.end()
        reader = shown(outlet.pieces)
        assert reader.is_whole is whole
        assert [value["word"] for value in reader.values()] == (["a", "b", "c"] if whole else ["a", "b"])


def test_after_a_lost_piece_or_a_long_text_no_retry_goes_on() -> None:
    for lost, text in ((True, "a"), (False, "x" * (TEXT_CHARS_MAX + 1))):
        outlet = MemoryOutlet()
        run = make_run(outlet)
        stream_into(run, texts(text), end=End.BROKEN)
        if lost:
            run.lose()
        sent = run.break_off()
        assert sent is not None
        run = make_run(outlet, name="b", attempt=2, sent=sent)
        stream_into(run, texts(text, "b") + END)
        run.end()
        assert outlet.pieces[-1].error == "stream_broken"
        assert not shown(outlet.pieces).is_whole


def test_a_run_that_sent_nothing_leaves_nothing_and_its_retry_begins_plainly() -> None:
    outlet = MemoryOutlet()
    run = make_run(outlet)
    assert run.break_off() is None
    assert outlet.pieces == []


def test_the_memory_of_what_was_sent_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forebay_worker.streaming.continuity.MEMORY_CHARS_MAX", 25)
    memory = SentMemory()
    for number in range(5):
        memory.put((f"r-{number}", 0), broken(MemoryOutlet(), texts("x" * 10)))
    kept = [number for number in range(5) if memory.take((f"r-{number}", 0)) is not None]
    assert kept == [3, 4]
    assert memory.take(("r-3", 0)) is None
