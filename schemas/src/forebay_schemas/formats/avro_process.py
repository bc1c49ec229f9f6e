"""Decodes records by foreign schemas in a process of its own, so that a record can harm nothing else.

Starts that process on first use, and again after its end; thread-safe. Each call blocks its thread for a
bounded time.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, Protocol

import msgspec
import structlog

from forebay_schemas.clock import Clock
from forebay_schemas.errors import EnvelopeError
from forebay_schemas.formats.avro import avro_fields
from forebay_schemas.formats.avro_child import (
    LENGTH_BYTES,
    MEMORY_BYTES_MAX,
    PROCESSOR_SECONDS_MAX,
    READY,
    Answer,
    Asked,
    NewSchema,
    Refused,
)
from forebay_schemas.formats.avro_reader import AvroFields
from forebay_schemas.formats.avro_schema import AvroSchema

TURN_SECONDS: Final = 0.5
"""For all records of one call; the rest are left for a later call."""

START_SECONDS_MAX: Final = 10.0
SILENCE_SECONDS_MAX: Final = 10.0
"""Time without an answer; twice the processor time that a record may take."""

AGAIN_SECONDS: Final = 5.0
"""Wait before the next start after a failed start or a silence that no record has caused."""

CHUNK_RECORDS_MAX: Final = 256
CHUNK_BYTES_MAX: Final = 4 * 1024 * 1024
SENT_CHARS_MAX: Final = 2_000_000
"""Bound on the schemas sent to one process. Beyond it, a new process is started."""

_COMMAND: tuple[str, ...] = (sys.executable, "-P", "-m", "forebay_schemas.formats.avro_child")
_ANSWER_BYTES_MAX: Final = 256 * 1024 * 1024
_READ_BYTES: Final = 1024 * 1024
_END_SECONDS_MAX: Final = 1.0
_FIX: Final = "check the record's bytes and the schema that it names"

_answer_decoder: Final = msgspec.msgpack.Decoder(Answer)
_encoder: Final = msgspec.msgpack.Encoder()
_log = structlog.get_logger("forebay.schemas")

Foreign = tuple[AvroSchema, bytes, int]
"""A record by a foreign schema: the schema, the value, and the start of the Avro in it."""

Found = AvroFields | EnvelopeError | None
"""None: it could not be decoded now, for a reason outside it."""


class ForeignReader(Protocol):
    """Decodes records by foreign schemas."""

    def read(self, records: Sequence[Foreign]) -> list[Found]:
        """The content of each record, in the order given. Never raises."""
        ...


class HereReader:
    """Decodes them in this process, for commands: only the bounds of `avro_reader` apply."""

    def read(self, records: Sequence[Foreign]) -> list[Found]:
        """As `ForeignReader.read`; nothing is left for later."""
        found: list[Found] = []
        for schema, value, start in records:
            try:
                found.append(avro_fields(value, start, schema))
            except EnvelopeError as error:
                found.append(error)
        return found


class _SilentError(Exception):
    """The process did not start or does not answer. ``str`` is a message for people."""


class ProcessReader:
    """Decodes them in another process. Must be closed."""

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._process: _Process | None = None
        self._again_at = 0.0
        self.ended_count = 0
        """How many times a record has ended the process."""
        self.trouble: str | None = None
        """Why records cannot be decoded now; None if they can."""

    def read(self, records: Sequence[Foreign]) -> list[Found]:
        """As `ForeignReader.read`. Takes `TURN_SECONDS` and what one record may take, or the start of the process."""
        found: list[Found] = []
        if self._lock.acquire(timeout=TURN_SECONDS):
            try:
                if self._clock.monotonic() >= self._again_at:
                    self._read(records, found)
                    self._note_trouble(None)
            except (OSError, _SilentError) as error:
                self._again_at = self._clock.monotonic() + AGAIN_SECONDS
                self._note_trouble(str(error))
                self._end()
            finally:
                self._lock.release()
        return found + [None] * (len(records) - len(found))

    def close(self) -> None:
        """Ends the process. A later `read` starts another."""
        with self._lock:
            self._end()

    def _read(self, records: Sequence[Foreign], found: list[Found]) -> None:
        self._running(records[:1])  # its start is not counted
        end = self._clock.monotonic() + TURN_SECONDS
        one_by_one = False
        while len(found) < len(records) and self._clock.monotonic() < end:
            chunk = [records[len(found)]] if one_by_one else _chunk(records, len(found))
            process = self._running(chunk)
            is_alone = process.served == 0 and len(chunk) == 1
            found += process.exchange(chunk)
            ending = process.ending
            if ending is None:
                continue
            self._end()
            self.ended_count += 1
            # Any unanswered record of the chunk may be the cause. One that ends a new process alone is.
            one_by_one = True
            if is_alone:
                _log.warning("a record ended the process that read it", ending=ending)
                problem = f"ended the process that read it by its schema ({ending})"
                found.append(EnvelopeError("envelope", problem, fix=_FIX))

    def _running(self, chunk: Sequence[Foreign]) -> _Process:
        if self._process is not None and self._process.is_full_with(chunk):
            self._end()
        if self._process is None:
            self._process = _Process()
            self._process.wait_ready()
        return self._process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.end()

    def _note_trouble(self, trouble: str | None) -> None:
        if (trouble is None) != (self.trouble is None):
            if trouble is None:
                _log.info("records by schemas of others are read again")
            else:
                _log.warning("records by schemas of others wait", error=trouble)
        self.trouble = trouble


def _chunk(records: Sequence[Foreign], start: int) -> list[Foreign]:
    """The next records to send together: one at least."""
    chunk, size_bytes = [records[start]], len(records[start][1])
    for record in records[start + 1 : start + CHUNK_RECORDS_MAX]:
        size_bytes += len(record[1])
        if size_bytes > CHUNK_BYTES_MAX:
            break
        chunk.append(record)
    return chunk


class _Process:
    """One run of the process. ``served``: how many records it has answered. ``ending``: how it ended, if so."""

    def __init__(self) -> None:
        """Raises ``OSError`` when it cannot be started."""
        self.served = 0
        self.ending: str | None = None
        self._numbers: dict[AvroSchema, int] = {}
        self._sent_chars = 0
        self._received = bytearray()
        self._taken = 0
        self._child = subprocess.Popen(
            _COMMAND,
            stdin=subprocess.PIPE,  # its end tells the process that this one is gone
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,  # Ctrl-C is this process's to answer
        )
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._in, self._out = self._child.stdin.fileno(), self._child.stdout.fileno()
        os.set_blocking(self._in, False)
        os.set_blocking(self._out, False)

    def wait_ready(self) -> None:
        """Waits for its greeting. Raises ``_SilentError`` without one."""
        while len(self._received) < len(READY):
            if not self._receive(START_SECONDS_MAX):
                raise _SilentError(f"the process that reads them does not start: {self._how_it_ended()}")
        if not self._received.startswith(READY):
            raise _SilentError("the process that reads them starts with strange words")
        del self._received[: len(READY)]

    def is_full_with(self, chunk: Sequence[Foreign]) -> bool:
        """Whether the chunk would exceed the bound on schemas. A new process takes any chunk."""
        return bool(self._numbers) and self._sent_chars + sum(map(_chars, self._new(chunk))) > SENT_CHARS_MAX

    def exchange(self, chunk: Sequence[Foreign]) -> list[Found]:
        """The answers for the chunk; fewer when it ended meanwhile. Raises ``_SilentError`` and ``OSError``."""
        self._send(self._message(chunk))
        found: list[Found] = []
        while self.ending is None and len(found) < len(chunk):
            answer = self._take_answer()
            if answer is not None:
                found.append(answer)
            elif not self._receive(SILENCE_SECONDS_MAX):
                self.ending = self._how_it_ended()
        self.served += len(found)
        return found

    def end(self) -> None:
        """Kills it and closes its pipes."""
        self._child.kill()
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        with suppress(subprocess.TimeoutExpired):
            self._child.wait(_END_SECONDS_MAX)

    def _new(self, chunk: Sequence[Foreign]) -> list[AvroSchema]:
        return list(dict.fromkeys(schema for schema, _, _ in chunk if schema not in self._numbers))

    def _message(self, chunk: Sequence[Foreign]) -> bytes:
        new = []
        for schema in self._new(chunk):
            number = self._numbers[schema] = len(self._numbers)
            self._sent_chars += _chars(schema)
            new.append(NewSchema(number, schema.text, schema.references))
        asked = Asked(new, [(self._numbers[schema], value[start:]) for schema, value, start in chunk])
        body = _encoder.encode(asked)
        return len(body).to_bytes(LENGTH_BYTES, "big") + body

    def _send(self, message: bytes) -> None:
        left = memoryview(message)
        while left:
            if not _wait(self._in, select.POLLOUT, SILENCE_SECONDS_MAX):
                raise _SilentError(f"the process that decodes them accepted nothing for {SILENCE_SECONDS_MAX:g} s")
            try:
                left = left[os.write(self._in, left) :]
            except BlockingIOError:
                continue
            except BrokenPipeError:
                return  # what it answered before is still to be read

    def _receive(self, seconds: float) -> bool:
        """Waits for output. False: the process ended. Raises ``_SilentError`` after ``seconds`` of silence."""
        if not _wait(self._out, select.POLLIN, seconds):
            raise _SilentError(f"the process that decodes them was silent for {seconds:g} s")
        data = os.read(self._out, _READ_BYTES)
        self._received += data
        return bool(data)

    def _take_answer(self) -> Found:
        """The next complete answer, if there is one."""
        received, begin = self._received, self._taken + LENGTH_BYTES
        if len(received) < begin:
            return None
        end = begin + int.from_bytes(received[self._taken : begin], "big")
        if end - begin > _ANSWER_BYTES_MAX:
            raise _SilentError("the process that decodes them announced an impossible length")
        if len(received) < end:
            return None
        try:
            answer = _answer_decoder.decode(received[begin:end])
        except msgspec.MsgspecError:
            raise _SilentError("the process that reads them answers in strange words") from None
        self._taken = end
        if end == len(received):
            received.clear()
            self._taken = 0
        return EnvelopeError(answer.field, answer.problem, fix=answer.fix) if isinstance(answer, Refused) else answer

    def _how_it_ended(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            self._child.wait(_END_SECONDS_MAX)
        code = self._child.returncode
        if code is None:
            return "it closed its output"
        if code == -signal.SIGPROF:
            return f"more than {PROCESSOR_SECONDS_MAX:g} s of the processor"
        if code < 0:
            return f"by {signal.Signals(-code).name}"
        return f"exit status {code}, perhaps more than {MEMORY_BYTES_MAX:,} bytes of memory"


def _chars(schema: AvroSchema) -> int:
    return len(schema.text) + sum(map(len, schema.references))


def _wait(descriptor: int, events: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(descriptor, events)
    return bool(poll.poll(seconds * 1000))
