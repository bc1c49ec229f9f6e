"""What of a handler's answer JSON cannot say, by its field. Pure.

msgspec would write NaN as null, a set as a list and bytes in base64, without a word: who reads the result has another
value than the handler gave.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable
from typing import Any, Final

import msgspec

_PLAIN: Final = frozenset((str, int, bool, type(None)))
_FLOAT: Final = {float}


def why_not_json(body: Any, *, field: str = "body") -> str | None:
    """What is wrong with a value that is to be written as JSON, with the field and the fix; None for nothing.

    Takes about as long as writing it does.
    """
    if type(body) is dict and _are_plain(body.values()):
        return None  # most answers, in a third of the time
    return _of(body, field, set())


def _of(value: Any, field: str, above: set[int]) -> str | None:
    """``above``: the containers that hold it, by their identity."""
    kind = type(value)
    if kind in _PLAIN:
        return None
    if isinstance(value, float):
        if math.isfinite(value):
            return None
        return f"{field}: is {value!r}, which JSON cannot say; give null or leave it out"
    if isinstance(value, set | frozenset):
        return f"{field}: is a set, which has no order and which JSON cannot say; give a list, sorted(...) say"
    if isinstance(value, bytes | bytearray | memoryview):
        return f"{field}: is bytes, which JSON cannot say; give text, base64.b64encode(...).decode() say"
    parts = _parts(value)
    if parts is None:
        return _other(value, field)
    if id(value) in above:
        return f"{field}: holds itself; make it flatter"
    above.add(id(value))
    try:
        for name, part in parts:
            if (problem := _of(part, f"{field}{name}", above)) is not None:
                return problem
    except RecursionError:
        return f"{field}: is nested too deeply; make it flatter"
    above.discard(id(value))
    return None


def _parts(value: Any) -> Iterable[tuple[str, Any]] | None:
    """What a container holds, with what leads there from its own field; none where all of it is plain. None: it is no
    container."""
    if isinstance(value, dict):
        if _are_plain(value.values()):
            return ()
        return ((f".{name}", part) for name, part in value.items())
    if isinstance(value, list | tuple):
        if _are_plain(value):
            return ()
        return ((f"[{index}]", part) for index, part in enumerate(value))
    if isinstance(value, msgspec.Struct):
        return ((f".{name}", getattr(value, name)) for name in value.__struct_fields__)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return ((f".{each.name}", getattr(value, each.name)) for each in dataclasses.fields(value))
    return None


def _are_plain(values: Collection[Any]) -> bool:
    """Whether nothing of them need be looked at one by one."""
    kinds = set(map(type, values))
    return kinds <= _PLAIN or (kinds == _FLOAT and all(map(math.isfinite, values)))


def _other(value: Any, field: str) -> str | None:
    """Times, UUIDs, decimals and enums can be written; what else there is cannot."""
    try:
        msgspec.json.encode(value)
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError):
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        return f"{field}: is a {kind}, which JSON cannot say; give what it stands for"
    return None
