"""Prepares the standard streams of a command. Changes descriptors 0 to 2, `sys.argv`, `sys.stdout`.

Imports nothing but the standard library: commands import this before anything else.
"""

from __future__ import annotations

import codecs
import errno
import io
import os
import sys
from typing import Any, Final

EXIT_BROKEN_PIPE: Final = 141
"""The shell's status of a program ended by SIGPIPE (13): 128 more."""

EXIT_CANNOT_WRITE: Final = 1

_IN, _OUT, _ERR = 0, 1, 2
_ESCAPE: Final = "forebay-escape"


def prepare_streams() -> None:
    """To be called before anything is opened.

    - A descriptor that is closed is opened in the way that fails (stdin for writing, stdout for reading), so that
      no file or socket takes its place; for stderr, what is written is lost.
    - A write to stdout that fails ends the command: with 141 in silence when the reader has gone, else with 1 and one
      line on stderr. What would be written after that is dropped.
    - What the encoding of stdout cannot show is written as \\uXXXX, which JSON understands as well.
    - Arguments that are UTF-8 are taken as such where the locale knows ASCII alone.
    """
    for descriptor, mode in ((_IN, os.O_WRONLY), (_OUT, os.O_RDONLY), (_ERR, os.O_WRONLY)):
        if _is_closed(descriptor):
            # The lowest free descriptor is this one, as those below are open.
            os.open(os.devnull, mode)
    # Python's own are None where the descriptor was closed.
    if sys.stdin is None:
        sys.stdin = open(_IN, encoding="utf-8", closefd=False)  # noqa: SIM115 - stays open for good
    if sys.stderr is None:
        sys.stderr = open(_ERR, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    codecs.register_error(_ESCAPE, _escape)
    encoding = "utf-8" if sys.stdout is None else sys.stdout.encoding
    # PYTHONUNBUFFERED is set in images, so that output appears at once.
    by_line = bool(os.environ.get("PYTHONUNBUFFERED")) or os.isatty(_OUT)
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(_Stdout(_OUT, "w", closefd=False)), encoding=encoding, errors=_ESCAPE, line_buffering=by_line
    )
    sys.argv[1:] = [_as_utf8(argument) for argument in sys.argv[1:]]


def flush_stdout() -> None:
    """Called at the end: a write that happens only then can fail then."""
    sys.stdout.flush()


class _Stdout(io.FileIO):
    """Descriptor 1: the first write that fails ends the command."""

    _has_failed = False

    def write(self, data: Any, /) -> int:
        if not self._has_failed:
            try:
                return super().write(data)
            except OSError as error:
                self._has_failed = True
                if error.errno == errno.EPIPE:
                    raise SystemExit(EXIT_BROKEN_PIPE) from None
                reason = "it is closed" if error.errno == errno.EBADF else error.strerror
                sys.stderr.write(f"error: cannot write to stdout: {reason}\n")
                raise SystemExit(EXIT_CANNOT_WRITE) from None
        return memoryview(data).nbytes


def _is_closed(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return True
    return False


def _escape(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass")
    escapes = (f"\\u{units[at] << 8 | units[at + 1]:04x}" for at in range(0, len(units), 2))
    return "".join(escapes), error.end


def _as_utf8(argument: str) -> str:
    """The argument, with bytes that the locale could not decode read as UTF-8."""
    try:
        argument.encode()
    except UnicodeEncodeError:
        try:
            return os.fsencode(argument).decode()
        except UnicodeError:
            pass
    return argument
