"""The process that reads records by schemas of others: `python -m forebay_schemas.formats.avro_child`.

It reads messages from stdin until that ends and writes an answer a record to stdout, each behind its length. What a
record may take of memory and processor time is limited by the kernel. It says nothing else, and keeps no record.
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
"""Written once, before the first answer; no answer is as long."""

MEMORY_BYTES_MAX: Final = 256 * 1024 * 1024
"""Beyond what the process has when it starts."""

PROCESSOR_SECONDS_MAX: Final = 5.0
"""For one record. It is ended by the kernel then; the bounds of `avro_reader` are reached in a tenth of it."""

_FLUSH_BYTES: Final = 64 * 1024


class NewSchema(msgspec.Struct, array_like=True):
    """A schema under the number that records name it by from now on."""

    number: int
    text: str
    references: tuple[str, ...]


class Asked(msgspec.Struct, array_like=True):
    """Records to be read: for each the number of its schema, and the Avro."""

    schemas: list[NewSchema]
    records: list[tuple[int, bytes]]


class Refused(msgspec.Struct, array_like=True, tag="refused"):
    """The answer for a record that is no envelope: as `EnvelopeError`."""

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
    # Nothing here makes cycles that live on.
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
        # Its signal ends the process: a limit that holds in C code too.
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
        # Somebody may have set a lower one, which then holds.
        resource.setrlimit(resource.RLIMIT_AS, (size_bytes, size_bytes))


if __name__ == "__main__":
    with suppress(BrokenPipeError, KeyboardInterrupt):
        main()
