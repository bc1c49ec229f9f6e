"""What an intake hands over: some of it ends at once, the rest waits in its lane. The event loop's thread."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from forebay_schemas.contract.reasons import REASONS_BY_CODE, Reason
from forebay_worker.dispatch.control_desk import ControlDesk
from forebay_worker.outcome.reporter import Reporter
from forebay_worker.pacing.gate import Gate
from forebay_worker.pacing.prediction import Predictor
from forebay_worker.partition.assignment import CONVICTED_CRASHES
from forebay_worker.request.work import Failure, Work

Ending = Callable[[], None]


class Arrivals:
    """``predictor``: None where neither order nor limit asks for tokens."""

    def __init__(self, *, desk: ControlDesk, reporter: Reporter, gate: Gate, predictor: Predictor | None) -> None:
        self._desk = desk
        self._reporter = reporter
        self._gate = gate
        self._predictor = predictor

    def ending(self, work: Work, now: float, now_ms: int) -> Ending | None:
        """How a request ends that is not to be run; None for one that may wait in its lane."""
        reporter = self._reporter
        if work.request is None:
            assert work.problem is not None
            return partial(reporter.rejected, work, REASONS_BY_CODE[work.problem.reason], str(work.problem))
        if reporter.is_known(work, now):
            return partial(reporter.skip_duplicate, work)
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


def comes_again(work: Work) -> bool:
    """Whether it is read once more, since its topic was made anew at about the time when it was written."""
    void_from_ms = work.assignment.void_from_ms
    return void_from_ms < math.inf and bool(work.record.timestamp()[1] >= void_from_ms)
