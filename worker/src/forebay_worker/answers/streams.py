"""Puts an answer together from the events of its stream, by the endpoint's shape. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from typing import Any, Final, Protocol

from forebay_worker.answers.bodies import dumps, judge_value
from forebay_worker.answers.endpoints import Shape
from forebay_worker.answers.errors import failure_of, is_give_up, reported_error
from forebay_worker.answers.merge import UnmergeableError, add_text, merge_field, merge_whole, settled
from forebay_worker.answers.tool_calls import ToolCalls
from forebay_worker.answers.verdict import (
    Completed,
    Failed,
    NoAnswerError,
    Verdict,
    bad_response,
    broken_off,
    completed,
    given_up,
)

CHOICES_MAX: Final = 10_000
"""vLLM makes a choice of each prompt and repetition; the bound is on memory."""


_PLAIN: Final = frozenset({str, int, type(None)})
_PLAIN_FIELDS: Final = frozenset({"index", "delta"})


class Progress(Enum):
    """How far an answer is read."""

    MORE = "more"
    """It goes on."""
    MAY_END = "may_end"
    """It is whole unless more follows, as usage may: wait for a short time only."""
    COMPLETE = "complete"
    """Nothing more is wanted; the connection may be closed."""


class Stream(Protocol):
    """Takes the events of a stream. ``content_chunks``: those that carried text or tool calls."""

    content_chunks: int

    def take(self, name: str, value: Any) -> Progress:
        """Adds an event: its name, empty for most, and its decoded data. Raises ``NoAnswerError``."""
        ...

    def end(self) -> Verdict:
        """The verdict once the stream has ended tidily, with or without [DONE]."""
        ...

    def kept_bytes(self) -> int:
        """The size of what was put together so far, as JSON. Costs as much as to end."""
        ...


def stream_for(shape: Shape, value: Any, *, choices_min: int = 1) -> Stream:
    """The reader of a stream; ``value``: its first event, which tells the form on the path of an unknown API.

    ``choices_min``: before as many choices have begun it does not say that the stream may end.
    """
    if shape is Shape.OTHER and isinstance(value, dict):
        if isinstance(value.get("choices"), list):
            return ChoiceStream(choices_min)
        if str(value.get("type")).startswith("response."):
            return ResponseStream()
    if shape is Shape.CHAT or shape is Shape.COMPLETION:
        return ChoiceStream(choices_min)
    if shape is Shape.RESPONSE:
        return ResponseStream()
    return EventList() if shape is Shape.OTHER else DataStream(shape)


class _Choice:
    """A choice of a chat or completion, as far as its chunks have come."""

    __slots__ = ("calls", "fields", "finish_reason", "has_message", "message", "whole")

    def __init__(self) -> None:
        self.fields: dict[str, Any] = {}
        self.whole: dict[str, Any] = {}
        self.message: dict[str, Any] = {}
        self.calls = ToolCalls()
        self.has_message = False
        self.finish_reason: object = None

    def take(self, chunk: dict[str, Any]) -> bool:
        """Adds a chunk; True when it carried text or tool calls."""
        carried = False
        for name, value in chunk.items():
            if name == "delta":
                carried = self._take_delta(value) or carried
            elif name == "message":
                carried = self._take_whole(value) or carried
            elif name == "finish_reason":
                # text-generation-inference writes "" in each chunk but the last of a completion.
                self.finish_reason = value or self.finish_reason
                self.fields[name] = self.finish_reason
            elif name != "index":
                carried = carried or (name == "text" and bool(value))
                merge_field(self.fields, name, value)
        return carried

    def take_plain(self, chunk: dict[str, Any]) -> bool:
        """Adds a chunk that has nothing new but a piece of a text, as nine of ten are; else False, and adds nothing."""
        delta = chunk.get("delta")
        if self.finish_reason or type(delta) is not dict or len(delta) != 1:
            return False
        for name, value in chunk.items():
            if (value is not None or name not in self.fields) and name not in _PLAIN_FIELDS:
                return False
        ((name, text),) = delta.items()
        return type(text) is str and text != "" and add_text(self.message, name, text)

    def settled(self, index: int) -> dict[str, Any]:
        message = {}
        if self.has_message:
            deltas = settled(self.message)
            if len(self.calls):
                deltas["tool_calls"] = self.calls.settled()
            message = {"message": _with_whole(deltas, self.whole)}
        return {"index": index, **message, **settled(self.fields)}

    def _take_whole(self, message: Any) -> bool:
        """Takes the message as it is so far: of a server that answers a wish for a stream with one event, or that
        repeats beside or behind its deltas what they amount to (Perplexity)."""
        self.has_message = True
        if message is None:
            return False
        if not isinstance(message, dict):
            raise UnmergeableError("a message is no object")
        known, content = self.whole.get("content"), message.get("content")
        if known and not content:
            message = {**message, "content": known}  # it says nothing of it
        elif known and not _goes_on_from(content, known):
            raise UnmergeableError("'message' does not go on from the one before")
        self.whole = message
        return (bool(content) and content != known) or bool(message.get("tool_calls"))

    def _take_delta(self, delta: Any) -> bool:
        self.has_message = True
        carried = False
        if delta is None:
            return carried
        if not isinstance(delta, dict):
            raise UnmergeableError("a delta is no object")
        for name, value in delta.items():
            carried = carried or (bool(value) and name != "role")
            if name != "tool_calls":
                merge_field(self.message, name, value)
            elif value:
                self.calls.take(value)
        return carried


def _goes_on_from(content: Any, known: Any) -> bool:
    """Whether a message's content is an earlier one, or that with more behind it."""
    if type(content) is type(known) and isinstance(known, (str, list)):
        return bool(content[: len(known)] == known)
    return bool(content == known)


