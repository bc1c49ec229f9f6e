"""Dispatch: decides what starts, when, and what becomes of it. No I/O: the executor runs what `take` returns.

One thread uses it (the event loop's). It never blocks and holds no request after its outcome was handed on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog

from forebay_schemas.clock import Clock, MakeEvent
from forebay_schemas.contract.control import ControlAction, ControlOutcome
from forebay_schemas.contract.reasons import Reason
from forebay_schemas.contract.tiers import DEFAULT_TIER_TIMES, TIERS, TierTimes
from forebay_worker.bounds import BOUNDS, Bounds
from forebay_worker.dispatch.arrivals import Arrivals
from forebay_worker.dispatch.blame import Blame
from forebay_worker.dispatch.breaker import BreakerState
from forebay_worker.dispatch.careful_starts import CarefulStarts
from forebay_worker.dispatch.charging import Charging
from forebay_worker.dispatch.control_desk import ControlDesk
from forebay_worker.dispatch.deadlines import Deadlines
from forebay_worker.dispatch.failure_policy import FailurePolicy
from forebay_worker.dispatch.lookahead import Lookahead
from forebay_worker.dispatch.overload import OverloadLadder
from forebay_worker.dispatch.shedder import Shedder
from forebay_worker.dispatch.slots import Slots
from forebay_worker.dispatch.suspects import NamedStarts, Suspects, is_suspect, must_wait
from forebay_worker.dispatch.suspension import Suspension
from forebay_worker.lanes.lanes import Lanes
from forebay_worker.outcome.reporter import Reporter
from forebay_worker.pacing.estimates import Estimates
from forebay_worker.pacing.gate import Gate
from forebay_worker.pacing.limitation import Limitation
from forebay_worker.pacing.prediction import Predictor
from forebay_worker.partition.quiet import Quiet
from forebay_worker.request.controls import Controls
from forebay_worker.request.memory import cost_bytes
from forebay_worker.request.work import Answer, Failure, Work
from forebay_worker.signals.gpu_watch import GpuWatch
from forebay_worker.signals.readings import EngineReading, GpuReading
from forebay_worker.telemetry.stats import Stats
from forebay_worker.telemetry.tracing import NO_TRACING, Tracing

TAKEN_BETWEEN_CREDITS = 32

SWEEP_SECONDS = 0.1
PACING_SECONDS = 1.0

_DRAINING = Limitation("draining", 1, 0)

ReadSignals = Callable[[float], tuple[EngineReading | None, GpuReading | None]]
"""What engine and GPU said last, as of a monotonic moment; None for what is missing or stale."""

log = structlog.get_logger("forebay.dispatch")


class Dispatcher:
    """Holds the lanes, the limit and the breaker of one backend."""

    def __init__(
        self,
        *,
        clock: Clock,
        gate: Gate,
        predictor: Predictor | None,
        lanes: Lanes,
        overload: OverloadLadder,
        read_signals: ReadSignals,
        reporter: Reporter,
        stats: Stats,
        buffer_bytes_max: int,
        retries_max: int,
        failures: FailurePolicy | None = None,
        tier_times: TierTimes = DEFAULT_TIER_TIMES,
        tracing: Tracing = NO_TRACING,
        bounds: Bounds = BOUNDS,
        make_event: MakeEvent = threading.Event,
    ) -> None:
        """``predictor``: None where nothing needs tokens. ``make_event``: intakes wait with it for credit."""
        self.lanes = lanes
        self.gate = gate
        self._predictor = predictor
        self._read_signals = read_signals
        self.estimates = Estimates()
        self.gpu_watch = GpuWatch()
        self.failures = failures if failures is not None else FailurePolicy()
        self.breaker = self.failures.breaker
        self.quiet = Quiet()
        self.suspects = Suspects(self.quiet)
        self.named_starts = NamedStarts()
        self.slots = Slots(gate=gate, breaker=self.breaker, lanes=lanes, delivery=reporter.delivery, bounds=bounds)
        self.shedder = Shedder(
            ladder=overload,
            lanes=lanes,
            gate=gate,
            by_tokens=predictor is not None,
            open_slots=self.slots.open_to,
        )
        self.running = self.slots.running
        """What runs, by identity."""
        self.stopping = False
        self.controls = Controls()
        self._clock = clock
        self._reporter = reporter
        self._stats = stats
        self._tracing = tracing
        self.lookahead = Lookahead(
            lanes=lanes,
            copies=reporter.copies,
            lane_bytes_max=buffer_bytes_max // len(TIERS),
            tier_times=tier_times,
            now=clock.monotonic(),
            bounds=bounds,
            make_event=make_event,
        )
        self._desk = ControlDesk(
            controls=self.controls, lanes=lanes, suspects=self.suspects, reporter=reporter, clock=clock
        )
        self._arrivals = Arrivals(
            lanes=lanes,
            desk=self._desk,
            reporter=reporter,
            gate=gate,
            predictor=predictor,
            estimates=self.shedder.estimates,
        )
        self._deadlines = Deadlines(
            lanes=lanes,
            suspects=self.suspects,
            shedder=self.shedder,
            gate=gate,
            reporter=reporter,
            predicts=predictor is not None,
        )
        self._careful = CarefulStarts(
            suspects=self.suspects,
            named_starts=self.named_starts,
            slots=self.slots,
            deadlines=self._deadlines,
            reporter=reporter,
            breaker=self.breaker,
            clock=clock,
            tracing=tracing,
        )
        self._charging = Charging(
            failures=self.failures,
            gate=gate,
            lanes=lanes,
            lookahead=self.lookahead,
            desk=self._desk,
            reporter=reporter,
            clock=clock,
            stats=stats,
            tracing=tracing,
            running=self.running,
            attempts_max=retries_max + 1,
        )
        self._taken = 0
        self._sweep_at = 0.0
        self._pace_at = 0.0
        self._dropped_before = 0
        self.ended_total = 0
        """Executions."""
        self._suspension = Suspension()

    @property
    def dropped_total(self) -> int:
        """How many requests were given up for their deadlines."""
        return self._deadlines.dropped_total

    def accept(self, batch: list[Work]) -> None:
        """Takes over a batch of one intake, all of one credit."""
        self.controls.take_received()  # before what an intake hands on for one of them
        now, now_ms = self._clock.monotonic(), self._clock.wall_ms()
        self._arrivals.admit(batch, now, now_ms)
        assignment = batch[0].assignment
        assignment.credit.received(len(batch), cost_bytes(batch))
        self._stats.received[assignment.tier] += len(batch)
        self.shedder.estimates.received(assignment.tier, len(batch), now)
        self.lookahead.allow(assignment.tier)

    def _apply_controls(self, now: float) -> None:
        """Does what was asked for since the last look to what waits here; what runs and is cancelled is `overdue`."""
        for work in self._reporter.take_refused_expedites():
            self.controls.give_up_expedite(work.request_id or "")
            self._arrivals.predict(work, now)
            self._charging.put_back(work)
        fresh = self._desk.take_fresh()
        if fresh:
            request_ids = {control.request_id for control, _ in fresh}
            self._charging.carry_out(self.failures.release(request_ids))
            self._desk.end_waiting(request_ids)
            self._desk.answer(fresh, now, running=self.running.values())
        self._desk.look_again(now)

    def take(self) -> Work | None:
        """The request to start now, claimed; None when nothing waits or nothing may start.

        The caller must run it and then call one of `answered`, `failed`, `gave_up`.
        """
        work: Work | None
        while True:
            now = self._clock.monotonic()
            work = self._careful.take(now, is_stopping=self.stopping, is_recovering=self._suspension.is_recovering)
            if work is None:
                work = self._pop(now)
                if work is None:
                    return None
                if is_suspect(work):
                    self.suspects.add(work)
                    continue
                if not self._careful.claim(work, now):
                    continue
                if must_wait(work):
                    self.slots.occupy(work)
                    self.named_starts.hold(work, now)
                    continue
            self._start(work, now)
            return work

    def _pop(self, now: float) -> Work | None:
        """The most urgent request that may start now, not claimed."""
        lanes = self.lanes
        if not lanes or self.limited_by(now) is not None:
            return None
        if self.breaker.state is BreakerState.CLOSED:
            work = lanes.pop(
                now,
                running=self.slots.by_tier,
                limit=self.gate.share_requests,
                only_high=self.slots.only_high or self.slots.memory_kept_for_high(now) is not None,
            )
        else:
            work = lanes.pop_probe(self.failures.is_of_the_failed_kind)
        if work is not None:
            self._taken += 1
            if self._taken % TAKEN_BETWEEN_CREDITS == 0:
                self.lookahead.allow_all()
        return work

    def _start(self, work: Work, now: float) -> None:
        self.breaker.started(now)
        work.started = now
        self.shedder.estimates.started(work, now)
        if self._predictor is not None:
            work.predicted_seconds = self.gate.service_seconds(work, now)
            self.gate.started(work, now)
        self.running[id(work)] = work
        self.slots.occupy(work)
        now_ms = self._clock.wall_ms()
        self._stats.dispatched(work, now_ms)
        self._tracing.started(work, now, now_ms)

    def limited_by(self, now: float) -> Limitation | None:
        """What keeps the next request from starting; None when nothing does."""
        if self.stopping:
            return _DRAINING
        if self._suspension.is_recovering(now):
            return Limitation("suspension", round(now - self._suspension.recovered_at, 3), 0)
        if self.suspects.excludes_others:
            return Limitation("suspect", len(self.running), 0)
        return self.slots.blocked_by(now, len(self.running) + len(self.named_starts), self.slots.memory_bytes)

    def answered(self, work: Work, answer: Answer) -> None:
        """The backend gave an answer."""
        now = self._end(work, answer)
        self.suspects.acquit(work, now)
        self._tracing.execution_ended(work, now, error=None)
        service_seconds = now - work.started
        self.lookahead.ended()
        self.shedder.answered(service_seconds)
        self.shedder.estimates.answered(work.tier, service_seconds)
        self.estimates.served(work.tier, predicted_seconds=work.predicted_seconds, actual_seconds=service_seconds)
        if (output_tokens := answer.output_tokens_seen) is not None:
            self.estimates.put_out(work.tier, predicted_tokens=work.output_tokens, actual_tokens=output_tokens)
        self._reporter.completed(work, answer, service_seconds=service_seconds)
        if self._desk.is_cancelled(work):
            self._reporter.answer_control(ControlAction.CANCEL, work.request_id or "", ControlOutcome.FINISHED)
        verdicts = self.failures.answered(now, started=work.started)
        if verdicts or self._charging.in_trouble:
            self._charging.carry_out(verdicts)

    def failed(self, work: Work, failure: Failure) -> None:
        """The execution failed: by the backend's state, and the request may go back to its lane, or by itself."""
        now = self._end(work, None)
        if failure.reached:
            self.suspects.acquit(work, now)
        else:
            self.suspects.release(work, now)
        self._tracing.execution_ended(work, now, error=failure.reason.code)
        if self.failures.blame(failure) is not Blame.REQUEST:
            self._charging.backend_failed(work, failure, now)
            return
        self.lookahead.ended()
        if failure.reason is Reason.BACKEND_REJECTED or failure.reason is Reason.BACKEND_ERROR:
            self._charging.carry_out(self.failures.rejected(now, started=work.started))
        else:
            self.breaker.ended(now, started=work.started)
        self._charging.charge(work, failure, now)

    def gave_up(self, work: Work, *, deadline_passed: bool) -> None:
        """The execution was cancelled: at its deadline, or because the worker stops and gives the request back."""
        now = self._end(work, None)
        if deadline_passed:
            self.suspects.acquit(work, now)
        else:
            self.suspects.release(work, now)
        self._tracing.execution_ended(work, now, error="given_up")
        self.breaker.ended(now, started=work.started)
        if deadline_passed and self._desk.is_cancelled(work):
            self.lookahead.ended()
            self._reporter.cancelled(work, service_seconds=now - work.started)
        elif deadline_passed:
            self._deadlines.dropped_total += 1
            self.lookahead.ended()
            self._reporter.expired(work, Reason.DEADLINE_PASSED_RUNNING, service_seconds=now - work.started)
        else:
            self._tracing.release(work)
            work.assignment.claims.release(work.offset)

    def tick(self) -> None:
        """Does what time asks for: what is late, or bound to be, leaves the lanes; limit, lookahead and overload follow
        what was seen."""
        now = self._clock.monotonic()
        self._suspension.ticked(now)
        if now >= self._sweep_at:
            self._sweep_at = now + SWEEP_SECONDS
            self._deadlines.sweep(now, self._clock.wall_ms(), in_flight=len(self.running))
            self._arrivals.admit(self._reporter.copies.orphans(), now, self._clock.wall_ms())
            self.lookahead.allow_all()
            self._stats.fold()
        self._apply_controls(now)
        self._charging.carry_out(self.failures.step(now, waiting=bool(self.lanes), running=bool(self.running)))
        if now >= self._pace_at:
            self._pace_at = now + PACING_SECONDS
            self._reporter.copies.purge()
            serves = self.breaker.state is BreakerState.CLOSED
            self._deadlines.shed(now, self._clock.wall_ms(), serves=serves)
            engine, gpu = self._read_signals(now)
            self.gpu_watch.step(now, in_flight=len(self.running), gpu=gpu)
            self.gate.step(
                now,
                self._clock.wall_ms(),
                in_flight=len(self.running),
                waiting=len(self.lanes),
                reserved=self.lanes.shares.reserved(now, self.gate.limit_requests),
                dropped=self._deadlines.dropped_total - self._dropped_before,
                engine=engine,
                gpu=gpu,
            )
            self._dropped_before = self._deadlines.dropped_total
        self.lookahead.step(now)

    def overdue(self) -> list[Work]:
        """The running requests whose deadline has passed, or that are cancelled: the executor gives them up."""
        now_ms = self._clock.wall_ms()
        return [work for work in self.running.values() if work.deadline_ms <= now_ms or self._desk.is_cancelled(work)]

    def _end(self, work: Work, answer: Answer | None) -> float:
        now = self._clock.monotonic()
        in_flight = len(self.running)
        del self.running[id(work)]
        self.ended_total += 1
        self.slots.vacate(work)
        if self._predictor is None:
            return now  # a limit that never moves, and an order that asks for no tokens: nothing is to be learnt
        prompt_tokens = output_tokens = None
        if answer is not None:
            prompt_tokens, output_tokens = answer.prompt_tokens, answer.output_tokens_seen
            if work.prediction is not None:
                self._predictor.learn(work.prediction, prompt_tokens=prompt_tokens, output_tokens=output_tokens)
        self.gate.ended(
            work,
            now,
            in_flight=in_flight,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            succeeded=answer is not None,
        )
        return now
