"""A dispatcher with a real reporter over a producer in memory, step by step. No threads, no I/O."""

from __future__ import annotations

import math

from forebay_schemas.contract.headers import read_history
from forebay_schemas.contract.reasons import Reason
from forebay_schemas.contract.results import Result
from forebay_schemas.contract.tiers import DEFAULT_TIER_TIMES, Tier, TierTimes
from forebay_worker.answers.verdict import reason_of_status
from forebay_worker.dispatch.dispatcher import Dispatcher
from forebay_worker.dispatch.overload import OverloadLadder
from forebay_worker.lanes.lanes import Lanes
from forebay_worker.lanes.order import LaneOrder
from forebay_worker.pacing.gate import Gate
from forebay_worker.pacing.policies.fixed import FixedLimit
from forebay_worker.pacing.prediction import Predictor
from forebay_worker.partition.assignment import Assignment
from forebay_worker.request.work import Answer, Failure, FailureScope, Retry, Work
from forebay_worker.telemetry.tracing import NO_TRACING, Tracing
from simulated.outcomes import Outcomes
from simulated.ports import ManualClock
from simulated.works import POOL, make_assignment, make_work


def status_failure(status: int, *, retryable: bool = True) -> Failure:
    retry = Retry.ALLOWED if retryable else Retry.FORBIDDEN
    return Failure(reason=reason_of_status(status), error=f"HTTP {status}: SECRET", http_status=status, retry=retry)


REFUSED = Failure(reason=Reason.BACKEND_UNAVAILABLE, error="connection refused", scope=FailureScope.BACKEND)
ANSWER = Answer(body={"ok": True})
BUFFER_BYTES = 3 * 1_000_000


class Stage(Outcomes):
    """A dispatcher with a real reporter over a producer in memory. Without retries a failure is the end.

    ``limit``: of the gate, unless a gate is given.
    """

    def __init__(
        self,
        *,
        limit: int = 4,
        buffer_bytes_max: int = BUFFER_BYTES,
        retries_max: int = 0,
        tier_times: TierTimes = DEFAULT_TIER_TIMES,
        gate: Gate | None = None,
        lanes: Lanes | None = None,
        predictor: Predictor | None = None,
        clock: ManualClock | None = None,
        tracing: Tracing = NO_TRACING,
    ) -> None:
        super().__init__(clock=clock, tracing=tracing)
        self.gate = gate or Gate(policy=FixedLimit(limit_requests=limit), prefill_seconds_max=math.inf)
        self.dispatcher = Dispatcher(
            clock=self.clock,
            gate=self.gate,
            predictor=predictor,
            lanes=Lanes(order=LaneOrder.FIFO) if lanes is None else lanes,
            overload=OverloadLadder(),
            read_signals=lambda _: (None, None),
            reporter=self.reporter,
            stats=self.stats,
            buffer_bytes_max=buffer_bytes_max,
            retries_max=retries_max,
            tier_times=tier_times,
            tracing=tracing,
        )
        self._filled = 0

    def accept(self, *works: Work) -> None:
        self.dispatcher.accept(list(works))

    def fill(self, tier: Tier, count: int, *, mib: float | None = None) -> list[Work]:
        """Accepts ``count`` requests of a tier, with a deadline in an hour. ``mib``: size of each body, set without
        making it."""
        assignment = make_assignment(tier)
        filled = []
        for _ in range(count):
            self._filled += 1
            work = make_work(assignment, offset=self._filled, ttl_ms=3_600_000)
            if mib is not None:
                work.size_bytes = int(mib * 1024 * 1024)
            filled.append(work)
        self.accept(*filled)
        return filled

    def limited_by(self) -> str | None:
        limitation = self.dispatcher.limited_by(self.clock.monotonic())
        return None if limitation is None else limitation.signal

    def take_all(self) -> list[Work]:
        taken = []
        while (work := self.dispatcher.take()) is not None:
            taken.append(work)
        return taken

    def take(self) -> Work:
        work = self.dispatcher.take()
        assert work is not None
        return work

    def tick(self, seconds: float = 0.0) -> None:
        """Lets time pass with a tick each second, as the loop's are never far apart."""
        while seconds > 1.0:
            self.clock.advance(1.0)
            self.dispatcher.tick()
            seconds -= 1.0
        self.clock.advance(seconds)
        self.dispatcher.tick()
        self.reporter.delivery.poll()

    def results(self) -> list[Result]:
        """Delivered results, in order."""
        self.reporter.delivery.poll()
        return super().results()

    def outcomes(self) -> list[tuple[str, str]]:
        return [(result.request_id, result.reason) for result in self.results()]

    def retries(self) -> list[tuple[str, int]]:
        """Records delivered to retry topics, in order: topic, and number of the attempt to come."""
        self.reporter.delivery.poll()
        return [
            (str(record.topic()), read_history(record.headers()).attempt)
            for record in self.producer.delivered
            if record.topic() in POOL.retries
        ]


def works(count: int, *, assignment: Assignment | None = None, first: int = 0, ttl_ms: int = 60_000) -> list[Work]:
    assignment = assignment or make_assignment()
    return [make_work(assignment, offset=first + number, ttl_ms=ttl_ms) for number in range(count)]


# What becomes of a failure that is charged


FAILED = Failure(reason=Reason.BACKEND_ERROR, error="HTTP 500")
