"""What long commands share: Ctrl-C as a flag, and how far they are. Sets a signal handler, writes to stderr."""

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
"""Ends what is said of a failure that came when part of the work was done."""


class Interruption:
    """Ctrl-C as a flag: what is under way is finished, so that what was accepted is known. A second ends at once."""

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
    """How far a scan is, in one line of a terminal that is gone with the block; said once it takes two seconds."""

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
        """So many letters of so many are read."""
        if not self._live:
            return
        if self._status is None:
            if self._clock.monotonic() < self._due:
                return
            self._status = self._console.status("")
            self._status.start()
        self._status.update(f"{read:,} of {of:,} read")


class Progress:
    """Says on stderr how far it is: ``live``, all the time in one line of a terminal, else every ten seconds."""

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
        """A line that stays."""
        if self._status is not None:
            self._console.print(Text(printable_lines(text)))
        else:
            say(text)

    def stop(self) -> None:
        if self._status is not None:
            self._status.stop()
