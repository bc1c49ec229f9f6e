"""The breaker: a backend that serves nobody stops dispatch, but for one probe, and no request is blamed. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import Generic, TypeVar

PROBE_SECONDS_MIN = 0.5
PROBE_SECONDS_MAX = 5.0
PROBE_OVERDUE_SECONDS = 10.0
"""A probe that is neither answered nor refused for so long is joined by another: a hung one must not hold up all."""

RETRY_AFTER_SECONDS_MAX = 60.0
SUSPECT_SECONDS_MAX = 1.0

_Request = TypeVar("_Request")


class BreakerState(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    PROBING = "probing"


class Breaker(Generic[_Request]):
    """Guards one backend. Times are monotonic seconds.

    A failure that speaks of the backend (refused, reset, 429, 502, 503, 529) counts against its request only if the
    backend serves others. What happens next tells: the request becomes a suspect, and the next answer to another one
    convicts it, while the next such failure, a second without evidence, or nothing else in flight acquits it.

    Two such failures with no answer in between, or one with nothing else in flight, open the breaker: nothing is
    started but one probe at a time, after 0.5 s, 1 s, 2 s, 4 s, then each 5 s, later if the backend asks for it.
    The first answer closes it.
    """

    __slots__ = (
        "_probe_at",
        "_probe_started",
        "_suspect",
        "_suspect_until",
        "_wait_seconds",
        "last_answer",
        "opened_count",
        "state",
    )

    def __init__(self) -> None:
        self.state = BreakerState.CLOSED
        self.opened_count = 0
        self.last_answer = float("-inf")
        self._wait_seconds = 0.0
        self._probe_at = 0.0
        self._probe_started = 0.0
        self._suspect: _Request | None = None
        self._suspect_until = 0.0

    @property
    def probe_at(self) -> float | None:
        """When the next probe may start; None unless the breaker is open."""
        return self._probe_at if self.state is BreakerState.OPEN else None

    def admits(self, now: float) -> bool:
        """Whether a request may be started; while the breaker is open, it would be the probe."""
        if self.state is BreakerState.OPEN:
            return now >= self._probe_at
        return self.state is BreakerState.CLOSED or now >= self._probe_started + PROBE_OVERDUE_SECONDS

    def started(self, now: float) -> None:
        """A request was started."""
        if self.state is not BreakerState.CLOSED:
            self.state = BreakerState.PROBING
            self._probe_started = now

    def answered(self, now: float) -> _Request | None:
        """A request was answered: served, or refused for its own sake. Returns the suspect that this convicts."""
        self.last_answer = now
        self.state = BreakerState.CLOSED
        self._wait_seconds = 0.0
        self._probe_at = 0.0
        return self._take_suspect()

    def backend_failed(
        self, now: float, request: _Request, *, started: float, in_flight: int, retry_after_seconds: float | None
    ) -> list[_Request]:
        """A request begun at ``started`` failed by the backend's state, with ``in_flight`` others still running.

        Returns those that go back to their lane, uncharged.
        """
        acquitted = self._take_suspect()
        if self.state is BreakerState.CLOSED and acquitted is None and in_flight:
            self._suspect, self._suspect_until = request, now + SUSPECT_SECONDS_MAX
            return []
        if self.state is BreakerState.CLOSED:
            self.opened_count += 1
        # What was started before the probe says nothing new.
        if self.state is BreakerState.CLOSED or self.is_probe(started):
            self._open(now, min(PROBE_SECONDS_MAX, max(PROBE_SECONDS_MIN, self._wait_seconds * 2)))
        if retry_after_seconds is not None:
            self._probe_at = max(self._probe_at, now + min(retry_after_seconds, RETRY_AFTER_SECONDS_MAX))
        return [request] if acquitted is None else [acquitted, request]

    def ended(self, now: float, *, started: float, again_seconds: float | None = None) -> None:
        """A request begun at ``started`` ended without saying anything of the backend; if it was the probe, again.

        ``again_seconds``: after which time; the same as before it unless given.
        """
        if self.is_probe(started):
            if again_seconds is None:
                self._open(now, self._wait_seconds)
            else:
                self.state = BreakerState.OPEN
                self._probe_at = now + again_seconds

    def is_probe(self, started: float) -> bool:
        """Whether a request begun at ``started`` is the probe that runs."""
        return self.state is BreakerState.PROBING and started >= self._probe_started

    def open(self, now: float) -> None:
        """Stops dispatch until a probe is answered, which may start at once."""
        self.opened_count += 1
        self._open(now, 0.0)

    def release_suspect(self, now: float) -> _Request | None:
        """The suspect that nothing convicted in time, uncharged."""
        return self._take_suspect() if now >= self._suspect_until else None

    def _open(self, now: float, wait_seconds: float) -> None:
        self.state = BreakerState.OPEN
        self._wait_seconds = wait_seconds
        # Later if the backend asked for it while the probe ran.
        self._probe_at = max(self._probe_at, now + wait_seconds)

    def _take_suspect(self) -> _Request | None:
        suspect, self._suspect = self._suspect, None
        return suspect
