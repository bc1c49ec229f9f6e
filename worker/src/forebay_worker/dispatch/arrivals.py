"""What an intake hands over: some of it ends at once, the rest waits in its lane. The event loop's thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from forebay_schemas.contract.reasons import REASONS_BY_CODE, Reason
from forebay_worker.dispatch.control_desk import ControlDesk
from forebay_worker.dispatch.wait_estimates import WaitEstimates
from forebay_worker.lanes.lanes import Lanes
from forebay_worker.outcome.reporter import Reporter
from forebay_worker.pacing.gate import Gate
from forebay_worker.pacing.prediction import Predictor
from forebay_worker.partition.assignment import CONVICTED_CRASHES
from forebay_worker.request.copies import is_more_urgent
from forebay_worker.request.work import Failure, Work, comes_again

Ending = Callable[[], None]


class Arrivals:
    """``predictor``: None where neither order nor limit asks for tokens."""

    def __init__(
        self,
        *,
        lanes: Lanes,
        desk: ControlDesk,
        reporter: Reporter,
        gate: Gate,
        predictor: Predictor | None,
        estimates: WaitEstimates,
    ) -> None:
        self._lanes = lanes
        self._desk = desk
        self._reporter = reporter
        self._copies = reporter.copies
        self._gate = gate
        self._estimates = estimates
        self._predictor = predictor

    def admit(self, batch: Iterable[Work], now: float, now_ms: int) -> None:
        """A request joins its lane, or waits for the outcome of one of the same id that is here, or ends at once."""
        for work in batch:
            if not work.assignment.claims.is_open:
                continue  # the partition was given up on the way here: its new owner sees to the request
            if not comes_again(work):
                self._admit(work, now, now_ms)

    def _admit(self, work: Work, now: float, now_ms: int) -> None:
        end = self._ending_at_sight(work, now)
        if end is None:
            if not self._stands_for_its_id(work):
                return
            end = self._ending(work, now_ms)
        if end is None:
            self.predict(work, now)
            self._estimates.arrived(work, now)
            self._lanes.push(work, now)
        elif work.assignment.claims.claim(work.offset):
            # Claimed, so that a hand-over while the outcome is on its way names it.
            end()

    def _ending_at_sight(self, work: Work, now: float) -> Ending | None:
        """How a record ends that is no request, or one that has its outcome."""
        if work.request is None:
            assert work.problem is not None
            return partial(self._reporter.rejected, work, REASONS_BY_CODE[work.problem.reason], str(work.problem))
        return partial(self._reporter.skip_duplicate, work) if self._reporter.is_known(work, now) else None

    def _stands_for_its_id(self, work: Work) -> bool:
        """Whether it is no copy of a request that waits or runs here. The more urgent one of two that wait stands for
        both: whoever sends a request again to a higher tier does not wait behind the lower one."""
        first = self._copies.first_of(work)
        if first is None:
            return True
        if is_more_urgent(work, first) and self._lanes.holds(first):
            self._lanes.remove(first)
            self._copies.swap(first, work)
            return True
        self._copies.hold(first, work)
        return False

    def _ending(self, work: Work, now_ms: int) -> Ending | None:
        """How a request ends that is not to be run; None for one that may wait in its lane."""
        reporter = self._reporter
        if (end := self._desk.ending(work, now_ms)) is not None:
            return end
        if work.crashes >= CONVICTED_CRASHES:
            error = f"{work.crashes} workers died while they ran it, the last one while it ran nothing else"
            failure = Failure(reason=Reason.WORKER_CRASHED, error=error)
            return partial(reporter.failed, work, failure, service_seconds=None)
        if work.deadline_ms <= now_ms:
            return partial(reporter.expired, work, Reason.DEADLINE_PASSED_WAITING)
        return None

    def predict(self, work: Work, now: float) -> None:
        """Notes when a request joins its lane, and what it is expected to take."""
        work.arrived = now
        if self._predictor is None or work.request is None:
            return
        prediction = work.prediction = self._predictor.predict(work.request)
        work.prompt_tokens, work.output_tokens = prediction.prompt_tokens, prediction.output_tokens
        work.output_tokens_min = prediction.output_tokens_min
        work.cost_seconds = self._gate.cost_seconds(work.prompt_tokens, work.output_tokens)
