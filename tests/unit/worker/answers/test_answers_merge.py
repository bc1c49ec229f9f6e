"""Deltas merged without loss: what is joined, what is kept once, and what cannot be merged."""

from __future__ import annotations

import json
import time
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay_worker.answers.endpoints import Shape
from forebay_worker.answers.judge import EVENT_STREAM, judge
from forebay_worker.answers.merge import UnmergeableError, merge, merge_whole, settled
from forebay_worker.answers.tool_calls import TOOL_CALLS_MAX, ToolCalls
from forebay_worker.answers.verdict import Completed, Limits, Verdict
from simulated.answers import DONE, body_of, event

LIMITS = Limits(answer_bytes_max=100_000_000, stream_bytes_max=1_000_000_000)


def read(*chunks: Any) -> Verdict:
    stream = b"".join(map(event, chunks)) + DONE
    return judge(shape=Shape.CHAT, status=200, content_type=EVENT_STREAM, body=stream, limits=LIMITS)


def message_of(*deltas: Any) -> Any:
    chunks = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    verdict = read(*chunks, {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    return body_of(verdict)["choices"][0]["message"]


@pytest.mark.parametrize(
    ("deltas", "message"),
    [
        # Text is joined, equal pieces too.
        ([{"content": "ha"}, {"content": "ha"}], {"content": "haha"}),
        ([{"reasoning_content": "h"}, {"reasoning_content": "m"}], {"reasoning_content": "hm"}),
        ([{"reasoning": "x", "reasoning_content": "x"}] * 2, {"reasoning": "xx", "reasoning_content": "xx"}),
        ([{"refusal": "I "}, {"refusal": "cannot"}], {"refusal": "I cannot"}),
        # Null and absent fields take nothing away.
        ([{"content": "a"}, {"content": None, "role": None}, {"content": "b"}], {"content": "ab", "role": None}),
        ([{"content": None}, {"content": "b"}], {"content": "b"}),
        ([{"content": None}], {"content": None}),
        ([None], {}),
        # A role in each chunk is one role.
        ([{"role": "assistant", "content": "a"}] * 2, {"role": "assistant", "content": "aa"}),
        ([{"role": "assistant"}, {"role": ""}], {"role": "assistant"}),
        # The function call of the API before tools.
        (
            [
                {"function_call": {"name": "f", "arguments": ""}},
                {"function_call": {"arguments": '{"a"'}},
                {"function_call": {"arguments": ": 1}"}},
            ],
            {"function_call": {"name": "f", "arguments": '{"a": 1}'}},
        ),
        ([{"function_call": {"name": "f", "arguments": "1"}}] * 2, {"function_call": {"name": "f", "arguments": "11"}}),
        # Content as parts, alone and beside text, as Mistral's reasoning models send it.
        (
            [{"content": [{"type": "text", "text": "a"}]}, {"content": [{"type": "text", "text": "b"}]}],
            {"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        ),
        (
            [{"content": ""}, {"content": [{"type": "thinking", "thinking": []}]}, {"content": ""}, {"content": "b"}],
            {"content": [{"type": "thinking", "thinking": []}, {"type": "text", "text": "b"}]},
        ),
        (
            [{"content": "a"}, {"content": [{"type": "text", "text": "b"}]}],
            {"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        ),
        # Elements of one index and type are pieces of one; others follow each other.
        (
            [
                {"reasoning_details": [{"type": "reasoning.text", "index": 0, "text": "a", "signature": None}]},
                {"reasoning_details": [{"type": "reasoning.text", "index": 0, "text": "b"}]},
                {"reasoning_details": [{"type": "reasoning.text", "index": 0, "signature": "s"}]},
                {"reasoning_details": [{"type": "reasoning.encrypted", "index": 0, "data": "z"}]},
            ],
            {
                "reasoning_details": [
                    {"type": "reasoning.text", "index": 0, "text": "ab", "signature": "s"},
                    {"type": "reasoning.encrypted", "index": 0, "data": "z"},
                ]
            },
        ),
        (
            [{"annotations": [{"url": "a"}]}, {"annotations": [{"url": "b"}]}],
            {"annotations": [{"url": "a"}, {"url": "b"}]},
        ),
        ([{"tokens": [5]}, {"tokens": [5]}], {"tokens": [5, 5]}),
        ([{"audio": {"id": "x", "data": "AA"}}, {"audio": {"data": "BB"}}], {"audio": {"id": "x", "data": "AABB"}}),
        # Unknown fields: the same text each time is a label, different texts are one text.
        ([{"odd": "x"}, {"odd": "x"}, {"odd": ""}], {"odd": "x"}),
        ([{"odd": "x"}, {"odd": "x"}, {"odd": "y"}], {"odd": "xxy"}),
        ([{"odd": ""}, {"odd": ""}], {"odd": ""}),
        ([{"odd": ""}, {"odd": "x"}, {"odd": "x"}], {"odd": "x"}),
        ([{"odd": "x"}, {"odd": "y"}, {"odd": "y"}, {"odd": "x"}], {"odd": "xyyx"}),
        ([{"odd": 1}, {"odd": 2.5}], {"odd": 2.5}),
        ([{"odd": False}, {"odd": True}], {"odd": True}),
        ([{"odd": {"a": "x", "b": 1}}, {"odd": {"a": "x", "c": [1]}}], {"odd": {"a": "x", "b": 1, "c": [1]}}),
        (
            [{"content_filter_results": {"hate": "safe"}}, {"content_filter_results": {}}],
            {"content_filter_results": {"hate": "safe"}},
        ),
        # Characters that were cut between chunks.
        ([{"content": "a\ud83d"}, {"content": "\ude00b"}], {"content": "a\U0001f600b"}),
        ([{"content": "a\ud83d"}, {"content": "b"}], {"content": "a\ufffdb"}),
        ([{"content": "\ude00"}], {"content": "\ufffd"}),
    ],
)
def test_a_message_is_put_together(deltas: list[Any], message: dict[str, Any]) -> None:
    assert message_of(*deltas) == message


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ({"content": "a"}, {"content": 1}),
        ({"content": "a"}, {"content": {"b": 1}}),
        ({"odd": 1}, {"odd": "a"}),
        ({"odd": "a"}, {"odd": ["b"]}),
        ({"odd": ["a"]}, {"odd": "b"}),
        ({"odd": {"a": 1}}, {"odd": [1]}),
        ({"odd": [1]}, {"odd": {"a": 1}}),
        ({"odd": {"a": "b"}}, {"odd": {"a": 1}}),
        ({"odd": ["a"]}, {"odd": 1}),
    ],
)
def test_what_cannot_be_merged_fails_and_is_not_cut(first: dict[str, Any], then: dict[str, Any]) -> None:
    into: dict[str, Any] = {}
    merge(into, first)
    with pytest.raises(UnmergeableError, match="first and"):
        merge(into, then)


def test_choices_that_come_mixed_are_kept_apart() -> None:
    verdict = read(
        {"choices": [{"index": 1, "text": "b1", "finish_reason": None}]},
        {
            "choices": [
                {"index": 0, "text": "a1", "finish_reason": None},
                {"index": 1, "text": "b2", "finish_reason": "stop"},
            ]
        },
        {"choices": [{"index": 0, "text": "a2", "finish_reason": "length"}]},
    )
    assert isinstance(verdict, Completed)
    assert msgspec.json.decode(verdict.body)["choices"] == [
        {"index": 0, "text": "a1a2", "finish_reason": "length"},
        {"index": 1, "text": "b1b2", "finish_reason": "stop"},
    ]


def test_choices_without_an_index_are_told_apart_by_their_place() -> None:
    verdict = read({"choices": [{"text": "a", "finish_reason": "stop"}, {"text": "b", "finish_reason": "stop"}]})
    assert isinstance(verdict, Completed)
    assert [choice["text"] for choice in msgspec.json.decode(verdict.body)["choices"]] == ["a", "b"]


def test_log_probabilities_and_token_ids_of_a_choice_are_joined() -> None:
    def chunk(token: str | None, finish_reason: str | None = None) -> dict[str, Any]:
        logprobs = None if token is None else {"content": [{"token": token}], "refusal": None}
        choice = {"index": 0, "delta": {}, "logprobs": logprobs, "finish_reason": finish_reason, "stop_reason": None}
        return {"choices": [{**choice, "token_ids": [7], "prompt_token_ids": [1, 2], "matched_stop": "x"}]}

    verdict = read(chunk("a"), chunk(None), chunk("b"), chunk("b", "stop"))
    assert isinstance(verdict, Completed)
    choice = msgspec.json.decode(verdict.body)["choices"][0]
    assert choice["logprobs"] == {"content": [{"token": "a"}, {"token": "b"}, {"token": "b"}], "refusal": None}
    assert choice["token_ids"] == [7, 7, 7, 7]
    assert choice["prompt_token_ids"] == [1, 2], "the prompt is the same one each time"
    assert (choice["stop_reason"], choice["matched_stop"]) == (None, "x")


@pytest.mark.parametrize(
    ("chunks", "whole"),
    [
        ([{"id": "c", "model": "m"}, {"id": "", "model": None}], {"id": "c", "model": "m"}),
        ([{"model": "m"}, {"model": "m-2"}], {"model": "m-2"}),
        ([{"created": 1}, {"created": 2.5}], {"created": 2.5}),
        ([{"usage": {"a": 0, "b": 1}}, {"usage": None}, {"usage": {"a": 2, "b": None}}], {"usage": {"a": 2, "b": 1}}),
        ([{"usage": None}], {"usage": None}),
        ([{"citations": ["a"]}, {"citations": ["a", "b"]}, {"citations": ["a"]}], {"citations": ["a", "b"]}),
        ([{"results": ["a"]}, {"results": ["b"]}], {"results": ["a", "b"]}),
    ],
)
def test_what_stands_beside_the_choices(chunks: list[dict[str, Any]], whole: dict[str, Any]) -> None:
    into: dict[str, Any] = {}
    for chunk in chunks:
        merge_whole(into, chunk)
    assert into == whole


def test_what_stands_beside_the_choices_keeps_its_type() -> None:
    into: dict[str, Any] = {}
    merge_whole(into, {"odd": [1]})
    with pytest.raises(UnmergeableError):
        merge_whole(into, {"odd": "a"})


# Tool calls


def calls_of(*deltas: list[dict[str, Any]]) -> list[tuple[Any, str, str]]:
    calls = ToolCalls()
    for delta in deltas:
        calls.take(delta)
    return [
        (call.get("id"), call["function"].get("name", ""), call["function"].get("arguments", ""))
        for call in calls.settled()
    ]


def call(name: str | None = None, arguments: str | None = None, **beside: Any) -> dict[str, Any]:
    return {**beside, "type": "function", "function": {"name": name, "arguments": arguments}}


A, B = ("a", "read", '{"path":"a"}'), ("b", "read", '{"path":"b"}')


@pytest.mark.parametrize(
    ("deltas", "calls"),
    [
        # By index, as OpenAI and vLLM send them.
        (
            [
                [call("read", "", index=0, id="a")],
                [call(None, '{"path":', index=0)],
                [call(None, '"a"}', index=0)],
                [call("read", '{"path":"b"}', index=1, id="b")],
            ],
            [A, B],
        ),
        ([[call("read", '{"path":"a"}', index=1, id="a")], [call("read", '{"path":"b"}', index=2, id="b")]], [A, B]),
        ([[call("read", '{"path":"b"}', index=1, id="b")], [call("read", '{"path":"a"}', index=0, id="a")]], [A, B]),
        # Pieces of two calls in turns.
        (
            [
                [call("read", '{"path":', index=0, id="a"), call("read", '{"path":', index=1, id="b")],
                [call(None, '"a"}', index=0), call(None, '"b"}', index=1)],
            ],
            [A, B],
        ),
        # Every call has the index 0, whole or in pieces.
        ([[call("read", '{"path":"a"}', index=0, id="a")], [call("read", '{"path":"b"}', index=0, id="b")]], [A, B]),
        (
            [
                [call("read", "", index=0, id="a")],
                [call(None, '{"path":"a"}', index=0)],
                [call("read", "", index=0, id="b")],
                [call(None, '{"path":', index=0)],
                [call(None, '"b"}', index=0)],
            ],
            [A, B],
        ),
        ([[call("read", '{"path":"a"}', index=0, id="a"), call("read", '{"path":"b"}', index=0, id="b")]], [A, B]),
        # Without an index, with null, with vLLM's old -1.
        *[
            ([[call("read", '{"path":"a"}', id="a", **no)], [call("read", '{"path":"b"}', id="b", **no)]], [A, B])
            for no in ({}, {"index": None}, {"index": -1}, {"index": "0"})
        ],
        (
            [
                [call("read", '{"path":', id="a")],
                [call("read", '{"path":', id="b")],
                [call(None, '"a"}', id="a")],
                [call(None, '"b"}', id="b")],
            ],
            [A, B],
        ),
        ([[call("read", '{"path":', id="a")], [call(None, '"a"}')], [call("read", '{"path":"b"}', id="b")]], [A, B]),
        # Neither index nor id: by place, and a name behind arguments begins the next one.
        (
            [[call("x", '{"a"'), call("y", '{"b"')], [call(None, ":1}"), call(None, ":2}")]],
            [(None, "x", '{"a":1}'), (None, "y", '{"b":2}')],
        ),
        ([[call("x", "{}")], [call("y", "{}")]], [(None, "x", "{}"), (None, "y", "{}")]),
        (
            [[call("x", '{"a":1}', index=0)], [call("x", '{"a":2}', index=0)]],
            [(None, "x", '{"a":1}'), (None, "x", '{"a":2}')],
        ),
        # A name, an id or a type in each chunk is not doubled.
        ([[call("read", '{"path":', index=0, id="a")], [call("read", '"a"}', index=0, id="a")]], [A]),
        ([[call("read", '{"path":', index=0)], [call("read", '"a"}', index=0)]], [(None, "read", '{"path":"a"}')]),
        (
            [[call("f", '{"a":{}', index=0)], [call("f", ',"b":{', index=0)], [call("f", "}}", index=0)]],
            [(None, "f", '{"a":{},"b":{}}')],
        ),
        # A name in pieces, an id that comes later, an id made up for each delta.
        ([[call("re", None, index=0, id="a")], [call("ad", '{"path":"a"}', index=0)]], [A]),
        ([[call("read", '{"path":', index=0)], [call(None, '"a"}', index=0, id="a")]], [A]),
        ([[call("read", '{"path":', index=0, id="a")], [call(None, '"a"}', index=0, id="made-up")]], [A]),
        # Calls without arguments.
        ([[call("x", "", index=0, id="a")], [call("y", "", index=0, id="b")]], [("a", "x", ""), ("b", "y", "")]),
        ([[call("x", "", index=0, id="a")], [call("x", "", index=0, id="b")]], [("a", "x", ""), ("b", "x", "")]),
        # Calls whose id says nothing.
        (
            [[call("x", "{}", index=0, id="")], [call("y", "{}", index=1, id="")]],
            [(None, "x", "{}"), (None, "y", "{}")],
        ),
        (
            [[call("x", "{}", index=0, id="a")], [call("y", "{}", index=1, id="a")]],
            [("a", "x", "{}"), ("a", "y", "{}")],
        ),
        ([[call("x", "{}", index=10**9, id="a")]], [("a", "x", "{}")]),
        ([[]], []),
    ],
)
def test_tool_calls_are_put_together(deltas: list[list[dict[str, Any]]], calls: list[tuple[Any, str, str]]) -> None:
    assert calls_of(*deltas) == calls


def test_other_fields_of_a_tool_call_are_kept() -> None:
    calls = ToolCalls()
    calls.take(
        [{"index": 0, "id": "a", "type": "custom", "custom": {"name": "sh", "input": "l"}, "extra": {"sig": "x"}}]
    )
    calls.take([{"index": 0, "type": "custom", "custom": {"input": "s"}, "extra": {"sig": "x"}}])
    assert calls.settled() == [
        {"id": "a", "type": "custom", "custom": {"name": "sh", "input": "ls"}, "extra": {"sig": "x"}}
    ]


def test_arguments_that_are_an_object_stay_one() -> None:
    calls = ToolCalls()
    calls.take([{"index": 0, "id": "a", "function": {"name": "f", "arguments": {"at": 1}}}])
    assert calls.settled() == [{"id": "a", "function": {"name": "f", "arguments": {"at": 1}}}]


def test_tool_calls_are_bounded() -> None:
    calls = ToolCalls()
    with pytest.raises(UnmergeableError, match="tool calls"):
        calls.take([call("f", "{}", index=index) for index in range(TOOL_CALLS_MAX + 1)])


# Time


@pytest.mark.parametrize(
    "delta",
    [
        {"content": "word "},
        {"odd": "word "},
        {"tokens": [1]},
        {"reasoning_details": [{"type": "reasoning.text", "index": 0, "text": "word "}]},
        {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": "word "}}]},
        {"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": "{{}"}}]},
    ],
    ids=lambda delta: next(iter(delta)),
)
def test_time_is_linear_in_the_chunks(delta: dict[str, Any]) -> None:
    chunk = json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}).encode()
    end = json.dumps({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}).encode()

    def seconds(count: int) -> float:
        """The least of three: what disturbs the machine only ever adds."""
        took = []
        for _ in range(3):
            started = time.process_time()
            assert isinstance(read(*[chunk] * count, end), Completed)
            took.append(time.process_time() - started)
        return min(took)

    # Quadratic work would take a hundred times as long.
    assert seconds(20_000) < 50 * max(seconds(2_000), 0.01)


@settings(deadline=None)
@given(st.text(), st.lists(st.integers(1, 5), max_size=30))
def test_text_is_the_same_wherever_it_is_cut(text: str, cuts: list[int]) -> None:
    pieces, at = [], 0
    for cut in cuts:
        pieces.append(text[at : at + cut])
        at += cut
    into: dict[str, Any] = {}
    for piece in [*pieces, text[at:]]:
        merge(into, {"content": piece})
    assert settled(into) == {"content": text}
