"""Avro schemas, ours and foreign, as trees for decoding: names resolved, every size bounded. Pure.

Made in Python alone: a stranger's schema meets no C code but that of the JSON parser.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

SCHEMA_CHARS_MAX: Final = 500_000
"""Bound on a schema's text and the texts of all schemas it refers to, together."""

SCHEMA_DEPTH_MAX: Final = 64
SCHEMA_TYPES_MAX: Final = 5_000
"""The types in a schema, those it refers to included: a field's primitive type counts as one, and so does a name."""

_SIZE_MAX: Final = 2**62
_PRIMITIVE_SIZES: Final = {"null": 0, "boolean": 1, "float": 4, "double": 8}


class Kind(Enum):
    """How the end of a value is found."""

    SIZED = "sized"
    VARINT = "varint"
    BLOB = "blob"
    RECORD = "record"
    ARRAY = "array"
    MAP = "map"
    UNION = "union"

    # Enum's own hash is written in Python.
    __hash__ = object.__hash__


@dataclass(slots=True, kw_only=True, eq=False)
class Node:
    """One type. Nodes of recursive types form circles.

    ``type``: Avro's own word for it. ``size``: the bytes each value takes; None when that differs. ``names`` and
    ``nodes``: a record's fields, a union's branches (without names); an array's or a map's one type. ``parts``: a
    record's fields for skipping: neighbours of fixed size merged, fields without bytes left out.
    ``plan``: the reader's plan for a record, cached here.
    """

    kind: Kind
    type: str
    size: int | None = None
    names: tuple[str, ...] = ()
    nodes: tuple[Node, ...] = ()
    symbols: tuple[str, ...] = ()
    parts: tuple[Node, ...] = ()
    plan: Any = None

    @property
    def item(self) -> Node:
        """The one type of an array or map."""
        return self.nodes[0]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AvroSchema:
    """A schema that records are written with. ``text`` is its JSON, ``root`` its node: a record, or a union with
    one in it. ``references``: the texts of the schemas it refers to, each after those that it refers to.
    ``types``: how many types it is made of."""

    text: str
    references: tuple[str, ...] = ()
    root: Node
    types: int

    @property
    def records(self) -> list[Node]:
        """The possible record types of a value, usually one."""
        return [self.root] if self.root.kind is Kind.RECORD else _records_of(self.root)


def parse_avro_schema(text: str, references: Sequence[str] = ()) -> AvroSchema:
    """Raises ``ValueError`` with the reason if the text is no Avro schema of a record, or exceeds this module's bounds.

    It is for reading what others wrote, so their defaults, aliases and logical types are not looked at: the envelope
    has numbers, however they are called.
    """
    if len(text) + sum(map(len, references)) > SCHEMA_CHARS_MAX:
        raise ValueError(f"it has more than {SCHEMA_CHARS_MAX:,} characters, with the schemas it refers to")
    names = _Names()
    for reference in references:
        names.resolve(_json(reference))
    root = names.resolve(_json(text))
    if root.kind is not Kind.RECORD and not (root.kind is Kind.UNION and _records_of(root)):
        raise ValueError("not a record")
    return AvroSchema(text=text, references=tuple(references), root=root, types=names.count)


def is_same(schema: Node, ours: Node) -> bool:
    """Whether both encode every value alike, with the same field names. ``ours`` must not be recursive."""
    if (schema.kind, schema.type, schema.names, schema.symbols) != (ours.kind, ours.type, ours.names, ours.symbols):
        return False
    return len(schema.nodes) == len(ours.nodes) and all(map(is_same, schema.nodes, ours.nodes))


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not JSON ({type(error).__name__}: {error})"[:200]) from None


def _records_of(union: Node) -> list[Node]:
    return [branch for branch in union.nodes if branch.kind is Kind.RECORD]


def _primitives() -> dict[str, Node]:
    nodes = {name: Node(kind=Kind.SIZED, type=name, size=size) for name, size in _PRIMITIVE_SIZES.items()}
    nodes |= {name: Node(kind=Kind.VARINT, type=name) for name in ("int", "long")}
    return nodes | {name: Node(kind=Kind.BLOB, type=name) for name in ("bytes", "string")}


_PRIMITIVES: Final[Mapping[str, Node]] = _primitives()


