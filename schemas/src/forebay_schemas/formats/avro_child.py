"""The process that decodes records by foreign schemas: `python -m forebay_schemas.formats.avro_child`.

Reads messages from stdin until its end, and writes one answer per record to stdout, each after its length. The kernel
limits the memory and the processor time of a record. Logs nothing and keeps no record.
"""

from __future__ import annotations

import gc
import os
import resource
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from forebay_schemas.errors import EnvelopeError
from forebay_schemas.formats.avro import avro_fields
from forebay_schemas.formats.avro_reader import AvroFields
from forebay_schemas.formats.avro_schema import AvroSchema, parse_avro_schema

LENGTH_BYTES: Final = 4
READY: Final = b"\xff\xff\xff\xff"
"""The greeting before the first answer: a length that no answer has."""

MEMORY_BYTES_MAX: Final = 256 * 1024 * 1024
"""Above the memory that the process has at its start."""

PROCESSOR_SECONDS_MAX: Final = 5.0
"""For one record; then the kernel ends the process. The bounds of `avro_reader` take a tenth of it."""

_FLUSH_BYTES: Final = 64 * 1024


class NewSchema(msgspec.Struct, array_like=True):
    """A new schema, and the number by which later records refer to it."""

    number: int
    text: str
    references: tuple[str, ...]


class Asked(msgspec.Struct, array_like=True):
    """Records to decode: for each the number of its schema, and its Avro."""

    schemas: list[NewSchema]
    records: list[tuple[int, bytes]]


class Refused(msgspec.Struct, array_like=True, tag="refused"):
    """The answer for a record that is not an envelope: the fields of `EnvelopeError`."""

    field: str
    problem: str
    fix: str


Answer = AvroFields | Refused

_asked_decoder: Final = msgspec.msgpack.Decoder(Asked)
_encoder: Final = msgspec.msgpack.Encoder()


def main() -> None:
    """Serves until stdin ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _limit_memory()
    # Nothing here creates lasting reference cycles.
    gc.freeze()
    gc.disable()
    asked, answers = sys.stdin.buffer, sys.stdout.buffer
    answers.write(READY)
    answers.flush()
    schemas: dict[int, AvroSchema] = {}
    while len(length := asked.read(LENGTH_BYTES)) == LENGTH_BYTES:
        message = _asked_decoder.decode(asked.read(int.from_bytes(length, "big")))
        for new in message.schemas:
            schemas[new.number] = parse_avro_schema(new.text, new.references)
        _answer(message, schemas, answers)


def _answer(message: Asked, schemas: dict[int, AvroSchema], answers: BinaryIO) -> None:
    waiting = bytearray()
    for number, value in message.records:
        # Its signal ends the process, in C code too.
        signal.setitimer(signal.ITIMER_PROF, PROCESSOR_SECONDS_MAX)
        answer = _encoder.encode(_read(value, schemas[number]))
        waiting += len(answer).to_bytes(LENGTH_BYTES, "big") + answer
        if len(waiting) >= _FLUSH_BYTES:
            answers.write(waiting)
            answers.flush()
            waiting.clear()
    signal.setitimer(signal.ITIMER_PROF, 0)
    answers.write(waiting)
    answers.flush()


def _read(value: bytes, schema: AvroSchema) -> Answer:
    try:
        return avro_fields(value, 0, schema)
    except EnvelopeError as error:
        return Refused(error.field, error.problem, error.fix)
    except MemoryError:
        return Refused("envelope", f"takes more than {MEMORY_BYTES_MAX:,} bytes to be read", "make it smaller")


def _limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    size_bytes = pages * os.sysconf("SC_PAGE_SIZE") + MEMORY_BYTES_MAX
    with suppress(ValueError, OSError):
        # A lower limit that is already set stays.
        resource.setrlimit(resource.RLIMIT_AS, (size_bytes, size_bytes))


if __name__ == "__main__":
    with suppress(BrokenPipeError, KeyboardInterrupt):
        main()
