"""Puts a streamed completion together: who asks for a stream over Kafka gets the whole answer as one. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

_DONE = b"[DONE]"


def assemble_stream(stream: bytes) -> dict[str, Any]:
    """The completion object that the chunks of an OpenAI event stream amount to.

    Text deltas are joined per choice; of every other field the last value counts. Raises ``ValueError`` when the
    stream broke off before ``[DONE]``, when the engine reported an error in it, and for a chunk of another form;
    ``msgspec.DecodeError`` for a chunk that is not JSON.
    """
    try:
        return _assemble(stream)
    except (AttributeError, TypeError) as error:
        raise ValueError(f"a chunk has not the form of a completion's ({error})") from None


def _assemble(stream: bytes) -> dict[str, Any]:
    whole: dict[str, Any] = {}
    choices: dict[int, dict[str, Any]] = {}
    done = False
    for event in _events(stream):
        if event == _DONE:
            done = True
            break
        chunk = msgspec.json.decode(event)
        if not isinstance(chunk, dict):
            raise ValueError("a chunk is no object")
        if chunk.get("error"):
            # The status was 200 when the engine failed: vLLM and others say so here, and [DONE] follows all the same.
            raise ValueError(f"the engine reported an error in the stream: {chunk['error']}")
        for choice in chunk.pop("choices", None) or ():
            _merge_choice(choices.setdefault(choice.get("index", 0), {}), choice)
        whole.update({name: value for name, value in chunk.items() if value is not None})
    if not done:
        raise ValueError("the stream broke off before [DONE]")
    if isinstance(whole.get("object"), str):
        whole["object"] = whole["object"].removesuffix(".chunk")
    whole["choices"] = [choices[index] for index in sorted(choices)]
    return whole


def _events(stream: bytes) -> list[bytes]:
    """The data of each event; lines may end in CR LF, and an event may have several data lines."""
    events = []
    for block in stream.replace(b"\r\n", b"\n").split(b"\n\n"):
        lines = [line[5:].removeprefix(b" ") for line in block.split(b"\n") if line.startswith(b"data:")]
        if any(lines):
            events.append(b"\n".join(lines))
    return events


def _merge_choice(into: dict[str, Any], choice: dict[str, Any]) -> None:
    for name, value in choice.items():
        if name == "delta":
            _merge_delta(into.setdefault("message", {}), value or {})
        elif name == "text":
            into["text"] = into.get("text", "") + (value or "")
        elif value is not None or name not in into:
            into[name] = value


def _merge_delta(into: dict[str, Any], delta: dict[str, Any]) -> None:
    for name, value in delta.items():
        if name == "tool_calls":
            _merge_tool_calls(into.setdefault("tool_calls", []), value or [])
        elif isinstance(value, str) and name != "role":
            into[name] = (into.get(name) or "") + value
        elif value is not None or name not in into:
            into[name] = value


def _merge_tool_calls(into: list[dict[str, Any]], calls: list[dict[str, Any]]) -> None:
    for call in calls:
        index = call.get("index", 0)
        if not 0 <= index <= len(into):
            raise ValueError(f"tool call {index} follows {len(into)}")
        if index == len(into):
            into.append({})
        known = into[index]
        for name, value in call.items():
            if name == "function" and isinstance(value, dict):
                function = known.setdefault("function", {})
                for part, text in value.items():
                    function[part] = function.get(part, "") + text if isinstance(text, str) else text
            elif name != "index" and value is not None:
                known[name] = value
