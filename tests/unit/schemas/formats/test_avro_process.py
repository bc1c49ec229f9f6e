"""Records by schemas of others, in their process: what they do to it harms no other record and not this process."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from forebay_schemas.clock import SystemClock
from forebay_schemas.errors import EnvelopeError
from forebay_schemas.formats import avro_child, avro_process
from forebay_schemas.formats.avro_process import Foreign, HereReader, ProcessReader
from forebay_schemas.formats.avro_reader import AvroFields
from forebay_schemas.formats.avro_schema import AvroSchema, parse_avro_schema
from simulated.ports import ManualClock

SCHEMA = parse_avro_schema(
    '{"type":"record","name":"Mine","fields":[{"name":"x","type":"int"},{"name":"request_id","type":"string"},'
    '{"name":"biz_type","type":"string"},{"name":"payload","type":"bytes"}]}'
)
# A child that ends as the record's first number says: the real one is not known to.
FRAGILE = """
import os, resource, signal, sys
from forebay_schemas.formats import avro_child
real = avro_child.avro_fields
def avro_fields(value, start, schema):
    if value[0] == 2: os.kill(os.getpid(), signal.SIGSEGV)
    if value[0] == 4:
        while True: pass
    if value[0] == 6: return bytearray(2**40)
    if value[0] == 8: signal.pause()
    if value[0] == 10 and not os.path.exists(sys.argv[1]):
        open(sys.argv[1], "w").close(); os._exit(9)
    return real(value, start, schema)
