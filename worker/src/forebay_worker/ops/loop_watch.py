"""Detects that code holds the worker's event loop, how long, and whose code it is. The operations thread steps it."""

from __future__ import annotations

import asyncio
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final

import structlog

STEP_SECONDS: Final = 0.25
HELD_SECONDS_MIN: Final = 1.0
"""Shorter times are ignored: a busy machine causes as much."""

LOOK_SECONDS: Final = 0.5
SAID_SECONDS: Final = 5.0
"""Logged when the loop is free again, and earlier if it is held for this long."""

QUIET_SECONDS: Final = 10.0
"""Between two log lines: a handler that blocks does so with each request."""

_LATE_SECONDS: Final = 1.0
_LIBRARIES: Final = ("<frozen", *{sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_ABOVE: Final = (str(Path(__file__).parents[1]), asyncio.events.__file__)
"""Callers of the user's code: this package, and the loop."""

log = structlog.get_logger("forebay.worker")


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """The code that holds the loop: its request, and the line of the user's own code. None: unknown."""

    request_id: str | None
    place: str | None


NOBODY: Final = Holder(request_id=None, place=None)


class LoopWatch:
    """Asks the loop for a turn, again and again, and measures the delay.

    ``ask``: has the loop call a function. ``look``: the present holder. ``clock``: monotonic seconds. ``whose``: which
    part runs requests, "handler" or "backend".
    """

    def __init__(
        self,
        *,
        ask: Callable[[Callable[[], None]], object],
        look: Callable[[], Holder],
        clock: Callable[[], float],
        whose: str,
    ) -> None:
        self._ask = ask
        self._look = look
        self._clock = clock
        self._whose = whose
        self._asked_at: float | None = None
        self._answered_at: float | None = None
        self._stepped_at: float | None = None
        self._cpu_seconds = 0.0
        self._holder = NOBODY
        self._is_said = False
        self._quiet_until = 0.0
        self._unsaid = 0
        self.holds_total = 0
        """Number of times that the loop was held for `HELD_SECONDS_MIN` or longer."""

    def step(self, now: float, *, cpu_seconds: float) -> None:
        """One reading, every `STEP_SECONDS`. ``cpu_seconds``: of the process, so far."""
        locked_seconds = self._late_seconds(now, cpu_seconds)
        if self._asked_at is not None and self._answered_at is not None:
            self._ended(max(self._answered_at - self._asked_at, locked_seconds), now)
            self._asked_at = None
        if self._asked_at is None:
            self._asked_at, self._answered_at, self._holder, self._is_said = now, None, NOBODY, False
            self._ask(self._answer)
            return
        held = now - self._asked_at
        if held >= LOOK_SECONDS and (found := self._look()) != NOBODY and self._holder.request_id is None:
            self._holder = found
        if held >= SAID_SECONDS and not self._is_said:
            self._is_said = True
            self._log_held("holds", held)

    def held_seconds(self, now: float) -> float:
        """How long the loop has been held; 0 while it turns."""
        asked_at = self._asked_at
        if asked_at is None or self._answered_at is not None:
            return 0.0
        held = now - asked_at
        return held if held >= HELD_SECONDS_MIN else 0.0

    @property
    def request_id(self) -> str | None:
        """The request whose code holds the loop now, if known."""
        return self._holder.request_id

    def words(self, now: float) -> str | None:
        """For /livez and /readyz: the holder of the loop; None while it turns."""
        if not (held := self.held_seconds(now)):
            return None
        return f"the event loop is held for {held:.0f} s by {self._name()}"

    def status(self, now: float) -> dict[str, Any]:
        """For /status."""
        held = self.held_seconds(now)
        return {
            "held_seconds": round(held, 3),
            "request_id": self.request_id if held else None,
            "holds": self.holds_total,
        }

    def _answer(self) -> None:
        """On the loop's own thread."""
        self._answered_at = self._clock()

    def _late_seconds(self, now: float, cpu_seconds: float) -> float:
        """How long this thread could not run because code kept Python's lock; 0 for any other cause.

        The time in which a process was stopped or got no processor does not count: no code held its loop.
        """
        before, cpu_before = self._stepped_at, self._cpu_seconds
        self._stepped_at, self._cpu_seconds = now, cpu_seconds
        if before is None or now - before < _LATE_SECONDS:
            return 0.0
        if cpu_seconds - cpu_before >= (now - before) / 2:
            return now - before
        if self._asked_at is not None:
            self._asked_at += now - before
        return 0.0

    def _ended(self, held: float, now: float) -> None:
        if held < HELD_SECONDS_MIN:
            return
        self.holds_total += 1
        if self._holder == NOBODY and held < SAID_SECONDS:
            return  # the machine may have been busy
        if self._is_said or now >= self._quiet_until:
            self._log_held("held", held)
            self._quiet_until, self._unsaid = now + QUIET_SECONDS, 0
        else:
            self._unsaid += 1

    def _log_held(self, verb: str, held: float) -> None:
        holder = self._holder
        is_handler = self._whose == "handler" and holder.request_id is not None
        if is_handler:
            event = f"a handler {verb} the event loop; call what blocks by asyncio.to_thread"
        else:
            event = f"the event loop {'is' if verb == 'holds' else 'was'} held"
        more = {"others": self._unsaid} if self._unsaid else {}
        log.warning(event, request_id=holder.request_id, held_seconds=round(held, 1), at=holder.place, **more)

    def _name(self) -> str:
        holder = self._holder
        at = "" if holder.place is None else f" at {holder.place}"
        if holder.request_id is None:
            return f"code{at}" if at else "code that is not known"
        if self._whose == "handler":
            return f"the handler of request {holder.request_id}{at}; call what blocks by asyncio.to_thread"
        return f"the work on request {holder.request_id}{at}"


def look_at(
    loop: asyncio.AbstractEventLoop, thread_id: int, request_of: Callable[[asyncio.Task[Any]], str | None]
) -> Holder:
    """The holder of the loop that runs in that thread. From any other thread."""
    task = asyncio.current_task(loop)
    if task is None:
        return NOBODY
    return Holder(request_id=request_of(task), place=place_of(sys._current_frames().get(thread_id)))


def place_of(frame: FrameType | None) -> str | None:
    """The line of the user's own code that a thread executes: the outermost one below ours, where a blocking call would
    be; else the innermost line."""
    if frame is None:
        return None
    found: FrameType = frame
    at: FrameType | None = frame
    while at is not None and not (name := at.f_code.co_filename).startswith(_ABOVE):
        if not name.startswith(_LIBRARIES):
            found = at
        at = at.f_back
    return f"{Path(found.f_code.co_filename).name}:{found.f_lineno} in {found.f_code.co_name}"