def _with_whole(deltas: dict[str, Any], whole: dict[str, Any]) -> dict[str, Any]:
    """The message that deltas amount to, with what only the whole one says."""
    if deltas.get("content") and whole.get("content") and deltas["content"] != whole["content"]:
        raise UnmergeableError("'message' is not what its deltas amount to")
    return {**whole, **{name: value for name, value in deltas.items() if value or not whole.get(name)}}


class ChoiceStream:
    """Chunks of a chat or a completion, merged per choice.

    It is whole when each choice that began has its finish reason. [DONE] alone does not make it so: relays write it
    whenever what they relay has ended, broken off or not.
    """

    def __init__(self, choices_min: int) -> None:
        self.content_chunks = 0
        self._choices_min = choices_min
        self._whole: dict[str, Any] = {}
        self._repeated: dict[str, Any] | None = None
        self._choices: dict[int, _Choice] = {}
        self._unfinished = 0
        self._goes_on = False

    def take(self, _name: str, value: Any) -> Progress:
        if not isinstance(value, dict):
            raise NoAnswerError(bad_response("a chunk is no object", shown=dumps(value)))
        choices = value.pop("choices", None)
        # id, object, created and model, the same in each chunk: merging them again would change nothing.
        if value == self._repeated:
            if type(choices) is list and len(choices) == 1 and type(choices[0]) is dict:
                index = choices[0].get("index")
                known = self._choices.get(index) if type(index) is int else None
                if known is not None and known.take_plain(choices[0]):
                    self.content_chunks += 1
                    return Progress.MORE
        else:
            failed = reported_error(value, Shape.CHAT)
            if failed is not None:
                raise NoAnswerError(failed)
            merge_whole(self._whole, value)
            self._repeated = value if _PLAIN.issuperset(map(type, value.values())) else None
        if choices:
            if not isinstance(choices, list):
                raise UnmergeableError("'choices' is no list")
            carried = False
            for place, choice in enumerate(choices):
                carried = self._take_choice(choice, place) or carried
            self.content_chunks += carried
        # An engine that works off many prompts finishes the first before the last has begun.
        may_end = not self._unfinished and not self._goes_on and len(self._choices) >= self._choices_min
        return Progress.MAY_END if may_end else Progress.MORE

    def end(self) -> Verdict:
        if not self._choices:
            return bad_response("the stream has no choices", shown=dumps(self._whole) if self._whole else b"")
        if self._unfinished:
            first = min(index for index, choice in self._choices.items() if not choice.finish_reason)
            return broken_off(f"the stream broke off: choice {first} has no finish_reason")
        return completed(self._body(), self._whole.get("usage"), content_chunks=self.content_chunks)

    def kept_bytes(self) -> int:
        return len(self._body())

    def _body(self) -> bytes:
        whole = dict(self._whole)
        if isinstance(whole.get("object"), str):
            whole["object"] = whole["object"].removesuffix(".chunk")
        whole["choices"] = [self._choices[index].settled(index) for index in sorted(self._choices)]
        return dumps(whole)

    def _take_choice(self, chunk: Any, place: int) -> bool:
        if not isinstance(chunk, dict):
            raise UnmergeableError("a choice is no object")
        if chunk.get("error"):
            raise NoAnswerError(failure_of(chunk["error"], beside=chunk))
        index = chunk.get("index")
        index = place if index is None else index
        if type(index) is not int or index < 0:
            raise UnmergeableError(f"a choice has the index {index!r}")
        choice = self._choices.get(index)
        if choice is None:
            if len(self._choices) >= CHOICES_MAX:
                raise UnmergeableError(f"more than {CHOICES_MAX} choices")
            choice = self._choices[index] = _Choice()
            self._unfinished += 1
        was_finished, is_first = bool(choice.finish_reason), not choice.fields
        carried = choice.take(chunk)
        if carried and choice.finish_reason and "message" not in chunk and (was_finished or is_first):
            # Google's and some relays write "stop" in each chunk: it ends nothing, and only [DONE] or the end does.
            self._goes_on = True
        if is_give_up(choice.finish_reason):
            raise NoAnswerError(given_up(choice.finish_reason))
        self._unfinished -= bool(choice.finish_reason) and not was_finished
        return carried


