"""Whole lines from a file descriptor as they come. Reads it in the caller's thread, and never past a timeout."""

from __future__ import annotations

import os
import select
from typing import Final, NamedTuple

from forebay_schemas.contract.topics import REQUEST_BYTES_MAX

LINE_BYTES_MAX: Final = 2 * REQUEST_BYTES_MAX
"""A longer line cannot be a request; it is skipped without being held."""

_READ_BYTES: Final = 256 * 1024


class Line(NamedTuple):
    """A line without its end; ``text`` is None when it was longer than ``LINE_BYTES_MAX``. Numbers start at 1."""

    number: int
    text: bytes | None


class LineSource:
    """Gives a descriptor's lines in batches. At most one line and one read are held beside the batch."""

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
        """Whether all lines have been given."""
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
        read = os.read(self._descriptor, _READ_BYTES)
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
        self._full.append(Line(self._number, None if self._too_long else bytes(self._rest)))
        self._rest.clear()
        self._too_long = False
