"""Reads whole lines from a file descriptor or stdin, in the caller's thread, with a timeout."""

from __future__ import annotations

import errno
import os
import select
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from forebay_schemas.contract.request_lines import BYTE_ORDER_MARK
from forebay_schemas.contract.topics import REQUEST_BYTES_MAX
from forebay_schemas.errors import ForebayError, UsageError

LINE_BYTES_MAX: Final = 2 * REQUEST_BYTES_MAX
"""A longer line cannot be a request; it is skipped without buffering."""

_READ_BYTES: Final = 256 * 1024
_BATCH_LINES: Final = 2000
_WAIT_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Line:
    """A line without its end, and without the byte order mark that some editors begin a file with (files that were
    put together have several). ``text`` is None when it was longer than ``LINE_BYTES_MAX``. Numbers start at 1."""

    number: int
    text: bytes | None


class LineSource:
    """Returns a descriptor's lines in batches. Buffers at most one line and one read beside the batch."""

    def __init__(self, descriptor: int, *, batch_lines: int) -> None:
        self._descriptor = descriptor
        self._batch_lines = batch_lines
        self._rest = bytearray()
        self._too_long = False
        self._number = 0
        self._full: list[Line] = []
        self._at_end = False

    @property
    def ended(self) -> bool:
        """Whether all lines have been returned."""
        return self._at_end and not self._full

    def take(self, *, timeout_seconds: float) -> list[Line]:
        """The next lines, at most ``batch_lines``; those that are there already do not wait for others.

        Empty when none came within the timeout, or at the end.
        """
        while len(self._full) < self._batch_lines and not self._at_end:
            # A file is always ready; a pipe or a terminal when someone has written.
            ready, _, _ = select.select([self._descriptor], [], [], 0 if self._full else timeout_seconds)
            if not ready:
                break
            self._read()
        batch, self._full = self._full[: self._batch_lines], self._full[self._batch_lines :]
        return batch

    def _read(self) -> None:
        try:
            read = os.read(self._descriptor, _READ_BYTES)
        except OSError as error:
            raise ForebayError(f"cannot read on after line {self._number}: {error.strerror}") from None
        if not read:
            self._at_end = True
            if self._rest or self._too_long:
                self._end_line()
            return
        *ended, rest = read.split(b"\n")
        for part in ended:
            self._extend(part)
            self._end_line()
        self._extend(rest)

    def _extend(self, part: bytes) -> None:
        if len(self._rest) + len(part) > LINE_BYTES_MAX:
            self._too_long = True
            self._rest.clear()
        if not self._too_long:
            self._rest += part

    def _end_line(self) -> None:
        self._number += 1
        text = None if self._too_long else bytes(self._rest).removeprefix(BYTE_ORDER_MARK)
        self._full.append(Line(self._number, text))
        self._rest.clear()
        self._too_long = False


def stdin_descriptor(*, field: str) -> int:
    """The descriptor of stdin. Raises ``UsageError`` naming ``field`` when it is closed or cannot be read."""
    try:
        os.read(descriptor := sys.stdin.fileno(), 0)
    except OSError as error:
        problem = "stdin is closed" if error.errno == errno.EBADF else f"stdin: {error.strerror}"
        raise UsageError(field, problem, fix="redirect the input with < or |") from None
    return descriptor


def stdin_lines(*, field: str) -> Iterator[Line]:
    """All lines of stdin, to its end."""
    source = LineSource(stdin_descriptor(field=field), batch_lines=_BATCH_LINES)
    while not source.ended:
        yield from source.take(timeout_seconds=_WAIT_SECONDS)