class ResponseStream:
    """Events of /v1/responses: the last one holds the whole response, so the deltas are not merged."""

    _LAST: Final = frozenset({"completed", "incomplete", "failed", "cancelled", "done"})

    def __init__(self) -> None:
        self.content_chunks = 0
        self._items: dict[int, Any] = {}
        self._response: dict[str, Any] | None = None

    def take(self, name: str, value: Any) -> Progress:
        if not isinstance(value, dict):
            raise NoAnswerError(bad_response("an event is no object", shown=dumps(value)))
        kind = value.get("type") or name
        response = value.get("response")
        if isinstance(kind, str) and isinstance(response, dict) and kind.removeprefix("response.") in self._LAST:
            self._response = response
            return Progress.COMPLETE
        failed = reported_error(value, Shape.RESPONSE)
        if failed is not None:
            raise NoAnswerError(failed)
        if isinstance(kind, str) and kind.endswith(".delta"):
            self.content_chunks += 1
        elif kind == "response.output_item.done":
            index = value.get("output_index")  # llama.cpp gives none
            self._items[index if type(index) is int else len(self._items)] = value.get("item")
        return Progress.MORE

    def end(self) -> Verdict:
        response = self._response
        if response is None:
            return broken_off("the stream broke off before response.completed, failed or incomplete")
        if not response.get("output") and self._items:
            # A server that keeps nothing may leave the last event's output empty: its items came one by one.
            response["output"] = [self._items[index] for index in sorted(self._items)]
        verdict = judge_value(response, Shape.RESPONSE)
        return replace(verdict, content_chunks=self.content_chunks) if isinstance(verdict, Completed) else verdict

    def kept_bytes(self) -> int:
        return len(dumps(list(self._items.values())))


