"""A streamed completion put together: text, tool calls, choices, usage, and every way in which it can be broken."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay_worker.execution.sse import assemble_stream


def stream_of(*chunks: dict[str, Any], done: bool = True, newline: str = "\n") -> bytes:
    events = [f"data: {json.dumps(chunk)}" for chunk in chunks] + (["data: [DONE]"] if done else [])
    return "".join(event + newline * 2 for event in events).encode()


def chunk(delta: dict[str, Any] | None = None, *, index: int = 0, **choice: Any) -> dict[str, Any]:
    whole = {"index": index, "delta": delta or {}, "finish_reason": None, **choice}
    return {"id": "c-1", "object": "chat.completion.chunk", "created": 7, "model": "m", "choices": [whole]}


def test_text_is_joined_and_the_rest_is_as_the_last_chunk_says() -> None:
    whole = assemble_stream(
        stream_of(
            chunk({"role": "assistant", "content": ""}),
            chunk({"content": "Hel"}),
            chunk({"content": "lo"}),
            chunk({}, finish_reason="stop"),
            {"id": "c-1", "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}},
        )
    )
    assert whole == {
        "id": "c-1",
        "object": "chat.completion",
        "created": 7,
        "model": "m",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "Hello"}, "finish_reason": "stop"},
        ],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2},
    }


def test_usage_that_is_null_until_the_end_is_not_lost() -> None:
    first, last = chunk({"content": "a"}), chunk({}, finish_reason="length")
    whole = assemble_stream(stream_of(first | {"usage": {"completion_tokens": 1}}, last | {"usage": None}))
    assert whole["usage"] == {"completion_tokens": 1}
    assert whole["choices"][0]["finish_reason"] == "length"


def test_choices_that_come_mixed_are_kept_apart() -> None:
    whole = assemble_stream(
        stream_of(
            chunk({"content": "b1"}, index=1),
            chunk({"content": "a1"}),
            chunk({"content": "b2"}, index=1, finish_reason="stop"),
            chunk({"content": "a2"}, finish_reason="length"),
        )
    )
    assert [(each["index"], each["message"]["content"], each["finish_reason"]) for each in whole["choices"]] == [
        (0, "a1a2", "length"),
        (1, "b1b2", "stop"),
    ]


def test_tool_calls_are_put_together_from_their_pieces() -> None:
    def piece(index: int, **call: Any) -> dict[str, Any]:
        return chunk({"tool_calls": [{"index": index, **call}]})

    whole = assemble_stream(
        stream_of(
            chunk({"role": "assistant", "content": None}),
            piece(0, id="call-a", type="function", function={"name": "look", "arguments": ""}),
            piece(0, function={"arguments": '{"at":'}),
            piece(0, function={"arguments": " 1}"}),
            piece(1, id="call-b", type="function", function={"name": "go", "arguments": "{}"}),
            chunk({}, finish_reason="tool_calls"),
        )
    )
    assert whole["choices"][0]["message"] == {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "call-a", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}},
            {"id": "call-b", "type": "function", "function": {"name": "go", "arguments": "{}"}},
        ],
    }


def test_reasoning_and_refusals_are_text_too() -> None:
    whole = assemble_stream(
        stream_of(chunk({"reasoning_content": "hm"}), chunk({"reasoning_content": "m"}), chunk({"refusal": "no"}))
    )
    assert whole["choices"][0]["message"] == {"reasoning_content": "hmm", "refusal": "no"}


def test_null_deltas_take_nothing_away() -> None:
    whole = assemble_stream(
        stream_of(chunk({"content": "a"}), chunk({"content": None, "role": None}), chunk({"content": "b"}))
    )
    assert whole["choices"][0]["message"]["content"] == "ab"
    empty: dict[str, Any] = {"choices": [{"index": 0, "delta": None, "finish_reason": "stop"}]}
    assert assemble_stream(stream_of(empty))["choices"][0]["message"] == {}


def test_completions_carry_their_text_in_the_choice() -> None:
    whole = assemble_stream(
        stream_of(
            {"object": "text_completion", "choices": [{"index": 0, "text": "a", "finish_reason": None}]},
            {"object": "text_completion", "choices": [{"index": 0, "text": "b", "finish_reason": "stop"}]},
        )
    )
    assert whole == {
        "object": "text_completion",
        "choices": [{"index": 0, "text": "ab", "finish_reason": "stop"}],
    }


def test_the_wire_form_may_vary() -> None:
    chunks = (chunk({"content": "ä"}), chunk({"content": "b"}))
    plain = assemble_stream(stream_of(*chunks))
    assert assemble_stream(stream_of(*chunks, newline="\r\n")) == plain
    noisy = b": ping\n\nevent: message\nid: 3\n" + stream_of(*chunks).replace(b"data: ", b"data:") + b"\ndata:\n\n"
    assert assemble_stream(noisy.rstrip(b"\n")) == plain
    pretty = json.dumps(chunks[0], indent=1).replace("\n", "\ndata: ")
    assert assemble_stream(f"data: {pretty}\n\n".encode() + stream_of(chunks[1])) == plain
    assert assemble_stream(b"data:\n\n: keep-alive\n\n" + stream_of(*chunks)) == plain


def test_what_follows_the_end_does_not_count() -> None:
    assert assemble_stream(stream_of(chunk({"content": "a"})) + b"data: rubbish\n\n")["id"] == "c-1"


@pytest.mark.parametrize(
    ("stream", "said"),
    [
        (b"", "broke off"),
        (stream_of(chunk({"content": "a"}), done=False), "broke off"),
        (stream_of(chunk({"content": "a"}))[:-20], "broke off|truncated|malformed"),
        (b"data: [1]\n\ndata: [DONE]\n\n", "no object"),
        (b'data: {"choices": [3]}\n\ndata: [DONE]\n\n', "form"),
        (b'data: {"choices": [{"delta": 3}]}\n\ndata: [DONE]\n\n', "form"),
        (b'data: {"choices": 3}\n\ndata: [DONE]\n\n', "form"),
        (stream_of(chunk({"tool_calls": [{"index": 10**9}]})), "tool call"),
        (stream_of(chunk({"tool_calls": [{"index": -1}]})), "tool call"),
        (stream_of(chunk({"tool_calls": ["x"]})), "form"),
        (stream_of(chunk({"content": "a"}), {"error": {"message": "EngineDeadError", "code": 500}}), "EngineDeadError"),
        (b'data: {"error": "out of memory"}\n\ndata: [DONE]\n\n', "out of memory"),
    ],
)
def test_a_broken_stream_is_no_answer(stream: bytes, said: str) -> None:
    with pytest.raises((ValueError, msgspec.DecodeError), match=said):
        assemble_stream(stream)


@settings(deadline=None)
@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=3),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(["choices", "delta", "index", "tool_calls", "function", "text", "content"]), inner
            )
        ),
    )
)
def test_any_json_is_put_together_or_refused(value: Any) -> None:
    try:
        whole = assemble_stream(b"data: " + json.dumps(value).encode() + b"\n\ndata: [DONE]\n\n")
    except (ValueError, msgspec.MsgspecError):
        return
    assert isinstance(whole["choices"], list)
