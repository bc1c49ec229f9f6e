"""Decodes values by an Avro schema within bounds of depth and work, for any schema and bytes. Pure, in Python alone.

What is not asked for is passed over and never made. What is made is no larger than the bytes that it stands in, but for
`read_all`, which makes `STEPS_MAX` objects at most.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

import msgspec

from forebay_schemas.contract.envelope_problems import shown
from forebay_schemas.formats.avro_schema import AvroSchema, Kind, Node, joined_parts

DEPTH_MAX: Final = 64
"""How deep a value may be nested; the schema of a recursive type sets no limit."""

STEPS_MAX: Final = 500_000
"""Bound on the values visited inside one, which takes half a second. A run of numbers counts as one."""

SHOWN_BYTES: Final = 100

# Local names: looking a member up in its Enum takes longer than passing over a number.
_SIZED, _VARINT, _BLOB, _RECORD = Kind.SIZED, Kind.VARINT, Kind.BLOB, Kind.RECORD
_ARRAY, _MAP, _UNION = Kind.ARRAY, Kind.MAP, Kind.UNION

# How the value of each of the envelope's fields is converted.
_NOTHING, _NUMBER, _TEXT, _BYTES, _FOREIGN = range(5)
_OF_BLOBS: Final = (_TEXT, _BYTES)

_VARINT_BITS_MAX: Final = 70
_LONG_MASK: Final = 2**64 - 1
_CONTINUED: Final = bytes(range(0x80, 0x100))
_TEXTS: Final = frozenset({"string", "bytes"})
_NUMBERS: Final = frozenset({"int", "long"})
_OPTIONAL: Final = frozenset({"null"})

_ACCEPTED: Final = {
    "request_id": _TEXTS,
    "biz_type": _TEXTS,
    "payload": _TEXTS,
    "priority": _TEXTS | _NUMBERS | _OPTIONAL,
    "ttl_ms": _NUMBERS | _OPTIONAL,
    "expire_at": _NUMBERS | _OPTIONAL,
    "sent_at": _NUMBERS | _OPTIONAL,
    "tenant": _TEXTS | _OPTIONAL,
    "max_attempts": _NUMBERS | _OPTIONAL,
    "reply": _TEXTS | _OPTIONAL,
}
_REQUIRED: Final = ("request_id", "biz_type", "payload")
"""The first of them, in this order."""
_KEPT_AS_BYTES: Final = frozenset({"payload", "reply"})

_MAKE_SIZED: Final[dict[str, Callable[[bytes], Any]]] = {
    "null": lambda _: None,
    "boolean": lambda data: data != b"\0",
    "float": lambda data: struct.unpack("<f", data)[0],
    "double": lambda data: struct.unpack("<d", data)[0],
    "fixed": bytes,
}


class BytesLeftError(ValueError):
    """Bytes follow the end of the value. ``count``: how many bytes."""

    def __init__(self, count: int) -> None:
        super().__init__(f"{count} bytes are left over")
        self.count = count


class AvroFields(msgspec.Struct, array_like=True, tag="fields", gc=False):
    """The envelope's fields as a value has them; None where it has none. Payload and reply are not looked at.

    ``problem``: field and words for the first one that cannot be taken for ours.
    """

    request_id: str | None = None
    biz_type: str | None = None
    payload: bytes | None = None
    priority: int | str | None = None
    ttl_ms: int | None = None
    expire_at: int | None = None
    sent_at: int | None = None
    tenant: str | None = None
    max_attempts: int | None = None
    reply: bytes | None = None
    problem: tuple[str, str] | None = None


def read_fields(value: bytes, start: int, schema: AvroSchema) -> AvroFields:
    """The envelope's fields in ``value`` from ``start`` on. Raises ``ValueError`` for bytes that do not fit."""
    walk = _Walk(value)
    record, at = walk.record(schema.root, start)
    found: list[Any] = [None] * len(_ACCEPTED)
    problem: tuple[str, str] | None = None
    for place, name, ways, is_union, node in _plan_of(record):
        if place < 0:
            at = walk.skip(node, at, 0)
            continue
        branch = 0
        if is_union:
            branch, at = walk.branch_number(node, at)
        way = ways[branch]
        if way == _NUMBER:
            found[place], at = walk.varint(at)
        elif way in _OF_BLOBS:
            size, begin = walk.varint(at)
            at = walk.within(begin, size)
            item = value[begin:at]
            try:
                found[place] = item if way == _BYTES else item.decode()
            except UnicodeDecodeError:
                problem = problem or (name, f"is {shown(item[:SHOWN_BYTES])}, which is not UTF-8")
        elif way == _FOREIGN:
            foreign = node.nodes[branch] if is_union else node
            problem = problem or (name, f"is of type {foreign.type} by the schema that it was written with")
            at = walk.skip(foreign, at, 1)
    walk.require_end(at)
    for place, name in enumerate(_REQUIRED):
        if found[place] is None and problem is None:
            problem = (name, "is no field of the schema that it was written with")
    found.append(problem)
    return AvroFields(*found)


