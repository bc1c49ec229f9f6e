"""The text in an event of a stream: taken out to compare two runs of a request, and cut where it was sent. Pure."""

from __future__ import annotations

from typing import Any, Final

import msgspec

Key = tuple[Any, ...]
"""Where a text stands: the choice's index and the field; of a tool call its index and its field too."""

Texts = list[tuple[Key, str]]

_STATES: Final = frozenset({"role", "finish_reason", "index"})
_CALLS: Final = "tool_calls"


class NotComparableError(ValueError):
    """Chunks that hold more than text, so that no part of them can be left out."""


def texts_of(choices: Any) -> Texts:
    """The texts that the choices of a chunk add, in their order. Raises ``NotComparableError``.

    Ids and names of tool calls are texts too: a retry that calls under another id is another answer.
    """
    texts: Texts = []
    if choices is None:
        return texts
    if type(choices) is not list:
        raise NotComparableError
    for place, choice in enumerate(choices):
        if type(choice) is not dict:
            raise NotComparableError
        index = choice.get("index", place)
        for name, value in choice.items():
            if name == "delta":
                _take_delta(index, value, texts)
            elif name == "text":
                _take(texts, (index, name), value)
            elif name == "finish_reason":
                if value:
                    texts.append(((index, name), str(value)))
            elif name == "message":
                raise NotComparableError
    return texts


def cut(data: bytes, shown_chars: dict[Key, int]) -> bytes:
    """The event without the first characters of each text, encoded anew. Raises ``NotComparableError``.

    ``shown_chars``: how much of each text to leave out, by its key; of an event that holds each key once.
    """
    value = msgspec.json.decode(data)
    for place, choice in enumerate(value["choices"]):
        index = choice.get("index", place)
        for (of, *path), chars in shown_chars.items():
            if of == index and chars:
                _cut_at(choice, path, chars)
    return msgspec.json.encode(value)


def _cut_at(choice: dict[str, Any], path: list[Any], chars: int) -> None:
    holder: Any = choice
    match path:
        case ["text"]:
            pass
        case ["finish_reason"]:
            raise NotComparableError
        case ["delta", name]:
            holder, path = choice["delta"], [name]
        case ["delta", "tool_calls", call_index, name]:
            calls = choice["delta"][_CALLS]
            call = next(call for place, call in enumerate(calls) if call.get("index", place) == call_index)
            holder, path = (call if name in call else call["function"]), [name]
        case _:
            raise NotComparableError
    holder[path[0]] = holder[path[0]][chars:]


def _take_delta(index: Any, delta: Any, texts: Texts) -> None:
    if delta is None:
        return
    if type(delta) is not dict:
        raise NotComparableError
    for name, value in delta.items():
        if name == _CALLS and value:
            _take_calls(index, value, texts)
        elif name not in _STATES:
            _take(texts, (index, "delta", name), value)


def _take_calls(index: Any, calls: Any, texts: Texts) -> None:
    if type(calls) is not list:
        raise NotComparableError
    for place, call in enumerate(calls):
        if type(call) is not dict:
            raise NotComparableError
        key = (index, "delta", _CALLS, call.get("index", place))
        for name, value in call.items():
            if name == "function" and type(value) is dict:
                for part, text in value.items():
                    _take(texts, (*key, part), text)
            elif name not in _STATES and name != "type":
                _take(texts, (*key, name), value)


def _take(texts: Texts, key: Key, value: Any) -> None:
    if type(value) is str:
        if value:
            texts.append((key, value))
    elif value:
        raise NotComparableError
