"""Avro schemas and values as a stranger may write them, drawn from a seed: right, recursive, broken, hostile. Pure."""

from __future__ import annotations

import json
import random
import struct
from typing import Any

from forebay_schemas.formats.avro_schema import Kind, Node

_FIELDS = (
    ("request_id", ("string", "bytes", ["null", "string"])),
    ("biz_type", ("string",)),
    ("payload", ("bytes", "string")),
    ("priority", ("int", ["null", "int", "string"], ["string", "null"])),
    ("ttl_ms", (["null", "long"], "int")),
    ("reply", (["null", "bytes"], "string")),
)
_PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
_LENGTHS = (0, 1, 2, 3, 60, 2**31, 2**62, -1, -2, -(2**63), 2**63 - 1)
_DEPTH_MAX = 6
_VALUE_DEPTH_MAX = 12


def strange_schema(rng: random.Random) -> Any:
    """The JSON of a schema, mostly one of a record, often with the envelope's fields."""
    names: list[str] = []
    fields = [
        {"name": name, "type": rng.choice(kinds) if rng.random() < 0.9 else _type(rng, names, 1)}
        for name, kinds in _FIELDS
        if rng.random() < 0.9
    ]
    for number in range(rng.randrange(5)):
        fields.insert(rng.randrange(len(fields) + 1), {"name": f"f{number}", "type": _type(rng, names, 1)})
    record = {"type": "record", "name": "Top", "namespace": rng.choice(["", "a.b"]), "fields": fields}
    return rng.choice([record] * 8 + [["null", record], [record, "int"], _type(rng, names, 0)])


def _type(rng: random.Random, names: list[str], depth: int) -> Any:
    kind = rng.choice(("primitive", "array", "map", "union", "record", "enum", "fixed", "name"))
    if depth >= _DEPTH_MAX or kind == "primitive":
        return rng.choice((rng.choice(_PRIMITIVES), {"type": rng.choice(_PRIMITIVES), "logicalType": "x"}))
    if kind == "array":
        return {"type": "array", "items": _type(rng, names, depth + 1)}
    if kind == "map":
        return {"type": "map", "values": _type(rng, names, depth + 1)}
    if kind == "union":
        return ["null", *(_type(rng, names, depth + 1) for _ in range(rng.randrange(3)))]
    if kind == "name" and names:
        return rng.choice([rng.choice(names), "Top", "nobody"])
    name = f"N{len(names)}"
    names.append(name)
    if kind == "enum":
        return {"type": "enum", "name": name, "symbols": [f"S{n}" for n in range(rng.randrange(1, 4))]}
    if kind == "fixed":
        return {"type": "fixed", "name": name, "size": rng.choice((0, 1, 4, 10**6, 2**40))}
    fields = [{"name": f"g{n}", "type": _type(rng, names, depth + 1)} for n in range(rng.randrange(4))]
    return {"type": "record", "name": name, "fields": fields}


class EndlessError(Exception):
    """The type has no value that ends soon."""


def value_of(rng: random.Random, root: Node) -> bytes:
    """A value that is by the schema. Raises ``EndlessError``."""
    out = bytearray()
    _write(rng, root, out, 0, "")
    return bytes(out)


def broken(rng: random.Random, value: bytes) -> bytes:
    """The value with a piece replaced by what a stranger may put there."""
    piece = rng.choice(
        [
            rng.randbytes(rng.randrange(6)),
            varint(rng.choice(_LENGTHS)),
            b"\xff" * rng.randrange(12),
            b"\x00" * rng.randrange(300),
            b"\x02" * rng.randrange(3_000),
            value[: rng.randrange(len(value) + 1)] * rng.randrange(30),
        ]
    )
    at = rng.randrange(len(value) + 1)
    return value[:at] + piece + value[at + rng.randrange(8) :]


def varint(number: int) -> bytes:
    """A long."""
    left, out = (number << 1) ^ (number >> 63), bytearray()
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    out.append(left)
    return bytes(out)


def _write(rng: random.Random, node: Node, out: bytearray, depth: int, name: str) -> None:
    if depth > _VALUE_DEPTH_MAX or len(out) > 100_000:
        raise EndlessError
    if node.kind is Kind.UNION:
        number = 0 if depth > _VALUE_DEPTH_MAX - 4 else rng.randrange(len(node.nodes))
        out += varint(number)
        _write(rng, node.nodes[number], out, depth + 1, name)
    elif node.kind is Kind.RECORD:
        for field, each in zip(node.names, node.nodes, strict=True):
            _write(rng, each, out, depth + 1, field)
    elif node.kind in (Kind.ARRAY, Kind.MAP):
        for _ in range(0 if depth > _VALUE_DEPTH_MAX - 4 else rng.randrange(3)):
            items = bytearray()
            count = rng.randrange(1, 3)
            for _ in range(count):
                if node.kind is Kind.MAP:
                    items += varint(2) + rng.choice((b"ab", b"cd", b"\xc3\xbc"))
                _write(rng, node.item, items, depth + 1, "")
            out += varint(count) if rng.random() < 0.7 else varint(-count) + varint(len(items))
            out += items
        out += b"\x00"
    elif node.kind is Kind.BLOB:
        data = _text(rng, node, name)
        out += varint(len(data)) + data
    elif node.kind is Kind.VARINT:
        bits = 31 if node.type == "int" else 63
        out += varint(rng.randrange(len(node.symbols)) if node.symbols else rng.choice((0, 5, -1, 2**bits - 1)))
    elif node.type in ("float", "double"):
        out += struct.pack("<f" if node.type == "float" else "<d", rng.choice((0.0, -1.5, 1e30)))
    elif node.type == "boolean":
        out.append(rng.randrange(2))
    elif (node.size or 0) > 1_000:
        raise EndlessError
    else:
        out += rng.randbytes(node.size or 0)


def _text(rng: random.Random, node: Node, name: str) -> bytes:
    if name in ("payload", "reply"):
        return json.dumps(rng.choice(({}, {"model": "m", "n": [1, None]}, []))).encode()
    if node.type == "string":
        return rng.choice(("", "high", "r-1", "ü\0", "x" * 300)).encode()
    return rng.choice((b"", b"r-1", b"\xff", b"y" * 70))
