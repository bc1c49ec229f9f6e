"""Ctrl-C as a flag and progress output, for long commands. Sets a signal handler, writes to stderr."""

from __future__ import annotations

import signal
import time
from types import FrameType
from typing import Any, Final

from rich.console import Console
from rich.status import Status
from rich.text import Text

from forebay_producer.cli.common import say
from forebay_schemas.clock import Clock, SystemClock
from forebay_schemas.runtime.terminal import printable, printable_lines

PROGRESS_SECONDS: Final = 10.0
QUIET_SECONDS: Final = 2.0

INTERRUPTED: Final = "interrupted: not all dead letters were looked at; start it again to go on"
GO_ON: Final = "; start the same command again to go on"
"""Appended to the error of a command that failed after part of its work."""


class Interruption:
    """Ctrl-C as a flag: work in progress is finished, so that its result is known. A second Ctrl-C exits at once."""

    def __init__(self) -> None:
        self.came = False
        self._before: Any = None

    def __enter__(self) -> Interruption:
        self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _note(self, _signal: int, _frame: FrameType | None) -> None:
        self.came = True
        signal.signal(signal.SIGINT, signal.SIG_DFL)


class ScanProgress:
    """Progress of a scan, in one terminal line that vanishes with the block; shown after two seconds."""

    def __init__(self, *, live: bool, console: Console | None = None, clock: Clock | None = None) -> None:
        """``live``: whether stderr is a terminal that nothing else is printed to."""
        self._console = console or Console(stderr=True)
        self._clock = clock or SystemClock()
        self._live = live
        self._due = self._clock.monotonic() + QUIET_SECONDS
        self._status: Status | None = None

    def __enter__(self) -> ScanProgress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def show(self, read: int, of: int) -> None:
        """Shows the number of letters read, and of all letters."""
        if not self._live:
            return
        if self._status is None:
            if self._clock.monotonic() < self._due:
                return
            self._status = self._console.status("")
            self._status.start()
        self._status.update(f"{read:,} of {of:,} read")


class Progress:
    """Progress on stderr: continuously in one terminal line if ``live``, else every ten seconds."""

    def __init__(self, *, live: bool) -> None:
        self._console = Console(stderr=True)
        self._status = self._console.status("") if live else None
        if self._status is not None:
            self._status.start()
        self._said_at = time.monotonic()

    def show(self, text: str) -> None:
        if self._status is not None:
            self._status.update(Text(printable(text)))
        elif time.monotonic() - self._said_at >= PROGRESS_SECONDS:
            self._said_at = time.monotonic()
            say(text)

    def note(self, text: str) -> None:
        """Prints a permanent line."""
        if self._status is not None:
            self._console.print(Text(printable_lines(text)))
        else:
            say(text)

    def stop(self) -> None:
        if self._status is not None:
            self._status.stop()