class DataStream:
    """Events of an endpoint that answers with ``data``: images as they are completed, or the answer as one event."""

    def __init__(self, shape: Shape) -> None:
        self.content_chunks = 0
        self._shape = shape
        self._whole: dict[str, Any] = {}
        self._data: list[Any] = []

    def take(self, name: str, value: Any) -> Progress:
        if not isinstance(value, dict):
            raise NoAnswerError(bad_response("an event is no object", shown=dumps(value)))
        failed = reported_error(value, self._shape)
        if failed is not None:
            raise NoAnswerError(failed)
        kind = value.get("type") or name
        if isinstance(value.get("data"), list):
            self._data.extend(value.pop("data"))
            merge_whole(self._whole, value)
        elif isinstance(kind, str) and kind.endswith(".completed"):
            fields = ("url", "b64_json", "revised_prompt")
            self._data.append({field: value.pop(field) for field in fields if field in value})
            value.pop("type", None)
            if "created_at" in value:
                value["created"] = value.pop("created_at")
            merge_whole(self._whole, value)
        return Progress.MAY_END if self._data else Progress.MORE

    def end(self) -> Verdict:
        if not self._data:
            return broken_off("the stream broke off before any data")
        return judge_value({**self._whole, "data": self._data}, self._shape)

    def kept_bytes(self) -> int:
        return len(dumps(self._data))


def end_mark_of(first: dict[str, Any]) -> Callable[[dict[str, Any]], bool] | None:
    """What tells the event that makes a stream whole, by the form of its first event; None for an unknown form."""
    if first.get("type") == "message_start":  # Anthropic's; some relays leave message_stop out
        return lambda event: (
            event.get("type") == "message_stop"
            or (isinstance(event.get("delta"), dict) and bool(event["delta"].get("stop_reason")))
        )
    if type(first.get("done")) is bool:  # Ollama's
        return lambda event: event.get("done") is True
    if type(first.get("stop")) is bool:  # llama.cpp's /completion
        return lambda event: event.get("stop") is True
    if "generated_text" in first and "token" in first:  # text-generation-inference's /generate_stream
        return lambda event: event.get("generated_text") is not None
    return None


class EventList:
    """Events of an unknown API: its answer is the list of their data, since how to merge them is not known.

    Names of events are not kept: APIs that use them (Anthropic's, OpenAI's) repeat them in the data. Where the events
    are of a known form, it is whole with the event that ends that form.
    """

    def __init__(self) -> None:
        self.content_chunks = 0
        self._values: list[Any] = []
        self._is_end: Callable[[dict[str, Any]], bool] | None = None
        self._is_whole = False

    def take(self, _name: str, value: Any) -> Progress:
        if not self._values and isinstance(value, dict):
            self._is_end = end_mark_of(value)
        # A line that is not the last says done: false, which would be half an answer if it were alone.
        verdict = judge_value(value, Shape.OTHER, body=b"") if self._is_end is None else None
        failed = verdict if isinstance(verdict, Failed) else None
        if failed is None and isinstance(value, dict):
            failed = reported_error(value, Shape.OTHER)
        if failed is not None:
            raise NoAnswerError(failed)
        self._values.append(value)
        if self._is_end is not None and isinstance(value, dict) and self._is_end(value):
            self._is_whole = True
        if isinstance(value, dict) and value.get("type") == "message_stop":
            return Progress.COMPLETE
        return Progress.MAY_END if self._is_whole else Progress.MORE

    def end(self) -> Verdict:
        if not self._values:
            return bad_response("the stream has no events")
        if self._is_end is not None and not self._is_whole:
            return broken_off("the stream broke off: no event says that it is the last")
        return completed(dumps(self._values), None)

    def kept_bytes(self) -> int:
        return len(dumps(self._values))
