"""Any schema of a stranger, with any bytes framed by it, gives a request or our own error, soon.

Pure, but for the long one, which has them read by the process that workers use.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import resource
import time
from collections.abc import Iterator
from typing import Any

import fastavro
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from forebay_schemas.clock import SystemClock
from forebay_schemas.contract.envelope import Request
from forebay_schemas.errors import EnvelopeError
from forebay_schemas.formats.avro_process import ProcessReader
from forebay_schemas.formats.avro_reader import read_all
from forebay_schemas.formats.avro_schema import AvroSchema, Kind, parse_avro_schema
from forebay_schemas.formats.envelope_reader import EnvelopeReader
from harness.strange_avro import EndlessError, broken, strange_schema, value_of

FRAME = b"\0\0\0\0\7"
SECONDS_MAX = 3.0
MEMORY_KIB_MAX = 64 * 1024


class Known:
    """A `SchemaSource` with one schema."""

    def __init__(self, schema: AvroSchema) -> None:
        self.known = schema

    def schema(self, schema_id: int) -> AvroSchema:
        assert schema_id == 7
        return self.known


def parsed(text: str) -> AvroSchema | None:
    try:
        return parse_avro_schema(text)
    except ValueError as error:
        str(error).encode()  # it goes into headers and results
        return None


def values(rng: random.Random, schema: AvroSchema) -> Iterator[bytes]:
    """Some by the schema, some not."""
    yield rng.randbytes(rng.randrange(40))
    with contextlib.suppress(EndlessError):
        value = value_of(rng, schema.root)
        yield value
        for _ in range(4):
            yield broken(rng, value)


def look(reader: EnvelopeReader, value: bytes) -> Request | EnvelopeError:
    try:
        return reader.read(FRAME + value)
    except EnvelopeError as error:
        return error


@settings(deadline=None)
@given(st.integers(0, 2**64))
@example(3)
def test_any_bytes_by_any_schema_are_a_request_or_an_error(seed: int) -> None:
    rng = random.Random(seed)
    schema = parsed(json.dumps(strange_schema(rng)))
    if schema is None:
        return
    reader = EnvelopeReader(Known(schema))
    for value in values(rng, schema):
        began = time.process_time()
        found = look(reader, value)
        if isinstance(found, EnvelopeError):
            assert found.field
            assert found.fix
            assert found.request_id is None or 0 < len(found.request_id) <= 200
            str(found).encode()
        else:
            assert isinstance(json.loads(bytes(found.payload)), dict)
        with contextlib.suppress(EnvelopeError):
            reader.fields(FRAME + value)
        assert time.process_time() - began < SECONDS_MAX


WORDS = ("type", "name", "fields", "items", "values", "symbols", "size", "namespace")
json_values = st.recursive(
    st.sampled_from(["record", "int", "array", "N", 5, None, ""]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=5),
    max_leaves=12,
)


@settings(deadline=None)
@given(st.text(max_size=50) | json_values.map(json.dumps))
@example('{"type": {"type": {"type": "record"}}}')
def test_any_text_is_a_schema_or_a_value_error(text: str) -> None:
    parsed(text)


@settings(deadline=None)
@given(st.integers(0, 2**64))
def test_what_is_by_its_schema_is_read_as_another_library_reads_it(seed: int) -> None:
    rng = random.Random(seed)
    document = strange_schema(rng)
    schema = parsed(json.dumps(document))
    if schema is None or schema.root.kind is not Kind.RECORD:
        return
    try:
        value = value_of(rng, schema.root)
        theirs: Any = fastavro.schemaless_reader(io.BytesIO(value), fastavro.parse_schema(document))
    except Exception:  # noqa: BLE001 - what fastavro has against a schema is no matter here
        return
    assert read_all(value, 0, schema) == theirs


@pytest.mark.long
def test_strangers_hold_no_process_up_and_cost_no_memory() -> None:
    """Two minutes of strange records, and what they are is the same here and there."""
    with contextlib.closing(ProcessReader(clock=SystemClock())) as process:
        end, seed, held_kib = time.monotonic() + 120, random.SystemRandom().getrandbits(32), 0
        while time.monotonic() < end:
            seed += 1
            rng = random.Random(seed)
            schema = parsed(json.dumps(strange_schema(rng)))
            if schema is None:
                continue
            framed = [FRAME + value for value in values(rng, schema)]
            here, there = EnvelopeReader(Known(schema)), EnvelopeReader(Known(schema), foreign=process)
            began = time.monotonic()
            found = there.read_foreign(framed)
            assert time.monotonic() - began < 10 * SECONDS_MAX, seed
            for place, value in enumerate(framed):
                one = look(here, value[len(FRAME) :])
                if place in found:
                    assert str(found[place]) == str(one) or isinstance(one, Request), seed
            now_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            held_kib = held_kib or now_kib
            assert now_kib - held_kib < MEMORY_KIB_MAX, seed
        assert process.ended_count == 0
        assert process.trouble is None
