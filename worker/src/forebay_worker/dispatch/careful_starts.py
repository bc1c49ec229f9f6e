"""Starts that need care after a crash: claimed requests that waited for a commit, and suspects, which run alone.

`suspects` has the rules; here they are carried out. The event loop's thread.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from forebay_schemas.clock import Clock
from forebay_worker.dispatch.breaker import Breaker, BreakerState
from forebay_worker.dispatch.deadlines import Deadlines
from forebay_worker.dispatch.slots import Slots
from forebay_worker.dispatch.suspects import NamedStarts, Suspects
from forebay_worker.outcome.reporter import Reporter
from forebay_worker.request.work import Failure, Work, comes_again
from forebay_worker.telemetry.tracing import Tracing

log = structlog.get_logger("forebay.dispatch")


class CarefulStarts:
    """Claims what is to start, and hands out what may start now of `NamedStarts` and `Suspects`."""

    def __init__(
        self,
        *,
        suspects: Suspects,
        named_starts: NamedStarts,
        slots: Slots,
        deadlines: Deadlines,
        reporter: Reporter,
        breaker: Breaker[tuple[Work, Failure]],
        clock: Clock,
        tracing: Tracing,
    ) -> None:
        self._suspects = suspects
        self._named_starts = named_starts
        self._slots = slots
        self._deadlines = deadlines
        self._reporter = reporter
        self._breaker = breaker
        self._clock = clock
        self._tracing = tracing

    def claim(self, work: Work, now: float) -> bool:
        """Whether the request is claimed and still to be run; else it has ended, or is its new owner's."""
        if not work.assignment.claims.claim(work.offset):
            self._tracing.release(work)
            return False
        if comes_again(work):
            work.assignment.claims.release(work.offset)
            self._tracing.release(work)
            return False
        if work.offset < work.assignment.reread_below and self._reporter.is_known(work, now):
            self._reporter.skip_duplicate(work)  # it ran meanwhile, as its topic's old name
            return False
        now_ms = self._clock.wall_ms()
        if self._deadlines.expire(work, now_ms):
            return False
        return not self._deadlines.drop_doomed(work, now, now_ms, in_flight=len(self._slots.running))

    def take(self, now: float, *, is_stopping: bool, is_recovering: Callable[[float], bool]) -> Work | None:
        """A request that waited for a commit before its start, claimed; or the suspect whose turn it is.

        ``is_recovering``: whether the process stood still until just before that time.
        """
        if self._suspects.is_idle and not self._named_starts:
            return None
        if is_stopping:
            for work in self._named_starts.take_all():
                self._release(work)
            self._suspects.stop(now)
            return None
        if is_recovering(now):
            return None
        return self._take_named(now) or self._take_suspect(now)

    def _take_named(self, now: float) -> Work | None:
        slots = self._slots
        # What was allowed when they were claimed need not be any more.
        while slots.blocked_by(now, len(slots.running), slots.memory_without(self._named_starts)) is None:
            held = self._named_starts.take(now)
            if held is None:
                break
            if not held.assignment.claims.is_open or comes_again(held):
                self._release(held)
                continue
            slots.vacate(held)
            if not self._deadlines.expire(held, self._clock.wall_ms()):
                return held
        return None

    def _take_suspect(self, now: float) -> Work | None:
        in_flight = len(self._slots.running) + len(self._named_starts)
        suspect = self._suspects.step(now, in_flight=in_flight, may_start=lambda: self._could_start(now))
        if suspect is None:
            return None
        claims = suspect.assignment.claims
        is_to_run = claims.is_open and not comes_again(suspect)
        if is_to_run and not self._deadlines.expire(suspect, self._clock.wall_ms()):
            log.warning("a request that was running at two crashes runs alone", request_id=suspect.request_id)
            return suspect
        self._suspects.release(suspect, now)
        if not is_to_run:
            claims.release(suspect.offset)
            self._tracing.release(suspect)
        return None

    def _release(self, work: Work) -> None:
        self._slots.vacate(work)
        work.assignment.claims.release(work.offset)
        self._tracing.release(work)

    def _could_start(self, now: float) -> bool:
        """Whether a request could start if none were running."""
        return self._breaker.state is BreakerState.CLOSED and self._slots.blocked_by(now, 0, 0) is None
