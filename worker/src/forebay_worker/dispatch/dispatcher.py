"""Dispatch: decides what starts, when, and what becomes of it. No I/O: the executor runs what `take` returns.

One thread uses it (the event loop's). It never blocks and holds no request after its outcome was handed on.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import chain, islice

import structlog

from forebay_schemas.clock import Clock, MakeEvent
from forebay_schemas.contract.control import Control, ControlAction, ControlOutcome
from forebay_schemas.contract.reasons import REASONS_BY_CODE, Reason
from forebay_schemas.contract.tiers import DEFAULT_TIER_TIMES, TIERS, Tier, TierTimes
from forebay_worker.bounds import BOUNDS, Bounds
from forebay_worker.dispatch.blame import Blame, Cause, Kind, kind_of
from forebay_worker.dispatch.breaker import BreakerState
from forebay_worker.dispatch.failure_policy import FailurePolicy, Verdicts
from forebay_worker.dispatch.lookahead import Lookahead
from forebay_worker.dispatch.overload import OverloadLadder
from forebay_worker.dispatch.shedder import Shedder
from forebay_worker.dispatch.suspects import NamedStarts, Suspects, is_suspect, must_wait
from forebay_worker.lanes.lanes import Lanes
from forebay_worker.outcome.reporter import Reporter
from forebay_worker.pacing.estimates import Estimates
from forebay_worker.pacing.gate import Gate, Limitation
from forebay_worker.pacing.prediction import Predictor
from forebay_worker.partition.assignment import CONVICTED_CRASHES
from forebay_worker.partition.quiet import Quiet
from forebay_worker.request.controls import CONTROLS_MAX, RECENT_MS, Controls
from forebay_worker.request.memory import cost_bytes, in_flight_bytes
from forebay_worker.request.retry_policy import Next, plan_after_failure
from forebay_worker.request.work import Answer, Failure, Work
from forebay_worker.signals.gpu_watch import GpuWatch
from forebay_worker.signals.readings import EngineReading, GpuReading
from forebay_worker.telemetry.stats import Stats
from forebay_worker.telemetry.tracing import NO_TRACING, Tracing

TAKEN_BETWEEN_CREDITS = 32

TROUBLE_SECONDS = 10.0
"""How often the log says that the backend serves nobody: an overloaded one comes and goes many times a second."""

OTHERS_LOOKED_AT_MAX = 500
"""How many waiting requests are compared with one that failed."""

SWEEP_SECONDS = 0.1
SWEEP_RECORDS_MAX = 500
"""How many waiting requests are looked at in a sweep for whether they can still meet their deadlines."""

PACING_SECONDS = 1.0
DOOMED_IN_FLIGHT_MIN = 4

SUSPENDED_SECONDS = 5.0
RECOVERY_SECONDS = 0.5
"""A process that stood still for so long (SIGSTOP, a frozen machine) may have lost its partitions without knowing it:
its consumers get a moment to learn it before anything starts."""

SECOND_LOOK_SECONDS = 1.0
"""A request that is not found may be just ending: then its outcome is known so much later."""

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
        """``predictor``: None where neither order nor limit asks for tokens: it costs a few microseconds a request.
        ``make_event``: what intakes wait with for credit."""
        self.lanes = lanes
        self.gate = gate
        self._predictor = predictor
        self._read_signals = read_signals
        self.shedder = Shedder(ladder=overload, lanes=lanes, gate=gate, by_tokens=predictor is not None)
        self.estimates = Estimates()
        self.gpu_watch = GpuWatch()
        self.failures = failures if failures is not None else FailurePolicy()
        self.breaker = self.failures.breaker
        self.quiet = Quiet()
        self.suspects = Suspects(self.quiet)
        self.named_starts = NamedStarts()
        self.running: dict[int, Work] = {}
        self.running_by_tier = dict.fromkeys(TIERS, 0)
        self.in_flight_bytes = 0
        """Memory of what runs or is claimed to run: a bound on it holds as one on their number does."""
        self.stopping = False
        self.controls = Controls()
        self._second_looks: deque[tuple[float, ControlAction, str]] = deque(maxlen=CONTROLS_MAX)
        reporter.on_expedite_refused = self._expedite_refused
        self._bounds = bounds
        self._clock = clock
        self._reporter = reporter
        self._stats = stats
        self._tracing = tracing
        self._attempts_max = retries_max + 1
        self.lookahead = Lookahead(
            lanes=lanes,
            lane_bytes_max=buffer_bytes_max // len(TIERS),
            tier_times=tier_times,
            now=clock.monotonic(),
            bounds=bounds,
            make_event=make_event,
        )
        self._in_trouble = False
        self._said_cause: Cause | None = None
        self._say_trouble_at = 0.0
        self._taken = 0
        self._sweep_at = 0.0
        self._pace_at = 0.0
        self.dropped_total = self._dropped_before = 0
        """Given up for their deadlines."""
        self.ended_total = 0
        """Executions."""
        self._ticked_at = math.inf
        self._recovered_at = 0.0

    def accept(self, batch: list[Work]) -> None:
        """Takes over a batch of one intake, all of one credit."""
        self.controls.take_heard()  # before what an intake hands on for one of them
        now, now_ms = self._clock.monotonic(), self._clock.wall_ms()
        for work in batch:
            if not work.assignment.claims.is_open:
                continue  # the partition was given up on the way here: its new owner sees to the request
            if _comes_again(work):
                continue
            end = self._end_at_once(work, now, now_ms)
            if end is None:
                self._predict(work, now)
                self.lanes.push(work, now)
            elif work.assignment.claims.claim(work.offset):
                # Claimed, so that a hand-over while the outcome is on its way names it.
                end()
        assignment = batch[0].assignment
        assignment.credit.received(len(batch), cost_bytes(batch))
        self._stats.received[assignment.tier] += len(batch)
        self.lookahead.allow(assignment.tier)

    def _end_at_once(self, work: Work, now: float, now_ms: int) -> Callable[[], None] | None:
        """How a request ends that is not to be run; None for one that may wait in its lane."""
        reporter = self._reporter
        if work.request is None:
            assert work.problem is not None
            return partial(reporter.rejected, work, REASONS_BY_CODE[work.problem.reason], str(work.problem))
        if reporter.is_known(work, now):
            return partial(reporter.skip_duplicate, work)
        if self.controls.entries:
            end = self._end_by_control(work, now_ms)
            if end is not None:
                return end
        if work.crashes >= CONVICTED_CRASHES:
            error = f"{work.crashes} workers died while they ran it, the last one while it ran nothing else"
            failure = Failure(reason=Reason.WORKER_CRASHED, error=error)
            return partial(reporter.failed, work, failure, service_seconds=None)
        if work.deadline_ms <= now_ms:
            return partial(reporter.expired, work, Reason.DEADLINE_PASSED_WAITING)
        return None

    def _end_by_control(self, work: Work, now_ms: int) -> Callable[[], None] | None:
        """How a request ends here that somebody wants something of; None when it is to go on waiting."""
        wanted = self.controls.wanted(work)
        if wanted is ControlAction.CANCEL:
            return partial(self._reporter.cancelled, work)
        if wanted is ControlAction.EXPEDITE and work.deadline_ms > now_ms:
            return partial(self._reporter.expedite, work)
        return None

    def _is_cancelled(self, work: Work) -> bool:
        return bool(self.controls.entries) and self.controls.wanted(work) is ControlAction.CANCEL

    def _heed_controls(self, now: float) -> None:
        """Does what was asked for since the last look to what waits here; what runs and is cancelled is `overdue`."""
        self.controls.take_heard()
        fresh = self.controls.take_fresh()
        if fresh:
            self._carry_out(self.failures.release({control.request_id for control, _ in fresh}))
            self._control_waiting({control.request_id for control, _ in fresh})
            self._answer_fresh(fresh, now)
        while self._second_looks and self._second_looks[0][0] <= now:
            _, action, request_id = self._second_looks.popleft()
            if self._reporter.is_known_id(request_id, now):
                self._reporter.answer_control(action, request_id, ControlOutcome.FINISHED)

    def _control_waiting(self, request_ids: set[str]) -> None:
        now_ms = self._clock.wall_ms()
        for work in self.lanes.having(request_ids):
            end = self._end_by_control(work, now_ms)
            if end is None:
                continue
            self.lanes.remove(work)
            if work.assignment.claims.claim(work.offset):
                end()
        for work in self.suspects.take_out(lambda work: self._end_by_control(work, now_ms) is not None):
            end = self._end_by_control(work, now_ms)
            if end is not None and work.assignment.claims.claim(work.offset):
                end()

    def _answer_fresh(self, fresh: list[tuple[Control, int]], now: float) -> None:
        """Says of what needs nothing to be done why it needs nothing, where somebody may wait for it."""
        recent_ms = self._clock.wall_ms() - RECENT_MS
        expedites = {each.request_id for each, stamped_ms in fresh if stamped_ms >= recent_ms}
        running = {work.request_id: work for work in self.running.values() if work.request_id in expedites}
        for control, stamped_ms in fresh:
            if stamped_ms < recent_ms:
                continue
            work = running.get(control.request_id)
            if work is None:
                self._second_looks.append((now + SECOND_LOOK_SECONDS, control.action, control.request_id))
            elif control.action is ControlAction.EXPEDITE:
                self._reporter.answer_control(control.action, control.request_id, ControlOutcome.RUNNING)

    def _expedite_refused(self, work: Work) -> None:
        self.controls.give_up_expedite(work.request_id or "")
        self._predict(work, self._clock.monotonic())
        self._back_to_lane(work)

    def take(self) -> Work | None:
        """The request to start now, claimed; None when nothing waits or nothing may start.

        The caller must run it and then call one of `answered`, `failed`, `gave_up`.
        """
        work: Work | None
        while True:
            now = self._clock.monotonic()
            work = self._take_careful(now)
            if work is None:
                work = self._pop(now)
                if work is None:
                    return None
                if is_suspect(work):
                    self.suspects.add(work)
                    continue
                if not self._claim(work, now, self._clock.wall_ms()):
                    continue
                if must_wait(work):
                    self._occupy(work)
                    self.named_starts.hold(work, now)
                    continue
            self._start(work, now)
            return work

    def _take_careful(self, now: float) -> Work | None:
        """A request that waited for a commit before its start, claimed; or the suspect whose turn it is."""
        if self.suspects.is_idle and not self.named_starts:
            return None
        if self.stopping:
            for work in self.named_starts.take_all():
                self._let_go_held(work)
            self.suspects.stop(now)
            return None
        if self._is_recovering(now):
            return None
        # What was allowed when they were claimed need not be any more.
        while self._limited_by_others(now, len(self.running), self._running_bytes) is None:
            held = self.named_starts.take(now)
            if held is None:
                break
            if not held.assignment.claims.is_open or _comes_again(held):
                self._let_go_held(held)
                continue
            self._vacate(held)
            if not self._expire(held, self._clock.wall_ms()):
                return held
        in_flight = len(self.running) + len(self.named_starts)
        suspect = self.suspects.step(now, in_flight=in_flight, may_start=lambda: self._could_start(now))
        if suspect is None:
            return None
        claims = suspect.assignment.claims
        is_to_run = claims.is_open and not _comes_again(suspect)
        if is_to_run and not self._expire(suspect, self._clock.wall_ms()):
            log.warning("a request that was running at two crashes runs alone", request_id=suspect.request_id)
            return suspect
        self.suspects.let_go(suspect, now)
        if not is_to_run:
            claims.release(suspect.offset)
            self._tracing.let_go(suspect)
        return None

    def _let_go_held(self, work: Work) -> None:
        self._vacate(work)
        work.assignment.claims.release(work.offset)
        self._tracing.let_go(work)

    def _could_start(self, now: float) -> bool:
        """Whether a request could start if none were running."""
        return self.breaker.state is BreakerState.CLOSED and self._limited_by_others(now, 0, 0) is None

    def _occupy(self, work: Work) -> None:
        self.running_by_tier[work.assignment.tier] += 1
        self.in_flight_bytes += in_flight_bytes(work, self._bounds)

    def _vacate(self, work: Work) -> None:
        self.running_by_tier[work.assignment.tier] -= 1
        self.in_flight_bytes -= in_flight_bytes(work, self._bounds)

    @property
    def _running_bytes(self) -> int:
        return self.in_flight_bytes - sum(in_flight_bytes(work, self._bounds) for work in self.named_starts)

    def _pop(self, now: float) -> Work | None:
        """The most urgent request that may start now, not claimed."""
        lanes = self.lanes
        if not lanes or self.limited_by(now) is not None:
            return None
        if self.breaker.state is BreakerState.CLOSED:
            work = lanes.pop(
                now,
                running=self.running_by_tier,
                limit=self.gate.share_requests,
                only_high=self.only_high or self.memory_kept_for_high(now) is not None,
            )
        else:
            work = lanes.pop_probe(self.failures.is_of_the_failed_kind)
        if work is not None:
            self._taken += 1
            if self._taken % TAKEN_BETWEEN_CREDITS == 0:
                self.lookahead.allow_all()
        return work

    def _claim(self, work: Work, now: float, now_ms: int) -> bool:
        """Whether the request is claimed and still to be run; else it has ended, or is its new owner's."""
        if not work.assignment.claims.claim(work.offset):
            self._tracing.let_go(work)
            return False
        if _comes_again(work):
            work.assignment.claims.release(work.offset)
            self._tracing.let_go(work)
            return False
        if work.offset < work.assignment.reread_below and self._reporter.is_known(work, now):
            self._reporter.skip_duplicate(work)  # it ran meanwhile, as its topic's old name
            return False
        if self._expire(work, now_ms):
            return False
        if self._is_doomed(work, now, now_ms):
            self._drop_doomed(work, now)
            return False
        return True

    def _expire(self, work: Work, now_ms: int) -> bool:
        """Ends a claimed request if its deadline has passed."""
        if work.deadline_ms > now_ms:
            return False
        self._reporter.expired(work, Reason.DEADLINE_PASSED_WAITING)
        return True

    def _start(self, work: Work, now: float) -> None:
        self.breaker.started(now)
        work.started = now
        if self._predictor is not None:
            work.predicted_seconds = self.gate.service_seconds(work, now)
            self.gate.started(work, now)
        self.running[id(work)] = work
        self._occupy(work)
        now_ms = self._clock.wall_ms()
        self._stats.dispatched(work, now_ms)
        self._tracing.started(work, now, now_ms)

    @property
    def only_high(self) -> bool:
        """Whether the lower tiers get no more than they are guaranteed: their prompts would make the tokens of the
        urgent ones, which come too late already because of all that runs, come later still."""
        return self.running_by_tier[Tier.HIGH] > 0 and self.gate.is_slow_by_load

    def memory_kept_for_high(self, now: float) -> Limitation | None:
        """Whether what memory is left is kept for high, as the last slots are: the lower tiers get no more than they
        are guaranteed."""
        gate = self.gate
        open_bytes = gate.memory_open_to_all(self.lanes.shares.reserved(now, gate.share_requests))
        if open_bytes is None or self.in_flight_bytes < open_bytes:
            return None
        return Limitation("memory", self.in_flight_bytes, open_bytes)

    def limited_by(self, now: float) -> Limitation | None:
        """What keeps the next request from starting; None when nothing does."""
        if self.stopping:
            return _DRAINING
        if self._is_recovering(now):
            return Limitation("suspension", round(now - self._recovered_at, 3), 0)
        if self.suspects.excludes_others:
            return Limitation("suspect", len(self.running), 0)
        return self._limited_by_others(now, len(self.running) + len(self.named_starts), self.in_flight_bytes)

    def _limited_by_others(self, now: float, in_flight: int, memory_bytes: int) -> Limitation | None:
        limitation = self.gate.blocked_by(now, in_flight, memory_bytes)
        if limitation is not None:
            return limitation
        if not self.breaker.admits(now):
            return Limitation("breaker", round(now - (self.breaker.probe_at or now), 3), 0)
        if not self._reporter.accepts(now):
            return Limitation("results", self._reporter.undelivered_records, self._reporter.undelivered_records_max)
        return None

    def answered(self, work: Work, answer: Answer) -> None:
        """The backend gave an answer."""
        now = self._end(work, answer)
        self.suspects.acquit(work, now)
        self._tracing.execution_ended(work, now, error=None)
        service_seconds = now - work.started
        self.lookahead.ended()
        self.shedder.answered(service_seconds)
        self.estimates.served(work.tier, predicted_seconds=work.predicted_seconds, actual_seconds=service_seconds)
        if answer.output_tokens is not None:
            self.estimates.put_out(work.tier, predicted_tokens=work.output_tokens, actual_tokens=answer.output_tokens)
        self._reporter.completed(work, answer, service_seconds=service_seconds)
        if self._is_cancelled(work):
            self._reporter.answer_control(ControlAction.CANCEL, work.request_id or "", ControlOutcome.FINISHED)
        verdicts = self.failures.answered(now, started=work.started)
        if verdicts or self._in_trouble:
            self._carry_out(verdicts)

    def failed(self, work: Work, failure: Failure) -> None:
        """The execution failed: by the backend's state, and the request may go back to its lane, or by itself."""
        now = self._end(work, None)
        if failure.reached:
            self.suspects.acquit(work, now)
        else:
            self.suspects.let_go(work, now)
        self._tracing.execution_ended(work, now, error=failure.reason.code)
        if self.failures.blame(failure) is not Blame.REQUEST:
            self._backend_failed(work, failure, now)
            return
        self.lookahead.ended()
        if failure.reason is Reason.BACKEND_REJECTED or failure.reason is Reason.BACKEND_ERROR:
            self._carry_out(self.failures.rejected(now, started=work.started))
        else:
            self.breaker.ended(now, started=work.started)
        self._report_failure(work, failure, now)

    def gave_up(self, work: Work, *, deadline_passed: bool) -> None:
        """The execution was cancelled: at its deadline, or because the worker stops and gives the request back."""
        now = self._end(work, None)
        if deadline_passed:
            self.suspects.acquit(work, now)
        else:
            self.suspects.let_go(work, now)
        self._tracing.execution_ended(work, now, error="given_up")
        self.breaker.ended(now, started=work.started)
        if deadline_passed and self._is_cancelled(work):
            self.lookahead.ended()
            self._reporter.cancelled(work, service_seconds=now - work.started)
        elif deadline_passed:
            self.dropped_total += 1
            self.lookahead.ended()
            self._reporter.expired(work, Reason.DEADLINE_PASSED_RUNNING, service_seconds=now - work.started)
        else:
            self._tracing.let_go(work)
            work.assignment.claims.release(work.offset)

    def tick(self) -> None:
        """Does what time asks for: what is late, or bound to be, leaves the lanes; limit, lookahead and overload follow
        what was seen."""
        now = self._clock.monotonic()
        self._is_recovering(now)
        self._ticked_at = now
        if now >= self._sweep_at:
            self._sweep_at = now + SWEEP_SECONDS
            self._sweep_lanes(now)
            self.lookahead.allow_all()
            self._stats.fold()
        self._heed_controls(now)
        self._carry_out(self.failures.step(now, waiting=bool(self.lanes), running=bool(self.running)))
        if now >= self._pace_at:
            self._pace_at = now + PACING_SECONDS
            self._shed(now)
            engine, gpu = self._read_signals(now)
            self.gpu_watch.step(now, in_flight=len(self.running), gpu=gpu)
            self.gate.step(
                now,
                self._clock.wall_ms(),
                in_flight=len(self.running),
                waiting=len(self.lanes),
                reserved=self.lanes.shares.reserved(now, self.gate.limit_requests),
                dropped=self.dropped_total - self._dropped_before,
                engine=engine,
                gpu=gpu,
            )
            self._dropped_before = self.dropped_total
        self.lookahead.step(now)

    def _sweep_lanes(self, now: float) -> None:
        """Drops what missed its deadline, and some of what is bound to; the rest is looked at in the next sweeps."""
        now_ms = self._clock.wall_ms()
        for work in self.lanes.remove_expired(now_ms):
            if work.assignment.claims.claim(work.offset):
                self._reporter.expired(work, Reason.DEADLINE_PASSED_WAITING)
        for work in self.suspects.take_out(lambda work: work.deadline_ms <= now_ms):
            if work.assignment.claims.claim(work.offset):
                self._reporter.expired(work, Reason.DEADLINE_PASSED_WAITING)
        for work in self.lanes.sweep(SWEEP_RECORDS_MAX, self._doomed_at(now, now_ms)):
            if work.assignment.claims.claim(work.offset):
                self._drop_doomed(work, now)

    def _doomed_at(self, now: float, now_ms: int) -> Callable[[Work], bool]:
        """As `_is_doomed`, for many: whether a request would miss its deadline even if it started now."""
        ahead_seconds, prompt_seconds, output_seconds = self.gate.pace_min(now)
        if self._predictor is None or len(self.running) < DOOMED_IN_FLIGHT_MIN or not output_seconds:
            return lambda _: False
        ahead_ms, prompt_ms, output_ms = now_ms + 1000 * ahead_seconds, 1000 * prompt_seconds, 1000 * output_seconds
        return lambda work: (
            ahead_ms + prompt_ms * work.prompt_tokens + output_ms * work.output_tokens_min > work.deadline_ms
        )

    def _shed(self, now: float) -> None:
        """Goes up or down the overload ladder and drops what its rung asks for."""
        serves = self.breaker.state is BreakerState.CLOSED
        for work, predicted_seconds in self.shedder.step(now, self._clock.wall_ms(), serves=serves):
            self.lanes.remove(work)
            if work.assignment.claims.claim(work.offset):
                self.dropped_total += 1
                self._reporter.shed(work, predicted_seconds=predicted_seconds, cause=self.shedder.ladder.cause)

    def _is_recovering(self, now: float) -> bool:
        if now - self._ticked_at > SUSPENDED_SECONDS:
            self._ticked_at = now
            self._recovered_at = now + RECOVERY_SECONDS
        return now < self._recovered_at

    def overdue(self) -> list[Work]:
        """The running requests whose deadline has passed, or that are cancelled: the executor gives them up."""
        now_ms = self._clock.wall_ms()
        return [work for work in self.running.values() if work.deadline_ms <= now_ms or self._is_cancelled(work)]

    def _end(self, work: Work, answer: Answer | None) -> float:
        now = self._clock.monotonic()
        in_flight = len(self.running)
        del self.running[id(work)]
        self.ended_total += 1
        self._vacate(work)
        if self._predictor is None:
            return now  # a limit that never moves, and an order that asks for no tokens: nothing is to be learnt
        prompt_tokens = output_tokens = None
        if answer is not None:
            prompt_tokens, output_tokens = answer.prompt_tokens, answer.output_tokens
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

    def _predict(self, work: Work, now: float) -> None:
        work.arrived = now
        if self._predictor is None or work.request is None:
            return
        prediction = work.prediction = self._predictor.predict(work.request)
        work.prompt_tokens, work.output_tokens = prediction.prompt_tokens, prediction.output_tokens
        work.output_tokens_min = prediction.output_tokens_min
        work.cost_seconds = self.gate.cost_seconds(work.prompt_tokens, work.output_tokens)

    def _is_doomed(self, work: Work, now: float, now_ms: int) -> bool:
        """Whether the request would miss its deadline even if it started now.

        Never while little is in flight: what the last answers took may no longer be true, and only answers tell.
        """
        if self._predictor is None or len(self.running) < DOOMED_IN_FLIGHT_MIN:
            return False
        return now_ms + 1000 * self.gate.service_seconds_min(work, now) > work.deadline_ms

    def _drop_doomed(self, work: Work, now: float) -> None:
        self.dropped_total += 1
        self._reporter.doomed(work, predicted_seconds=self.gate.service_seconds(work, now))

    def _backend_failed(self, work: Work, failure: Failure, now: float) -> None:
        if failure.of_backend:
            self._stats.backend_failed(failure.reason)
        if failure.refused:
            self.gate.refused(now, self._clock.wall_ms())
        verdicts = self.failures.failed(
            now,
            work,
            failure,
            in_flight=len(self.running),
            seconds_left=(work.deadline_ms - self._clock.wall_ms()) / 1000,
            others_wait=self._others_wait,
        )
        self._say_trouble(now)
        self._carry_out(verdicts)

    def _others_wait(self, kind: Kind) -> bool:
        others = chain(self.running.values(), islice(self.lanes.waiting(), OTHERS_LOOKED_AT_MAX))
        return any(kind_of(work) != kind for work in others)

    def _say_trouble(self, now: float) -> None:
        trouble = self.failures.trouble
        if trouble is None:
            return
        self._in_trouble = True
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

    def _carry_out(self, verdicts: Verdicts) -> None:
        """Charges requests, or puts them back into their lanes."""
        trouble = self.failures.trouble
        if self._in_trouble and trouble is None:
            self._in_trouble = False
            log.info("the backend answers")
        for verdict in verdicts:
            work = verdict.work
            if verdict.charged:
                self.lookahead.ended()
                self._report_failure(work, verdict.failure, work.failed_at)
                continue
            if trouble is not None and not verdict.failure.of_backend:
                self._stats.backend_failed(verdict.failure.reason)
            self._back_to_lane(work)

    def _report_failure(self, work: Work, failure: Failure, now: float) -> None:
        if work.assignment.lost:
            # Taken away without a hand-over: its new owner runs the request again, so a failure here decides nothing.
            self._tracing.let_go(work)
            work.assignment.claims.release(work.offset)
            return
        assert work.request is not None
        service_seconds = now - work.started
        if self._is_cancelled(work):
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
            self._reporter.expired(work, Reason.RETRY_TOO_LATE, cause=failure.error, service_seconds=service_seconds)
        else:
            self._reporter.failed(work, failure, service_seconds=service_seconds)

    def _back_to_lane(self, work: Work) -> None:
        end = self._end_by_control(work, self._clock.wall_ms()) if self.controls.entries else None
        if end is not None:
            end()
            return
        work.assignment.claims.release(work.offset)
        if work.assignment.claims.is_open:
            self.lanes.push(work, self._clock.monotonic())
        else:
            self._tracing.let_go(work)


def _comes_again(work: Work) -> bool:
    """Whether it is read once more, since its topic was made anew at about the time when it was written."""
    void_from_ms = work.assignment.void_from_ms
    return void_from_ms < math.inf and bool(work.record.timestamp()[1] >= void_from_ms)
