"""What lacks of a streamed answer: shown pieces and remainder amount to the result, cut anywhere."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from forebay_producer.replies.remainder import RemainderError, Shown
from forebay_schemas.contract.pieces import StreamEvent

CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}
CHAT: dict[str, Any] = {
    "id": "x",
    "model": "m",
    "choices": [
        {"index": 0, "message": {"role": "assistant", "content": "Hello 你好"}, "finish_reason": "stop"},
        {
            "index": 1,
            "message": {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [CALL]},
            "finish_reason": "tool_calls",
        },
    ],
}
EVENTS: list[dict[str, Any]] = [
    {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]},
    {"choices": [{"index": 0, "delta": {"content": "Hel"}}, {"index": 1, "delta": {"reasoning_content": "h"}}]},
    {"choices": [{"index": 0, "delta": {"content": "lo 你"}}]},
    {"choices": [{"index": 1, "delta": {"reasoning_content": "m"}}]},
    {"choices": [{"index": 1, "delta": {"tool_calls": [{"index": 0, **CALL, "function": {"name": "look"}}]}}]},
    {"choices": [{"index": 1, "delta": {"tool_calls": [{"index": 0, "function": {"arguments": '{"at":'}}]}}]},
    {"choices": [{"index": 1, "delta": {"tool_calls": [{"index": 0, "function": {"arguments": " 1}"}}]}}]},
    {"choices": [{"index": 0, "delta": {"content": "好"}, "finish_reason": "stop"}]},
    {"choices": [{"index": 1, "delta": {}, "finish_reason": "tool_calls"}]},
]


def stream_event(data: Any) -> StreamEvent:
    return StreamEvent(msgspec.Raw(msgspec.json.encode(data)))


def texts(events: list[dict[str, Any]]) -> dict[tuple[int, str], str]:
    found: dict[tuple[int, str], str] = {}
    for each in events:
        for choice in each["choices"]:
            for name, value in choice.get("delta", {"text": choice.get("text")}).items():
                if name == "tool_calls":
                    value, name = value[0].get("function", {}).get("arguments", ""), "arguments"
                if name != "role" and value:
                    key = (choice["index"], name)
                    found[key] = found.get(key, "") + value
    return found


@pytest.mark.parametrize("count", range(len(EVENTS) + 1))
def test_a_chat_that_breaks_off_anywhere_is_filled(count: int) -> None:
    told = Shown()
    for each in EVENTS[:count]:
        told.add(stream_event(each))
    rest = told.remainder(CHAT)
    if count == len(EVENTS):
        assert rest is None
        return
    assert rest is not None
    data = msgspec.json.decode(rest.data)
    assert data["object"] == "chat.completion.chunk"
    assert (data["id"], data["model"]) == ("x", "m")
    assert texts([*EVENTS[:count], data]) == texts(EVENTS)
    finished = {choice["index"]: choice.get("finish_reason") for choice in data["choices"]}
    assert set(finished.values()) <= {"stop", "tool_calls"}


def test_a_completion_is_filled() -> None:
    told = Shown()
    told.add(stream_event({"choices": [{"index": 0, "text": "ab"}]}))
    rest = told.remainder({"choices": [{"index": 0, "text": "abc", "finish_reason": "length"}]})
    assert rest is not None
    data = msgspec.json.decode(rest.data)
    assert data["choices"] == [{"index": 0, "text": "c", "finish_reason": "length"}]


@pytest.mark.parametrize(
    ("events", "body"),
    [
        pytest.param([EVENTS[1]], {"choices": [{"index": 0, "message": {"content": "Other"}}]}, id="another text"),
        pytest.param([EVENTS[1]], {"choices": []}, id="fewer choices"),
        pytest.param([], {"output": []}, id="no chat"),
        pytest.param([], None, id="no body"),
        pytest.param([{"response": 1}], CHAT, id="events of another API"),
        pytest.param(EVENTS[4:6], {"choices": [CHAT["choices"][0], {**CHAT["choices"][1], "message": {}}]}, id="calls"),
    ],
)
def test_what_cannot_be_compared_is_said(events: list[Any], body: Any) -> None:
    told = Shown()
    for each in events:
        told.add(stream_event(each))
    with pytest.raises(RemainderError):
        told.remainder(body)


@pytest.mark.parametrize("data", [b"", b"\xff", b"[]", b"1", b'{"choices": 1}', b'{"choices": [1]}', b"[" * 100_000])
def test_foreign_events_never_raise(data: bytes) -> None:
    told = Shown()
    told.add(StreamEvent(msgspec.Raw(data)))
    assert told.events == 1
