"""After a failure: the request is charged and retried or ended, or goes back to its lane uncharged.

Carries out what `FailurePolicy` decides, and says when the backend serves nobody. The event loop's thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain, islice

import structlog

from forebay_schemas.clock import Clock
from forebay_schemas.contract.reasons import Reason
from forebay_worker.dispatch.blame import Cause, Kind, kind_of
from forebay_worker.dispatch.control_desk import ControlDesk
from forebay_worker.dispatch.failure_policy import FailurePolicy, Verdicts
from forebay_worker.dispatch.lookahead import Lookahead
from forebay_worker.lanes.lanes import Lanes
from forebay_worker.outcome.reporter import Reporter
from forebay_worker.pacing.gate import Gate
from forebay_worker.request.retry_policy import Next, plan_after_failure
from forebay_worker.request.work import Failure, FailureScope, Work
from forebay_worker.telemetry.stats import Stats
from forebay_worker.telemetry.tracing import Tracing

TROUBLE_SECONDS = 10.0
"""How often the log says that the backend serves nobody: an overloaded one comes and goes many times a second."""

OTHERS_LOOKED_AT_MAX = 500
"""How many waiting requests are compared with one that failed."""

log = structlog.get_logger("forebay.dispatch")


class Charging:
    """``running``: what runs, by identity; ``attempts_max``: of a request that says nothing of its own."""

    def __init__(
        self,
        *,
        failures: FailurePolicy,
        gate: Gate,
        lanes: Lanes,
        lookahead: Lookahead,
        desk: ControlDesk,
        reporter: Reporter,
        clock: Clock,
        stats: Stats,
        tracing: Tracing,
        running: Mapping[int, Work],
        attempts_max: int,
    ) -> None:
        self._failures = failures
        self._gate = gate
        self._lanes = lanes
        self._lookahead = lookahead
        self._desk = desk
        self._reporter = reporter
        self._clock = clock
        self._stats = stats
        self._tracing = tracing
        self._running = running
        self._attempts_max = attempts_max
        self._said_cause: Cause | None = None
        self._say_trouble_at = 0.0
        self.in_trouble = False
        """Whether the backend was last seen to serve nobody."""

    def backend_failed(self, work: Work, failure: Failure, now: float) -> None:
        """An execution failed, and not, or not surely, by the request's own fault."""
        if failure.of_backend:
            self._stats.backend_failed(failure.reason)
        if failure.scope is FailureScope.OVERLOAD:
            self._gate.refused(now, self._clock.wall_ms())
        verdicts = self._failures.failed(
            now,
            work,
            failure,
            in_flight=len(self._running),
            seconds_left=(work.deadline_ms - self._clock.wall_ms()) / 1000,
            others_wait=self._others_wait,
        )
        self._log_trouble(now)
        self.carry_out(verdicts)

    def carry_out(self, verdicts: Verdicts) -> None:
        """Charges requests, or puts them back into their lanes."""
        trouble = self._failures.trouble
        if self.in_trouble and trouble is None:
            self.in_trouble = False
            log.info("the backend answers")
        for verdict in verdicts:
            work = verdict.work
            if verdict.charged:
                self._lookahead.ended()
                self.charge(work, verdict.failure, work.failed_at)
                continue
            if trouble is not None and not verdict.failure.of_backend:
                self._stats.backend_failed(verdict.failure.reason)
            self.put_back(work)

    def charge(self, work: Work, failure: Failure, now: float) -> None:
        """The execution counts: the request is retried, expires or ends."""
        if work.assignment.lost:
            # Taken away without a hand-over: its new owner runs the request again, so a failure here decides nothing.
            self._tracing.release(work)
            work.assignment.claims.release(work.offset)
            return
        assert work.request is not None
        service_seconds = now - work.started
        if self._desk.is_cancelled(work):
            self._reporter.cancelled(work, service_seconds=service_seconds)
            return
        plan = plan_after_failure(
            attempt=work.attempt,
            attempts_max=work.request.max_attempts or self._attempts_max,
            may_retry=failure.may_retry,
            retry_after_seconds=failure.retry_after_seconds,
            now_ms=self._clock.wall_ms(),
            deadline_ms=work.deadline_ms,
        )
        if plan.next is Next.RETRY:
            self._reporter.retry(work, failure, delay_seconds=plan.delay_seconds)
        elif plan.next is Next.EXPIRE:
            self._reporter.expired(work, Reason.RETRY_TOO_LATE, failure=failure, service_seconds=service_seconds)
        else:
            self._reporter.failed(work, failure, service_seconds=service_seconds)

    def put_back(self, work: Work) -> None:
        """A claimed request returns to its lane, or ends by what is wanted of it."""
        end = self._desk.ending(work, self._clock.wall_ms())
        if end is not None:
            end()
            return
        work.assignment.claims.release(work.offset)
        if work.assignment.claims.is_open:
            self._lanes.push(work, self._clock.monotonic())
        else:
            self._tracing.release(work)

    def _others_wait(self, kind: Kind) -> bool:
        others = chain(self._running.values(), islice(self._lanes.waiting(), OTHERS_LOOKED_AT_MAX))
        return any(kind_of(work) != kind for work in others)

    def _log_trouble(self, now: float) -> None:
        trouble = self._failures.trouble
        if trouble is None:
            return
        self.in_trouble = True
        if trouble.cause is self._said_cause and now < self._say_trouble_at:
            return
        self._said_cause, self._say_trouble_at = trouble.cause, now + TROUBLE_SECONDS
        say = log.warning if trouble.cause is Cause.UNAVAILABLE else log.error
        say(
            "the backend serves nobody; dispatch stops but for a probe",
            error=trouble.words,
            cause=trouble.cause,
            fix=trouble.advice,
        )
