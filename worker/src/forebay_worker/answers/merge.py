"""Merges the fields of a stream's deltas without loss, in time linear in what came. Pure."""

from __future__ import annotations

from typing import Any, Final

TEXTS: Final = frozenset(
    {
        "content",
        "text",
        "reasoning",
        "reasoning_content",
        "thinking",
        "summary",
        "refusal",
        "arguments",
        "input",
        "data",
        "transcript",
    }
)
"""Fields whose pieces are joined, equal ones too: "ha", "ha" is "haha"."""

STATES: Final = frozenset(
    {
        "id",
        "type",
        "role",
        "index",
        "object",
        "format",
        "finish_reason",
        "native_finish_reason",
        "stop_reason",
        "matched_stop",
        "content_filter_results",
    }
)
"""Fields that are repeated or corrected, not continued: the last value that is not empty counts."""

_OF_PROMPT: Final = "prompt_"
_PIECES_MAX: Final = 1_000


class UnmergeableError(ValueError):
    """Two values of a field that cannot be made one; cutting either would lose a part of the answer."""


class _Text:
    """A text in pieces, and of an unknown field the one value that each chunk repeats so far.

    As soon as two values differ the field is text, and nothing of it may be lost.
    """

    __slots__ = ("_joined", "_pieces", "_repeated", "_times")

    def __init__(self, piece: str, *, is_known: bool) -> None:
        self._joined: list[str] = []
        self._pieces: list[str] = [piece] if is_known else []
        self._repeated = None if is_known else piece
        self._times = 1

    def add(self, piece: str) -> None:
        if self._repeated is not None:
            if not piece or piece == self._repeated:
                self._times += bool(piece)
                return
            if not self._repeated:
                self._repeated, self._times = piece, 1
                return
            self._pieces = [self._repeated * self._times]
            self._repeated = None
        self._pieces.append(piece)
        if len(self._pieces) >= _PIECES_MAX:
            # A string of few characters takes fifty bytes of memory beside them.
            self._joined.append("".join(self._pieces))
            self._pieces = []

    def settled(self) -> str:
        return "".join([*self._joined, *self._pieces]) if self._repeated is None else self._repeated


class _Elements:
    """The elements of a list; those of the same index and type are pieces of one."""

    __slots__ = ("_by_index", "items")

    def __init__(self) -> None:
        self.items: list[Any] = []
        self._by_index: dict[tuple[int, str | None], dict[str, Any]] = {}

    def extend(self, elements: list[Any]) -> None:
        for element in elements:
            index = element.get("index") if type(element) is dict else None
            if type(index) is not int:
                self.items.append(element)
                continue
            kind = element.get("type")
            key = (index, kind if isinstance(kind, str) else None)
            known = self._by_index.get(key)
            if known is None:
                known = self._by_index[key] = {}
                self.items.append(known)
            merge(known, element)


def merge(into: dict[str, Any], delta: dict[str, Any]) -> None:
    """Adds a delta's fields. Raises ``UnmergeableError``. What came together is read with ``settled``."""
    for name, value in delta.items():
        merge_field(into, name, value)


def merge_field(into: dict[str, Any], name: str, value: Any) -> None:
    """Adds one field of a delta.

    A null changes nothing. Text is joined, lists are joined, objects are merged by the same rules; of numbers,
    booleans and ``STATES`` the last counts, and so of what describes the prompt (``prompt_token_ids``,
    ``prompt_logprobs``). Raises ``UnmergeableError`` for values of different types.
    """
    known = into.get(name)
    if value is None:
        if known is None:
            into[name] = None
    elif name in STATES or name.startswith(_OF_PROMPT):
        if known is None or value not in ("", [], {}):
            into[name] = value
    elif type(value) is str:
        _merge_text(into, name, value, known)
    elif type(value) is list:
        _merge_list(into, name, value, known)
    elif type(value) is dict:
        if known is None:
            known = into[name] = {}
        elif type(known) is not dict:
            raise _unmergeable(name, known, value)
        merge(known, value)
    elif known is None or isinstance(known, (int, float)):
        into[name] = value
    else:
        raise _unmergeable(name, known, value)


def add_text(into: dict[str, Any], name: str, piece: str) -> bool:
    """Adds a piece to a field that is text already; False, and nothing is added, where it is not."""
    known = into.get(name)
    if type(known) is not _Text:
        return False
    known.add(piece)
    return True


def settled(value: Any) -> Any:
    """The JSON value of what was merged."""
    if type(value) is _Text:
        return value.settled()
    if type(value) is _Elements:
        return [settled(item) for item in value.items]
    if type(value) is dict:
        return {name: settled(field) for name, field in value.items()}
    return value


def merge_whole(into: dict[str, Any], chunk: dict[str, Any]) -> None:
    """Adds the fields of a chunk that stand beside its choices: of each the last value that is not empty counts.

    Objects (``usage``, ``timings``) keep what only an earlier one said. A list that goes on from the earlier one takes
    its place (citations, which some servers repeat in each chunk), any other is joined to it.
    """
    for name, value in chunk.items():
        known = into.get(name)
        if type(known) is str and value == known:
            continue  # id, object and model, in each chunk
        if name == "created" and known and not value:
            continue  # Azure's notes of its content filter: no id, no model, created at 0
        if known is None or (isinstance(value, (int, float)) and isinstance(known, (int, float))):
            into[name] = list(value) if type(value) is list else value
        elif type(value) is dict and type(known) is dict:
            into[name] = {**known, **{field: new for field, new in value.items() if new is not None}}
        elif type(value) is list and type(known) is list:
            if value[: len(known)] == known:
                known.extend(value[len(known) :])
            elif known[: len(value)] != value:
                known.extend(value)
        elif type(value) is str and type(known) is str:
            into[name] = value or known
        elif value is not None:
            raise _unmergeable(name, known, value)


def _merge_text(into: dict[str, Any], name: str, value: str, known: Any) -> None:
    if known is None:
        into[name] = _Text(value, is_known=name in TEXTS)
    elif type(known) is _Text:
        known.add(value)
    elif type(known) is _Elements and name == "content":
        if value:
            known.extend([{"type": "text", "text": value}])
    else:
        raise _unmergeable(name, known, value)


def _merge_list(into: dict[str, Any], name: str, value: list[Any], known: Any) -> None:
    if type(known) is _Text and name == "content":
        # Mistral's reasoning models answer with parts, then with plain text; here the other way round.
        text, known = known.settled(), None
        value = [{"type": "text", "text": text}, *value] if text else value
    if known is None:
        known = into[name] = _Elements()
    elif type(known) is not _Elements:
        raise _unmergeable(name, known, value)
    known.extend(value)


def _unmergeable(name: str, known: Any, value: Any) -> UnmergeableError:
    names = {_Text: "text", _Elements: "list"}
    return UnmergeableError(
        f"{name!r} is {names.get(type(known), type(known).__name__)} first and {type(value).__name__} then"
    )
