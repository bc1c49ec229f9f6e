"""The worker's own dispatch in front of the engine: the real lanes, gate, policy, prediction and drops, not copies.

Only what surrounds them is replaced: the reporter writes to the ledger, and the engine's port stands for the executor.
"""

from __future__ import annotations

from typing import cast

import msgspec

from benchmarks.pacing.engine import CONNECTION_LOST, TOO_LONG, TOO_MANY, Engine, Ledger, VirtualClock
from benchmarks.pacing.workloads import Arrival
from forebay_schemas.contract.envelope import Request
from forebay_schemas.contract.headers import read_history
from forebay_schemas.contract.offsets_metadata import CommitMetadata
from forebay_schemas.contract.reasons import Reason
from forebay_schemas.contract.tiers import DEFAULT_PRIORITY, TIERS
from forebay_worker.dispatch.dispatcher import Dispatcher
from forebay_worker.dispatch.overload import OverloadLadder
from forebay_worker.outcome.reporter import Reporter
from forebay_worker.pacing.gate import Gate
from forebay_worker.pacing.policy import PacingPolicy
from forebay_worker.pacing.prediction import Predictor
from forebay_worker.partition.assignment import Assignment
from forebay_worker.request.copies import Copies
from forebay_worker.request.work import Answer, Failure, FailureScope, Record, Work
from forebay_worker.settings import WorkerSettings
from forebay_worker.telemetry.stats import Stats
from forebay_worker.wiring.choices import make_lanes

BYTES_PER_TOKEN = 4
BUFFER_BYTES_MAX = 1 << 30


class ImmediateDelivery:
    """Nothing is ever on its way."""

    undelivered_records = 0

    def accepts(self, _now: float) -> bool:
        return True


class LedgerReporter:
    """Writes dispatch's outcomes to the ledger. Every delivery is immediate."""

    def __init__(self, ledger: Ledger, clock: VirtualClock) -> None:
        self._ledger = ledger
        self._clock = clock
        self.delivery = ImmediateDelivery()
        self.copies = Copies()

    def take_refused_expedites(self) -> list[Work]:
        return []

    def is_known(self, _work: Work, _now: float) -> bool:
        return False

    def completed(self, work: Work, _answer: Answer, *, service_seconds: float) -> None:
        """The driver has written it down."""

    def doomed(self, work: Work, *, predicted_seconds: float) -> None:  # noqa: ARG002 the reporter's
        self._drop(work, Reason.DEADLINE_UNREACHABLE.code)

    def shed(self, work: Work, *, predicted_seconds: float, cause: str) -> None:  # noqa: ARG002 the reporter's
        self._drop(work, Reason.SHED_OVERLOAD.code)

    def expired(
        self,
        work: Work,
        reason: Reason,
        *,
        cause: str | None = None,  # noqa: ARG002 the reporter's
        service_seconds: float | None = None,  # noqa: ARG002 the reporter's
    ) -> None:
        self._drop(work, reason.code)

    def failed(self, work: Work, failure: Failure, *, service_seconds: float | None) -> None:  # noqa: ARG002
        self._drop(work, f"failed_{failure.reason.code}")

    def retry(self, work: Work, failure: Failure, *, delay_seconds: int) -> None:  # noqa: ARG002
        self._drop(work, f"failed_{failure.reason.code}")

    def _drop(self, work: Work, reason: str) -> None:
        self._ledger.drop(work.offset, self._clock.now, reason)


def make_lanes_front(engine: Engine, ledger: Ledger, clock: VirtualClock, *, policy: PacingPolicy) -> LanesFront:
    """The dispatch that `forebay-worker` runs by default, but for the policy and for retries: a failure is the end."""
    settings = WorkerSettings(backend_url="http://127.0.0.1:8000")
    dispatcher = Dispatcher(
        clock=clock,
        gate=Gate(policy=policy, prefill_seconds_max=settings.prefill_seconds_max),
        predictor=Predictor(),
        lanes=make_lanes(settings),
        overload=OverloadLadder(),
        read_signals=lambda now: (engine.reading(now), engine.gpu(now)),
        reporter=cast(Reporter, LedgerReporter(ledger, clock)),
        stats=Stats(),
        buffer_bytes_max=BUFFER_BYTES_MAX,
        retries_max=0,
    )
    return LanesFront(engine, dispatcher, clock)


