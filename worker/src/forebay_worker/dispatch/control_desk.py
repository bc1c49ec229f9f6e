"""Cancels and expedites, carried out on what waits here, and answered. The event loop's thread; no I/O of its own."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial

from forebay_schemas.clock import Clock
from forebay_schemas.contract.control import Control, ControlAction, ControlOutcome
from forebay_worker.dispatch.suspects import Suspects
from forebay_worker.lanes.lanes import Lanes
from forebay_worker.outcome.reporter import Reporter
from forebay_worker.request.controls import CONTROLS_MAX, RECENT_MS, Controls
from forebay_worker.request.work import Work

SECOND_LOOK_SECONDS = 1.0
"""A request that is not found may be just ending: then its outcome is known so much later."""

Stamped = tuple[Control, int]
"""A control and the broker's stamp on it, in epoch milliseconds."""


class ControlDesk:
    """Applies what is wanted of requests; what runs and is cancelled is the executor's to stop."""

    def __init__(
        self, *, controls: Controls, lanes: Lanes, suspects: Suspects, reporter: Reporter, clock: Clock
    ) -> None:
        self._controls = controls
        self._lanes = lanes
        self._suspects = suspects
        self._reporter = reporter
        self._clock = clock
        self._second_looks: deque[tuple[float, ControlAction, str]] = deque(maxlen=CONTROLS_MAX)

    def ending(self, work: Work, now_ms: int) -> Callable[[], None] | None:
        """How a request ends here of which something is wanted; None when it goes on waiting."""
        if not self._controls.entries:
            return None
        wanted = self._controls.wanted(work)
        if wanted is ControlAction.CANCEL:
            return partial(self._reporter.cancelled, work)
        if wanted is ControlAction.EXPEDITE and work.deadline_ms > now_ms:
            return partial(self._reporter.expedite, work)
        return None

    def is_cancelled(self, work: Work) -> bool:
        """Whether its end is wanted."""
        return bool(self._controls.entries) and self._controls.wanted(work) is ControlAction.CANCEL

    def take_fresh(self) -> list[Stamped]:
        """What was heard since the last call."""
        self._controls.take_received()
        return self._controls.take_fresh()

    def end_waiting(self, request_ids: set[str]) -> None:
        """Ends those of these requests that wait here and are to end."""
        now_ms = self._clock.wall_ms()
        for work in self._lanes.having(request_ids):
            end = self.ending(work, now_ms)
            if end is None:
                continue
            self._lanes.remove(work)
            if work.assignment.claims.claim(work.offset):
                end()
        for work in self._suspects.take_out(lambda work: self.ending(work, now_ms) is not None):
            end = self.ending(work, now_ms)
            if end is not None and work.assignment.claims.claim(work.offset):
                end()

    def answer(self, fresh: list[Stamped], now: float, *, running: Iterable[Work]) -> None:
        """Publishes of what needs nothing to be done why it needs nothing, where somebody may wait for it."""
        recent_ms = self._clock.wall_ms() - RECENT_MS
        asked = {each.request_id for each, stamped_ms in fresh if stamped_ms >= recent_ms}
        found = {work.request_id: work for work in running if work.request_id in asked}
        for control, stamped_ms in fresh:
            if stamped_ms < recent_ms:
                continue
            if found.get(control.request_id) is None:
                self._second_looks.append((now + SECOND_LOOK_SECONDS, control.action, control.request_id))
            elif control.action is ControlAction.EXPEDITE:
                self._reporter.answer_control(control.action, control.request_id, ControlOutcome.RUNNING)

    def look_again(self, now: float) -> None:
        """Answers for requests that were not found a second ago and have ended by now."""
        while self._second_looks and self._second_looks[0][0] <= now:
            _, action, request_id = self._second_looks.popleft()
            if self._reporter.is_known_id(request_id, now):
                self._reporter.answer_control(action, request_id, ControlOutcome.FINISHED)