def read_all(value: bytes, start: int, schema: AvroSchema) -> dict[str, Any]:
    """All fields of the value, by name. Raises ``ValueError`` as `read_fields`."""
    walk = _Walk(value)
    record, at = walk.record(schema.root, start)
    datum, at = walk.make(record, at, 0)
    walk.require_end(at)
    return datum  # type: ignore[no-any-return]


def spans(value: bytes, start: int, schema: AvroSchema) -> dict[str, tuple[Node, int, int]]:
    """Where each of the record's fields begins and ends, and its type. Raises ``ValueError`` as `read_fields`."""
    walk = _Walk(value)
    record, at = walk.record(schema.root, start)
    found = {}
    for name, node in zip(record.names, record.nodes, strict=True):
        begin, at = at, walk.skip(node, at, 0)
        found[name] = (node, begin, at)
    walk.require_end(at)
    return found


_Plan = list[tuple[int, str, list[int], bool, Node]]
"""For each field to take: its place in `AvroFields`, its name, the way of each branch, whether it has branches, its
type. Parts to skip have a place below zero."""


def _plan_of(record: Node) -> _Plan:
    plan: _Plan | None = record.plan
    if plan is not None:
        return plan
    made: _Plan = []
    passed: list[Node] = []
    places = {name: place for place, name in enumerate(_ACCEPTED)}
    for name, node in zip(record.names, record.nodes, strict=True):
        if name not in places:
            passed.append(node)
            continue
        made += [(-1, "", [], False, part) for part in joined_parts(passed)]
        passed = []
        is_union = node.kind is _UNION
        ways = [_way_of(branch, name) for branch in (node.nodes if is_union else [node])]
        made.append((places[name], name, ways, is_union, node))
    made += [(-1, "", [], False, part) for part in joined_parts(passed)]
    record.plan = made
    return made


def _way_of(node: Node, name: str) -> int:
    if node.type not in _ACCEPTED[name]:
        return _FOREIGN
    if node.kind is _SIZED:
        return _NOTHING
    if node.kind is _VARINT:
        return _NUMBER
    return _BYTES if name in _KEPT_AS_BYTES else _TEXT


