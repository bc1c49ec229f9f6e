"""What lacks of a streamed answer that was shown in part: the rest of its result, as one more event. Pure.

Knows OpenAI's chats and completions. Of any other answer only the whole result can be shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from forebay_schemas.contract.pieces import StreamEvent

_COPIED = ("id", "created", "model", "system_fingerprint")


class RemainderError(ValueError):
    """The result does not begin with what was shown, or it cannot be compared with it."""


class Shown:
    """The text of a stream's events so far, by choice. Takes each event once, in order."""

    __slots__ = ("_choices", "events", "is_comparable")

    def __init__(self) -> None:
        self.events = 0
        self._choices: dict[int, dict[str, Any]] = {}
        self.is_comparable = True

    def add(self, event: StreamEvent) -> None:
        """An event is shown. Never raises."""
        self.events += 1
        try:
            for choice in msgspec.json.decode(event.data)["choices"]:
                self._add_choice(choice)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, LookupError, TypeError, AttributeError):
            self.is_comparable = False

    def remainder(self, body: Any) -> StreamEvent | None:
        """An event with all of ``body``, the result's, that was not shown; None when nothing lacks.

        Raises ``RemainderError``.
        """
        try:
            choices = body["choices"]
            is_chat = any("message" in choice for choice in choices)
            found = [self._rest_of(choice, is_chat) for choice in choices]
        except (LookupError, TypeError, AttributeError):
            raise RemainderError("the result is no chat and no completion") from None
        if self.events and not self.is_comparable:
            raise RemainderError("what was shown is no chat and no completion")
        if self._choices.keys() - {choice.get("index", 0) for choice in choices}:
            raise RemainderError("the result has fewer choices than were shown")
        left = [choice for choice in found if choice is not None]
        if not left:
            return None
        fields: dict[str, Any] = {name: body[name] for name in _COPIED if name in body}
        fields["object"] = "chat.completion.chunk" if is_chat else "text_completion"
        return StreamEvent(msgspec.Raw(msgspec.json.encode({**fields, "choices": left})))

    def _add_choice(self, choice: Mapping[str, Any]) -> None:
        known = self._choices.setdefault(choice.get("index", 0), {"texts": {}, "tools": {}, "finished": False})
        delta = choice["delta"] if "delta" in choice else {"text": choice.get("text", "")}
        for name, value in (delta or {}).items():
            if name == "tool_calls":
                for call in value or ():
                    self._add_call(known["tools"], call)
            elif name != "role" and isinstance(value, str):
                known["texts"][name] = known["texts"].get(name, "") + value
        known["finished"] = known["finished"] or choice.get("finish_reason") is not None

    def _add_call(self, tools: dict[int, str], call: Mapping[str, Any]) -> None:
        arguments = (call.get("function") or {}).get("arguments") or ""
        tools[call["index"]] = tools.get(call["index"], "") + arguments

    def _rest_of(self, choice: Mapping[str, Any], is_chat: bool) -> dict[str, Any] | None:
        index = choice.get("index", 0)
        known = self._choices.get(index, {"texts": {}, "tools": {}, "finished": False})
        message: Mapping[str, Any] = choice["message"] if is_chat else {"text": choice.get("text", "")}
        texts = {name: value for name, value in message.items() if name != "role" and isinstance(value, str)}
        rest: dict[str, Any] = {}
        for name in {**known["texts"], **texts}:
            left = _left(texts.get(name, ""), known["texts"].get(name, ""))
            if left:
                rest[name] = left
        calls = _calls_left(message.get("tool_calls") or (), known["tools"])
        if calls:
            rest["tool_calls"] = calls
        reason = choice.get("finish_reason")
        if not rest and (known["finished"] or reason is None):
            return None
        body = {"delta": rest} if is_chat else {"text": rest.get("text", "")}
        return {"index": index, **body, "finish_reason": reason}


def _calls_left(calls: Any, known: Mapping[int, str]) -> list[dict[str, Any]]:
    if len(calls) < len(known):
        raise RemainderError("the result has fewer tool calls than were shown")
    left = []
    for index, call in enumerate(calls):
        if index not in known:
            left.append({"index": index, **call})
            continue
        arguments = _left((call.get("function") or {}).get("arguments") or "", known[index])
        if arguments:
            left.append({"index": index, "function": {"arguments": arguments}})
    return left


def _left(whole: str, shown: str) -> str:
    if not whole.startswith(shown):
        raise RemainderError("the result's text does not begin with what was shown")
    return whole[len(shown) :]