avro_child.avro_fields = avro_fields
avro_child.PROCESSOR_SECONDS_MAX = .2
avro_child.main()
"""


def text(data: bytes) -> bytes:
    assert len(data) < 64
    return bytes([2 * len(data)]) + data


def record(number: int = 0, *, request_id: str = "r", schema: AvroSchema = SCHEMA) -> Foreign:
    """A record whose first field is the number; behind a frame of five bytes."""
    return schema, b"\0\0\0\0\1" + bytes([2 * number]) + text(request_id.encode()) + text(b"b") + text(b"{}"), 5


def said(found: list[Any]) -> list[Any]:
    return [item.request_id if isinstance(item, AvroFields) else item and str(item) for item in found]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with capture_logs():
        yield


@pytest.fixture
def reader() -> Iterator[ProcessReader]:
    with closing(ProcessReader(clock=SystemClock())) as reader:
        yield reader


@pytest.fixture
def fragile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ProcessReader]:
    """One whose process is ended by certain records."""
    script = tmp_path / "child.py"
    script.write_text(FRAGILE)
    monkeypatch.setattr(avro_process, "_COMMAND", (*avro_process._COMMAND[:1], str(script), str(tmp_path / "once")))
    monkeypatch.setattr(avro_process, "TURN_SECONDS", 30.0)
    with closing(ProcessReader(clock=SystemClock())) as reader:
        yield reader


def test_what_is_read_there_is_what_is_read_here(reader: ProcessReader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(avro_process, "TURN_SECONDS", 30.0)
    good = [record(number % 60, request_id=f"r-{number}") for number in range(1_000)]
    broken: list[Foreign] = [(SCHEMA, b"\0\0\0\0\1\2", 5), (SCHEMA, good[0][1] + b"x", 5)]
    there, here = reader.read(good + broken), HereReader().read(good + broken)
    assert [str(item) for item in there] == [str(item) for item in here]
    assert said(there)[:2] == ["r-0", "r-1"]
    assert isinstance(there[-1], EnvelopeError)
    assert "has 1 bytes after its end" in str(there[-1])
    assert reader.read([]) == []


def test_a_record_as_large_as_one_may_be_comes_through(reader: ProcessReader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(avro_process, "TURN_SECONDS", 30.0)
    payload = b'{"x":"' + b"y" * (8 * 2**20) + b'"}'
    size = bytearray()
    left = 2 * len(payload)
    while left > 0x7F:
        size.append(left & 0x7F | 0x80)
        left >>= 7
    value = b"\0" + text(b"r") + text(b"b") + bytes(size) + bytes([left]) + payload
    for found in reader.read([(SCHEMA, value, 0)] * 3):
        assert isinstance(found, AvroFields)
        assert found.payload == payload


@pytest.mark.parametrize(
    ("number", "ending"), [(1, "by SIGSEGV"), (2, "0.2 s of the processor"), (3, "takes more than")]
)
def test_a_record_that_ends_the_process_is_refused_and_no_other_is(
    fragile: ProcessReader, number: int, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(avro_process, "PROCESSOR_SECONDS_MAX", 0.2)
    ids = [f"r-{place}" for place in range(20)]
    records = [record(number if place in (7, 13) else 0, request_id=name) for place, name in enumerate(ids)]
    found = said(fragile.read(records))
    for place in (7, 13):
        assert ending in found[place]
    assert [item for place, item in enumerate(found) if place not in (7, 13)] == [
        name for place, name in enumerate(ids) if place not in (7, 13)
    ]
    assert fragile.trouble is None


def test_a_record_in_whose_time_the_process_ends_by_chance_is_not_charged(fragile: ProcessReader) -> None:
    assert said(fragile.read([record(0), record(5, request_id="unlucky"), record(0)])) == ["r", "unlucky", "r"]
    assert fragile.ended_count == 1


def test_silence_is_charged_to_no_record_and_the_process_is_not_asked_for_a_while(
    fragile: ProcessReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(avro_process, "SILENCE_SECONDS_MAX", 0.3)
    assert said(fragile.read([record(0), record(4), record(0)])) == [None, None, None]
    assert "silent for 0.3 s" in (fragile.trouble or "")
    began = time.monotonic()
    assert said(fragile.read([record(0)])) == [None]
    assert time.monotonic() - began < 0.2


def test_a_process_that_does_not_start_is_told_and_tried_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    command, clock = avro_process._COMMAND, ManualClock()
    with closing(ProcessReader(clock=clock)) as reader:
        for broken in ((str(tmp_path / "nothing"),), ("/bin/false",)):
            monkeypatch.setattr(avro_process, "_COMMAND", broken)
            assert said(reader.read([record()])) == [None]
            assert reader.trouble is not None
            clock.advance(avro_process.AGAIN_SECONDS)
        monkeypatch.setattr(avro_process, "_COMMAND", command)
        assert said(reader.read([record()])) == ["r"]
        assert reader.trouble is None


def test_one_that_was_killed_meanwhile_is_started_again(reader: ProcessReader) -> None:
    assert said(reader.read([record()])) == ["r"]
    assert reader._process is not None
    os.kill(reader._process._child.pid, signal.SIGKILL)
    found = said(reader.read([record(), record()]))
    assert found[0] in ("r", None)
    # What the new process was not there in time for is read with the next call.
    for _ in range(50):
        if found == ["r", "r"]:
            break
        found = said(reader.read([record(), record()]))
    assert found == ["r", "r"]


def test_what_one_call_takes_is_bounded_and_the_rest_is_left_for_later(
    reader: ProcessReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader.read([record()])
    monkeypatch.setattr(avro_process, "TURN_SECONDS", 0.0)
    found = said(reader.read([record()] * 2_000))
    assert found == [None] * 2_000
    monkeypatch.setattr(avro_process, "TURN_SECONDS", 0.5)
    assert said(reader.read([record()] * 2)) == ["r", "r"]


def test_a_new_process_takes_over_when_too_many_schemas_were_sent(
    reader: ProcessReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(avro_process, "SENT_CHARS_MAX", 3 * len(SCHEMA.text))
    for _ in range(5):
        schema = parse_avro_schema(SCHEMA.text)
        assert said(reader.read([record(schema=schema), record()])) == ["r", "r"]
    assert reader._process is not None
    assert reader._process._sent_chars <= 3 * len(SCHEMA.text)


def test_the_process_ends_with_its_parent_and_takes_no_more_memory_than_it_may(reader: ProcessReader) -> None:
    reader.read([record()])
    assert reader._process is not None
    child = reader._process._child
    limits = Path(f"/proc/{child.pid}/limits").read_text()
    [line] = [line for line in limits.splitlines() if line.startswith("Max address space")]
    assert int(line.split()[3]) < avro_child.MEMORY_BYTES_MAX + 1024**3
    assert child.stdin is not None
    child.stdin.close()
    assert child.wait(5) == 0