class _Walk:
    """One pass over one value. Every method takes a position; all but the first return the next one."""

    __slots__ = ("_end", "_steps", "_value")

    def __init__(self, value: bytes) -> None:
        self._value = value
        self._end = len(value)
        self._steps = STEPS_MAX

    def require_end(self, at: int) -> None:
        if at < self._end:
            raise BytesLeftError(self._end - at)

    def record(self, root: Node, at: int) -> tuple[Node, int]:
        """The record that the value is, and where its fields begin."""
        if root.kind is not _UNION:
            return root, at
        branch, at = self._branch(root, at)
        if branch.kind is not _RECORD:
            raise ValueError(f"it is a value of type {branch.type}, and not a record")
        return branch, at

    def skip(self, node: Node, at: int, depth: int) -> int:
        """Skips a value."""
        size = node.size
        if size is not None:
            return self.within(at, size)
        kind = node.kind
        if kind is _VARINT:
            return self.varint(at)[1]
        if kind is _BLOB:
            size, at = self.varint(at)
            return self.within(at, size)
        self._step(depth)
        if kind is _UNION:
            branch, at = self._branch(node, at)
            return self.skip(branch, at, depth + 1)
        if kind is _RECORD:
            self._steps -= len(node.parts)
            for part in node.parts:
                at = self.skip(part, at, depth + 1)
            return at
        item = node.nodes[0]
        count, at = self._block(at)
        while count:
            if kind is _MAP:
                at = self._skip_entries(item, count, at, depth)
            elif item.size is not None:
                at = self.within(at, count * item.size)
            elif item.kind is _VARINT:
                at = self._skip_varints(count, at)
            else:
                for _ in range(count):
                    self._step(depth)
                    at = self.skip(item, at, depth + 1)
            count, at = self._block(at)
        return at

    def make(self, node: Node, at: int, depth: int) -> tuple[Any, int]:
        """Decodes a value: ``bytes`` and ``fixed`` to bytes, ``string`` and ``enum`` to text."""
        self._step(depth)
        kind = node.kind
        if kind is _UNION:
            branch, at = self._branch(node, at)
            return self.make(branch, at, depth + 1)
        if kind is _RECORD:
            fields: dict[str, Any] = {}
            for name, each in zip(node.names, node.nodes, strict=True):
                fields[name], at = self.make(each, at, depth + 1)
            return fields, at
        if kind is _ARRAY or kind is _MAP:
            return self._make_many(node, at, depth)
        if kind is _VARINT:
            number, at = self.varint(at)
            if node.type != "enum":
                return number, at
            if not 0 <= number < len(node.symbols):
                raise ValueError(f"symbol {number} of an enum of {len(node.symbols)}")
            return node.symbols[number], at
        if kind is _BLOB:
            size, begin = self.varint(at)
            at = self.within(begin, size)
            text = self._value[begin:at]
            return text.decode() if node.type == "string" else text, at
        end = self.within(at, node.size or 0)
        return _MAKE_SIZED[node.type](self._value[at:end]), end

    def _make_many(self, node: Node, at: int, depth: int) -> tuple[Any, int]:
        item = node.nodes[0]
        listed: list[Any] = []
        named: dict[str, Any] = {}
        count, at = self._block(at)
        while count:
            for _ in range(count):
                if node.kind is _MAP:
                    size, begin = self.varint(at)
                    at = self.within(begin, size)
                    name = self._value[begin:at].decode()
                    named[name], at = self.make(item, at, depth + 1)
                else:
                    made, at = self.make(item, at, depth + 1)
                    listed.append(made)
            count, at = self._block(at)
        return named if node.kind is _MAP else listed, at

    def _skip_entries(self, item: Node, count: int, at: int, depth: int) -> int:
        for _ in range(count):
            self._step(depth)
            size, at = self.varint(at)
            at = self.within(at, size)
            at = self.skip(item, at, depth + 1)
        return at

    def _skip_varints(self, count: int, at: int) -> int:
        # A varint ends with its only byte below 0x80. Each turn looks at as many bytes as there are varints left.
        while count:
            end = self.within(at, count)
            count -= len(self._value[at:end].translate(None, _CONTINUED))
            at = end
        return at

    def _block(self, at: int) -> tuple[int, int]:
        """The number of items in the next block; 0 after the last."""
        self._step(0)
        count, at = self.varint(at)
        if count < 0:
            # Its size in bytes follows; it is not trusted.
            count, at = -count, self.varint(at)[1]
        return count, at

    def _branch(self, union: Node, at: int) -> tuple[Node, int]:
        number, at = self.branch_number(union, at)
        return union.nodes[number], at

    def branch_number(self, union: Node, at: int) -> tuple[int, int]:
        """The value's branch of the union."""
        number, at = self.varint(at)
        if not 0 <= number < len(union.nodes):
            raise ValueError(f"branch {number} of a union of {len(union.nodes)}")
        return number, at

    def varint(self, at: int) -> tuple[int, int]:
        """An int or a long."""
        value = self._value
        try:
            byte = value[at]
            if byte < 0x80:
                return (byte >> 1) ^ -(byte & 1), at + 1
            number, shift = byte & 0x7F, 7
            while byte >= 0x80:
                at += 1
                byte = value[at]
                number |= (byte & 0x7F) << shift
                shift += 7
                if shift > _VARINT_BITS_MAX:
                    raise ValueError("a number of more than 64 bits")
        except IndexError:
            raise ValueError("it breaks off") from None
        return ((number & _LONG_MASK) >> 1) ^ -(number & 1), at + 1

    def within(self, at: int, size: int) -> int:
        """The position ``size`` bytes after ``at``. Raises ``ValueError`` if the value ends before."""
        end = at + size
        if size < 0 or end > self._end:
            raise ValueError("it breaks off" if size >= 0 else "a length below zero")
        return end

    def _step(self, depth: int) -> None:
        self._steps -= 1
        if self._steps < 0:
            raise ValueError(f"it holds more than {STEPS_MAX:,} values")
        if depth > DEPTH_MAX:
            raise ValueError(f"it is nested deeper than {DEPTH_MAX}")