class _Names:
    """Builds the nodes of schemas, each of which may refer to types of earlier ones."""

    def __init__(self) -> None:
        self._named: dict[str, Node] = {}
        self.count = 0

    def resolve(self, schema: Any, namespace: str = "", depth: int = 0) -> Node:
        """The node of one schema. Raises ``ValueError``."""
        self.count += 1
        if depth > SCHEMA_DEPTH_MAX:
            raise ValueError(f"its types are nested deeper than {SCHEMA_DEPTH_MAX}")
        if self.count > SCHEMA_TYPES_MAX:
            raise ValueError(f"it has more than {SCHEMA_TYPES_MAX:,} types")
        if isinstance(schema, str):
            return self._named_before(schema, namespace)
        if isinstance(schema, list):
            return self._union(schema, namespace, depth)
        if not isinstance(schema, dict):
            raise ValueError(f"{_shown(schema)} is no type")
        word = schema.get("type")
        if not isinstance(word, str):
            return self.resolve(word, namespace, depth + 1)
        if word in ("record", "error"):
            return self._record(schema, namespace, depth)
        if word == "enum":
            return self._enum(schema, namespace)
        if word == "fixed":
            return self._fixed(schema, namespace)
        if word in ("array", "map"):
            item = self.resolve(schema.get("items" if word == "array" else "values"), namespace, depth + 1)
            if word == "array" and item.size == 0:
                # Eleven bytes could announce 2^63 of them, and decoding would not end.
                raise ValueError("an array of items that take no bytes")
            return Node(kind=Kind(word), type=word, nodes=(item,))
        return self._named_before(word, namespace)

    def _named_before(self, name: str, namespace: str) -> Node:
        found = _PRIMITIVES.get(name)
        if found is None and namespace and "." not in name:
            found = self._named.get(f"{namespace}.{name}")
        if found is None:
            found = self._named.get(name)
        if found is None:
            raise ValueError(f"it does not say what type {_shown(name)} is")
        return found

    def _union(self, branches: list[Any], namespace: str, depth: int) -> Node:
        nodes = tuple(self.resolve(branch, namespace, depth + 1) for branch in branches)
        if not nodes:
            raise ValueError("a union of nothing")
        if any(node.kind is Kind.UNION for node in nodes):
            raise ValueError("a union directly in a union")
        return Node(kind=Kind.UNION, type="union", nodes=nodes)

    def _record(self, schema: dict[str, Any], namespace: str, depth: int) -> Node:
        node = Node(kind=Kind.RECORD, type="record")
        inside = self._name(node, schema, namespace)
        fields = schema.get("fields")
        if not isinstance(fields, list):
            raise ValueError("a record without a list of fields")
        if not all(isinstance(each, dict) and isinstance(each.get("name"), str) for each in fields):
            raise ValueError("a field without a name")
        node.names = tuple(each["name"] for each in fields)
        node.nodes = tuple(self.resolve(each.get("type"), inside, depth + 1) for each in fields)
        if len(set(node.names)) < len(node.names):
            raise ValueError("a record with two fields of one name")
        node.parts = tuple(joined_parts(node.nodes))
        # A recursive record has no known size at its inner occurrence, so it gets none.
        sizes = [each.size for each in node.parts]
        if all(size is not None for size in sizes):
            node.size = min(sum(size or 0 for size in sizes), _SIZE_MAX)
        return node

    def _enum(self, schema: dict[str, Any], namespace: str) -> Node:
        symbols = schema.get("symbols")
        if not isinstance(symbols, list) or not all(isinstance(symbol, str) for symbol in symbols):
            raise ValueError("an enum without a list of symbols")
        node = Node(kind=Kind.VARINT, type="enum", symbols=tuple(symbols))
        self._name(node, schema, namespace)
        return node

    def _fixed(self, schema: dict[str, Any], namespace: str) -> Node:
        size = schema.get("size")
        if type(size) is not int or not 0 <= size <= _SIZE_MAX:
            raise ValueError("a fixed without a size")
        node = Node(kind=Kind.SIZED, type="fixed", size=size)
        self._name(node, schema, namespace)
        return node

    def _name(self, node: Node, schema: dict[str, Any], namespace: str) -> str:
        """Registers the type under its name; returns the namespace inside it."""
        name, own = schema.get("name"), schema.get("namespace", namespace)
        if not isinstance(name, str) or not name or not isinstance(own, str):
            raise ValueError(f"a type {node.type} without a name")
        full = name if "." in name or not own else f"{own}.{name}"
        if full in self._named or full in _PRIMITIVES:
            raise ValueError(f"two types are called {_shown(full)}")
        self._named[full] = node
        return full.rpartition(".")[0]


def joined_parts(nodes: Iterable[Node]) -> list[Node]:
    """The nodes for skipping: neighbours of fixed size merged, nodes without bytes left out."""
    parts: list[Node] = []
    for node in nodes:
        if node.size is None:
            parts.append(node)
        elif node.size and parts and parts[-1].size is not None:
            parts[-1] = Node(kind=Kind.SIZED, type="fixed", size=min(parts[-1].size + node.size, _SIZE_MAX))
        elif node.size:
            parts.append(Node(kind=Kind.SIZED, type="fixed", size=node.size))
    return parts


def _shown(value: object) -> str:
    return repr(value)[:60]
