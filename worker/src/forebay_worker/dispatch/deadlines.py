"""Deadlines: what has missed its own, or is bound to, ends without being run. Pure but for the reporter it tells."""

from __future__ import annotations

from collections.abc import Callable

from forebay_schemas.contract.reasons import Reason
from forebay_worker.dispatch.shedder import Shedder
from forebay_worker.dispatch.suspects import Suspects
from forebay_worker.lanes.lanes import Lanes
from forebay_worker.outcome.reporter import Reporter
from forebay_worker.pacing.gate import Gate
from forebay_worker.request.work import Work

SWEEP_RECORDS_MAX = 500
"""How many waiting requests are looked at in a sweep for whether they can still meet their deadlines."""

DOOMED_IN_FLIGHT_MIN = 4


class Deadlines:
    """Ends what is late. ``predicts``: whether it is known what requests take; without it none is doomed."""

    def __init__(
        self, *, lanes: Lanes, suspects: Suspects, shedder: Shedder, gate: Gate, reporter: Reporter, predicts: bool
    ) -> None:
        self.dropped_total = 0
        """Given up for their deadlines before they had passed, or while running."""
        self._lanes = lanes
        self._suspects = suspects
        self._shedder = shedder
        self._gate = gate
        self._reporter = reporter
        self._predicts = predicts

    def expire(self, work: Work, now_ms: int) -> bool:
        """Ends a claimed request if its deadline has passed."""
        if work.deadline_ms > now_ms:
            return False
        self._reporter.expired(work, Reason.DEADLINE_PASSED_WAITING)
        return True

    def drop_doomed(self, work: Work, now: float, now_ms: int, *, in_flight: int) -> bool:
        """Ends a claimed request if it would miss its deadline even if it started now.

        Never while little is in flight: what the last answers took may no longer be true, and only answers tell.
        """
        if not self._predicts or in_flight < DOOMED_IN_FLIGHT_MIN:
            return False
        if now_ms + 1000 * self._gate.service_seconds_min(work, now) <= work.deadline_ms:
            return False
        self._drop(work, now)
        return True

    def sweep(self, now: float, now_ms: int, *, in_flight: int) -> None:
        """Drops what missed its deadline, and some of what is bound to; the rest is looked at in the next sweeps."""
        for work in self._lanes.remove_expired(now_ms):
            if work.assignment.claims.claim(work.offset):
                self._reporter.expired(work, Reason.DEADLINE_PASSED_WAITING)
        for work in self._suspects.take_out(lambda work: work.deadline_ms <= now_ms):
            if work.assignment.claims.claim(work.offset):
                self._reporter.expired(work, Reason.DEADLINE_PASSED_WAITING)
        for work in self._lanes.sweep(SWEEP_RECORDS_MAX, self._doomed_at(now, now_ms, in_flight)):
            if work.assignment.claims.claim(work.offset):
                self._drop(work, now)

    def shed(self, now: float, now_ms: int, *, serves: bool) -> None:
        """Goes up or down the overload ladder and drops what its rung asks for. ``serves``: whether the backend
        does."""
        for shed in self._shedder.step(now, now_ms, serves=serves):
            work = shed.work
            self._lanes.remove(work)
            if work.assignment.claims.claim(work.offset):
                self.dropped_total += 1
                self._reporter.shed(work, predicted_seconds=shed.predicted_seconds, cause=self._shedder.ladder.cause)

    def _doomed_at(self, now: float, now_ms: int, in_flight: int) -> Callable[[Work], bool]:
        """As `drop_doomed`, for many: whether a request would miss its deadline even if it started now."""
        pace = self._gate.pace_min(now)
        if not self._predicts or in_flight < DOOMED_IN_FLIGHT_MIN or not pace.output_token_seconds:
            return lambda _: False
        ahead_ms = now_ms + 1000 * pace.ahead_seconds
        prompt_ms, output_ms = 1000 * pace.prompt_token_seconds, 1000 * pace.output_token_seconds
        return lambda work: (
            ahead_ms + prompt_ms * work.prompt_tokens + output_ms * work.output_tokens_min > work.deadline_ms
        )

    def _drop(self, work: Work, now: float) -> None:
        self.dropped_total += 1
        self._reporter.doomed(work, predicted_seconds=self._gate.service_seconds(work, now))
