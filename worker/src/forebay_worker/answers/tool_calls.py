"""Puts the tool calls of a streamed message together from their deltas. Pure."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from forebay_worker.answers.merge import UnmergeableError, merge_field, settled

TOOL_CALLS_MAX: Final = 10_000
"""More in one message than any model makes; the bound is on memory."""

# Each look reads the arguments from their beginning; more than a few brackets within a text are not worth it.
_LOOKS_MAX: Final = 100


class _Call:
    """A call: its fields so far, and what tells its deltas from those of the next one."""

    __slots__ = ("arguments", "fields", "id", "index", "looks", "name")

    def __init__(self, *, call_id: object, index: int | None) -> None:
        self.fields: dict[str, Any] = {}
        self.id = call_id
        self.index = index
        self.name = ""
        self.arguments: list[str] = []
        self.looks = 0


class ToolCalls:
    """The calls of one message.

    A delta joins the call of its index. Without an index (null, missing, or the -1 that vLLM once had as default) it
    joins the call of its id; without either that of its place. It begins a call when there is none to join, and when
    it has another id than the one it would join: some servers give every call the index 0. A fragment of arguments
    without a name never begins one, whatever its id: a call has a name, and there were servers that made up an id for
    every delta.
    """

    __slots__ = ("_by_id", "_by_index", "_order")

    def __init__(self) -> None:
        self._order: list[_Call] = []
        self._by_index: dict[int, _Call] = {}
        self._by_id: dict[object, _Call] = {}

    def __len__(self) -> int:
        return len(self._order)

    def take(self, deltas: object) -> None:
        """Adds the deltas of one chunk. Raises ``UnmergeableError``."""
        if not isinstance(deltas, list):
            raise UnmergeableError("'tool_calls' is no list")
        for place, delta in enumerate(deltas):
            if not isinstance(delta, dict):
                raise UnmergeableError("a tool call is no object")
            self._add(delta, place=place, count=len(deltas))

    def settled(self) -> list[dict[str, Any]]:
        """The calls in the order of their indices, or of their beginnings where indices do not tell them apart."""
        order = self._order
        indices = [call.index for call in order]
        if None not in indices and len(set(indices)) == len(indices):
            order = sorted(order, key=lambda call: call.index or 0)
        return [settled(call.fields) for call in order]

    def _add(self, delta: dict[str, Any], *, place: int, count: int) -> None:
        index = delta.get("index")
        if type(index) is not int or index < 0:
            index = None
        call_id = delta.get("id")
        if not isinstance(call_id, (str, int)) or call_id == "":
            call_id = None
        part = delta.get("function") or delta.get("custom")
        part = part if isinstance(part, dict) else {}
        name, arguments = part.get("name"), part.get("arguments")
        name = name if isinstance(name, str) else ""
        arguments = arguments if isinstance(arguments, str) else ""

        call = self._joined(index, call_id, place=place, count=count)
        if call is None or _begins(call, call_id, name=name, arguments=arguments):
            call = self._begin(call_id, index)
        elif call.id is None and call_id is not None:
            call.id = call_id
            self._by_id.setdefault(call_id, call)
        call.name = call.name or name
        if arguments:
            call.arguments.append(arguments)
        for field, value in delta.items():
            if field == "id":
                merge_field(call.fields, field, call.id)
            elif field != "index":
                merge_field(call.fields, field, value)

    def _joined(self, index: int | None, call_id: object, *, place: int, count: int) -> _Call | None:
        if index is not None:
            return self._by_index.get(index)
        if call_id is not None and call_id in self._by_id:
            return self._by_id[call_id]
        if count > 1:
            return self._order[place] if place < len(self._order) else None
        return self._order[-1] if self._order else None

    def _begin(self, call_id: object, index: int | None) -> _Call:
        if len(self._order) >= TOOL_CALLS_MAX:
            raise UnmergeableError(f"more than {TOOL_CALLS_MAX} tool calls")
        call = _Call(call_id=call_id, index=index)
        self._order.append(call)
        if index is not None:
            self._by_index[index] = call
        if call_id is not None:
            self._by_id.setdefault(call_id, call)
        return call


def _begins(call: _Call, call_id: object, *, name: str, arguments: str) -> bool:
    if call_id is not None and call.id is not None and call_id != call.id:
        return bool(name) or not arguments
    if call_id is not None and call_id == call.id:
        return False
    if not name or not call.arguments:
        return False
    # A name behind arguments and no id that tells: another function, or the same one again. TensorRT-LLM repeats
    # the name in each chunk of a call that was demanded by name, so the same name begins a call only where the
    # arguments so far are whole, and these begin an object of their own.
    if name != call.name:
        return True
    if not arguments.lstrip().startswith("{") or not call.arguments[-1].rstrip().endswith("}"):
        return False
    return _is_whole(call)


def _is_whole(call: _Call) -> bool:
    call.looks += 1
    if call.looks > _LOOKS_MAX:
        return False
    call.arguments = ["".join(call.arguments)]
    try:
        msgspec.json.decode(call.arguments[0], type=msgspec.Raw)
    except (ValueError, RecursionError, msgspec.MsgspecError):
        return False
    return True