class LanesFront:
    """Implements `Front`. Prompts are as long as their tokens say, so that prediction has its real work to do."""

    def __init__(self, engine: Engine, dispatcher: Dispatcher, clock: VirtualClock) -> None:
        self._engine = engine
        self.dispatcher = dispatcher
        self._clock = clock
        self._running: dict[int, Work] = {}
        self._seen_changes = 0
        self._assignments = {
            tier: Assignment(
                topic=f"requests.{tier}",
                partition=0,
                tier=tier,
                retry_delay_seconds=0,
                credit=dispatcher.lookahead.credits[tier],
                now=0.0,
                committed=0,
                metadata=CommitMetadata(released=True),
            )
            for tier in TIERS
        }
        for assignment in self._assignments.values():
            # As after its first commit: no start waits for one.
            assignment.claims.is_announced = True

    @property
    def waiting(self) -> int:
        return len(self.dispatcher.lanes)

    @property
    def limit_requests(self) -> int:
        return self.dispatcher.gate.limit_requests

    def offer(self, key: int, arrival: Arrival, now: float) -> None:  # noqa: ARG002 the clock says it
        now_ms = self._clock.wall_ms()
        text = b"x" * (BYTES_PER_TOKEN * arrival.prompt_tokens)
        payload = b'{"model":"m","max_tokens":%d,"prompt":"%s"}' % (arrival.hint_max_tokens, text)
        work = Work(
            record=cast(Record, None),
            assignment=self._assignments[arrival.tier],
            offset=key,
            size_bytes=len(payload),
            history=read_history(None),
            first_enqueued_at=now_ms,
            request=Request(request_id=str(key), biz_type=arrival.biz_type, payload=msgspec.Raw(payload)),
            priority=DEFAULT_PRIORITY[arrival.tier],
            deadline_ms=now_ms + round((arrival.deadline_seconds - arrival.at_seconds) * 1000),
        )
        self.dispatcher.accept([work])
        self._start()

    def runs(self, key: int) -> bool:
        """Whether this front has sent the request to the engine."""
        return key in self._running

    def waiting_keys(self) -> list[int]:
        """Keys of the requests that are held back."""
        lanes = self.dispatcher.lanes
        return [work.offset for tier in TIERS for work in lanes[tier].waiting_in_order()]

    def withdraw(self, key: int) -> None:
        """Another worker has its partition now."""
        lanes = self.dispatcher.lanes
        lanes.remove(next(work for tier in TIERS for work in lanes[tier].waiting_in_order() if work.offset == key))

    def tick(self, now: float) -> None:  # noqa: ARG002
        self.dispatcher.tick()
        for work in self.dispatcher.overdue():
            if self._running.pop(work.offset, None) is not None:
                self._engine.abort(work.offset)
                self.dispatcher.gave_up(work, deadline_passed=True)
        self._start()

    def step(self, now: float) -> str | None:  # noqa: ARG002 dispatch steps its policy in its own tick
        gate = self.dispatcher.gate
        if gate.changes_total == self._seen_changes:
            return None
        self._seen_changes = gate.changes_total
        return gate.changes[-1].cause

    def finished(self, key: int, now: float, prompt_tokens: int, output_tokens: int) -> None:  # noqa: ARG002
        work = self._running.pop(key)
        self.dispatcher.answered(work, Answer(body=None, prompt_tokens=prompt_tokens, output_tokens=output_tokens))
        self._start()

    def refused(self, key: int, now: float, status: int) -> None:  # noqa: ARG002 the clock says it
        work = self._running.pop(key)
        self.dispatcher.failed(work, _failure(status))
        self._start()

    def _start(self) -> None:
        while (work := self.dispatcher.take()) is not None:
            self._running[work.offset] = work
            self._engine.submit(work.offset)


def _failure(status: int) -> Failure:
    """The failure as the worker's backend makes it."""
    if status == CONNECTION_LOST:
        return Failure(reason=Reason.BACKEND_UNAVAILABLE, error="connection lost", scope=FailureScope.BACKEND)
    if status == TOO_LONG:
        return Failure(reason=Reason.BACKEND_REJECTED, error="HTTP 400")
    reason = Reason.BACKEND_OVERLOADED if status == TOO_MANY else Reason.BACKEND_UNAVAILABLE
    return Failure(reason=reason, error=f"HTTP {status}", scope=FailureScope.OVERLOAD)
