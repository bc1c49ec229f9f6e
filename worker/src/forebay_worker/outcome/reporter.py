"""Outcomes: what each ending of a request writes. `delivery` sees to it that it is written, `announcer` to what other
workers and people are to know. The event loop's thread alone uses it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from confluent_kafka import KafkaError

from forebay_schemas.clock import Clock
from forebay_schemas.contract.control import ControlAction, Controlled, ControlOutcome
from forebay_schemas.contract.headers import REASON
from forebay_schemas.contract.reasons import REASONS_BY_CODE, Reason
from forebay_schemas.contract.results import ERROR_CHARS_MAX, Result, encode_result
from forebay_schemas.contract.tiers import Tier
from forebay_schemas.contract.topics import Pool
from forebay_worker.bounds import BOUNDS, Bounds
from forebay_worker.cluster.broker_clock import Acknowledged
from forebay_worker.outcome.announcer import Announcer
from forebay_worker.outcome.delivery import Delivery
from forebay_worker.outcome.producer import KafkaProducer
from forebay_worker.outcome.records import OutRecord, dead_letter, expedited_record, retry_record, without_content
from forebay_worker.outcome.reported import ReportedOutcomes
from forebay_worker.request.copies import Copies
from forebay_worker.request.replies import awaited_partition, is_answer, reply_of
from forebay_worker.request.work import Answer, Failure, Work
from forebay_worker.telemetry.stats import Stats
from forebay_worker.telemetry.tracing import NO_TRACING, Tracing

RESULT_OVERHEAD_BYTES = 4 * 1024

_COMPLETED_STATUS, _COMPLETED_CODE = Reason.COMPLETED.status, Reason.COMPLETED.code
_TIER_NAMES = {tier: tier.value for tier in Tier}


class Reporter:
    """Writes outcomes. A request is finished when every record of its outcome was delivered (acks=all)."""

    def __init__(
        self,
        *,
        producer: KafkaProducer,
        pool: Pool,
        worker_id: str,
        clock: Clock,
        stats: Stats,
        on_acknowledged: Callable[[Acknowledged], None] = lambda _: None,
        explain: Callable[[KafkaError, str], str],
        tracing: Tracing = NO_TRACING,
        bounds: Bounds = BOUNDS,
        answers_rejected: bool = False,
    ) -> None:
        """``on_acknowledged`` is given a delivery report a few times a second: it tells the brokers' time.

        ``explain`` says in words what is wrong when writing to a topic failed. ``answers_rejected``: what the backend
        calls wrong is no dead letter, whether or not anybody waits for the outcome.
        """
        self._bounds = bounds
        self._answers_rejected = answers_rejected
        self._tracing = tracing
        self._pool = pool
        self._high_topic = pool.requests(Tier.HIGH)
        self._worker_id = worker_id
        self._clock = clock
        self._stats = stats
        self._known = ReportedOutcomes(bounds)
        self.copies = Copies()
        self._refused_expedites: deque[Work] = deque()
        self.announcer = Announcer(
            producer=producer,
            topic=pool.coordination,
            worker_id=worker_id,
            on_acknowledged=on_acknowledged,
            explain=explain,
        )
        self.delivery = Delivery(
            producer=producer,
            pool=pool,
            clock=clock,
            stats=stats,
            tracing=tracing,
            known=self._known,
            copies=self.copies,
            endings=self,
            on_acknowledged=on_acknowledged,
            explain=explain,
            bounds=bounds,
        )

    def completed(self, work: Work, answer: Answer, *, service_seconds: float) -> None:
        """The backend answered."""
        assert work.request is not None
        request_id = work.request.request_id
        now_ms = self._clock.wall_ms()
        waited_ms = now_ms - work.first_enqueued_at - int(service_seconds * 1000)
        first_token_seconds = answer.first_token_seconds
        # Spelt out: by way of `_result` it takes 1.5 microseconds more (measured).
        result = Result(
            request_id=request_id,
            status=_COMPLETED_STATUS,
            reason=_COMPLETED_CODE,
            tier=_TIER_NAMES[work.assignment.tier],
            attempt=work.history.attempt,
            replay_count=work.history.replay_count,
            worker=self._worker_id,
            queue_seconds=waited_ms / 1000 if waited_ms > 0 else 0.0,
            service_seconds=round(service_seconds, 6),
            finished_at=now_ms,
            prompt_tokens=answer.prompt_tokens,
            output_tokens=answer.output_tokens,
            body=answer.body,
            first_token_seconds=None if first_token_seconds is None else round(first_token_seconds, 6),
            usage_added=answer.usage_added or None,
            tenant=work.request.tenant,
            reply=None if (reply := reply_of(work)) is None else reply.echo,
        )
        try:
            value = encode_result(result)
        except (TypeError, ValueError) as error:
            problem = f"the handler's answer: {error}"
            self.failed(work, Failure(reason=Reason.HANDLER_FAILED, error=problem), service_seconds=service_seconds)
            return
        if len(value) > self._bounds.result_bytes_max - RESULT_OVERHEAD_BYTES:
            self._result_too_large(work, len(value), service_seconds)
            return
        self._stats.ended(work, Reason.COMPLETED, service_seconds)
        if first_token_seconds is not None:
            self._stats.first_token_seconds[work.assignment.tier].observe(first_token_seconds)
        work.outcome = Reason.COMPLETED
        self._tracing.decided(work, Reason.COMPLETED)
        work.awaiting = 1
        self.delivery.produce_result(work, request_id.encode(), value)

    def doomed(self, work: Work, *, predicted_seconds: float) -> None:
        """The request is dropped: it would take so long from now, and miss its deadline."""
        left_seconds = (work.deadline_ms - self._clock.wall_ms()) / 1000
        error = f"it would take {predicted_seconds:.3f} s and has {left_seconds:.3f} s left"
        self._end(work, Reason.DEADLINE_UNREACHABLE, error, None, dead=False, predicted_seconds=predicted_seconds)

    def shed(self, work: Work, *, predicted_seconds: float, cause: str) -> None:
        """The request is dropped for the overload that ``cause`` tells of: it would end so long from now, too late."""
        left_seconds = (work.deadline_ms - self._clock.wall_ms()) / 1000
        error = f"it would end in {predicted_seconds:.3f} s and has {left_seconds:.3f} s left; {cause}"
        self._end(work, Reason.SHED_OVERLOAD, error, None, dead=False, predicted_seconds=predicted_seconds)

    def expired(
        self, work: Work, reason: Reason, *, failure: Failure | None = None, service_seconds: float | None = None
    ) -> None:
        """The deadline passed, before or during the execution, or will before the retry that follows a ``failure``."""
        late_seconds = (self._clock.wall_ms() - work.deadline_ms) / 1000
        error = failure.error if failure is not None else f"the deadline passed {late_seconds:.3f} s ago"
        self._end(work, reason, error, service_seconds, dead=False, failure=failure)

    def retry(self, work: Work, failure: Failure, *, delay_seconds: int) -> None:
        """The execution failed and is tried again after a delay, by whoever reads the retry topic then."""
        self._stats.retries[work.tier] += 1
        self._tracing.passed_on(work, "retried", failure.reason)
        work.awaiting = 1
        topic = self._pool.retry(work.tier, delay_seconds)
        not_before = self._clock.wall_ms() + delay_seconds * 1000
        onward = self._tracing.onward(work)
        self.delivery.produce(
            work, retry_record(work, topic=topic, not_before=not_before, reason=failure.reason, onward=onward)
        )

    def cancelled(self, work: Work, *, service_seconds: float | None = None) -> None:
        """Somebody asked for its end."""
        self._end(work, Reason.CANCELLED, "cancelled on request", service_seconds, dead=False)
        self.answer_control(ControlAction.CANCEL, work.request_id or "", ControlOutcome.CANCELLED)

    def expedite(self, work: Work) -> None:
        """The request goes on in the high tier: finished here when it lies there."""
        self._tracing.passed_on(work, "expedited")
        work.awaiting = 1
        self.delivery.produce(work, expedited_record(work, topic=self._high_topic, onward=self._tracing.onward(work)))

    def answer_control(
        self, action: ControlAction, request_id: str, outcome: ControlOutcome, *, place: Any = None
    ) -> None:
        """Tells whoever asked for it what was done, once. ``place``: the delivered record."""
        self._stats.controls[action, outcome] += 1
        answer = Controlled(
            worker=self._worker_id,
            action=action,
            request_id=request_id,
            outcome=outcome,
            topic=None if place is None else place.topic(),
            partition=None if place is None else place.partition(),
            offset=None if place is None else place.offset(),
        )
        self.announcer.send_answer(answer)

    def is_known(self, work: Work, now: float) -> bool:
        """Whether this worker has reported an outcome of the same request."""
        assert work.request is not None
        return self._known.has(work.request.request_id, work.history.replay_count, now)

    def is_known_id(self, request_id: str, now: float) -> bool:
        """Whether this worker has reported an outcome of the request as it was submitted."""
        return self._known.has(request_id, 0, now)

    def skip_duplicate(self, work: Work) -> None:
        """The request has its outcome already: its record is finished without another."""
        self._stats.duplicates[work.tier] += 1
        self._tracing.passed_on(work, "duplicate")
        self._tracing.delivered(work, self._clock.monotonic())
        work.assignment.done.append(work.offset)
        self.delivery.end_copies(work)

    def failed(self, work: Work, failure: Failure, *, service_seconds: float | None) -> None:
        """The execution failed and nothing more is tried. It is a dead letter, unless the failure is an answer that
        somebody waits for."""
        is_answered = is_answer(failure) and (self._answers_rejected or awaited_partition(work) is not None)
        self._end(work, failure.reason, failure.error, service_seconds, dead=not is_answered, failure=failure)

    def rejected(self, work: Work, reason: Reason, error: str) -> None:
        """The record cannot be run at all; it is kept as a dead letter."""
        self._end(work, reason, error, None, dead=True)

    def too_large(self, work: Work, record: OutRecord) -> None:
        """As `Endings.too_large`: a result without its body, a dead letter without its content, no retry."""
        if record.topic == self._pool.results:
            self._result_too_large(work, record.size_bytes, None)
        elif record.topic == self._pool.dead_letter:
            self.delivery.produce(work, without_content(record))
        else:
            reason = dict(record.headers)[REASON] or b""
            error = f"it failed, and is too large for {record.topic}"
            self.failed(work, Failure(reason=REASONS_BY_CODE[reason.decode()], error=error), service_seconds=None)

    def expedited(self, work: Work, place: Any) -> None:
        """As `Endings.expedited`."""
        self.answer_control(ControlAction.EXPEDITE, work.request_id or "", ControlOutcome.EXPEDITED, place=place)

    def expedite_refused(self, work: Work) -> None:
        """As `Endings.expedite_refused`."""
        self.answer_control(ControlAction.EXPEDITE, work.request_id or "", ControlOutcome.REFUSED)
        work.awaiting = 0
        self._refused_expedites.append(work)

    def take_refused_expedites(self) -> list[Work]:
        """Requests that Kafka did not take into the high tier since the last call: still claimed, and not finished."""
        refused = list(self._refused_expedites)
        self._refused_expedites.clear()
        return refused

    def _result_too_large(self, work: Work, size_bytes: int, service_seconds: float | None) -> None:
        error = f"the result has {size_bytes} bytes, a record may have {self._bounds.result_bytes_max}"
        self._end(work, Reason.RESULT_TOO_LARGE, error, service_seconds, dead=True)

    def _end(
        self,
        work: Work,
        reason: Reason,
        error: str,
        service_seconds: float | None,
        *,
        dead: bool,
        predicted_seconds: float | None = None,
        failure: Failure | None = None,
    ) -> None:
        self._stats.ended(work, reason, service_seconds)
        work.outcome = reason
        self._tracing.decided(work, reason)
        request_id = work.request_id
        work.awaiting = int(dead) + int(request_id is not None)
        value = None
        if request_id is not None:
            result = self._result(
                work,
                reason,
                service_seconds=service_seconds,
                error=error[:ERROR_CHARS_MAX],
                predicted_seconds=None if predicted_seconds is None else round(predicted_seconds, 3),
                http_status=None if failure is None else failure.given_status,
                error_body=None if failure is None else failure.error_body,
            )
            value = encode_result(result)
        if dead:
            self._stats.died(reason)
            letter = dead_letter(
                work,
                topic=self._pool.dead_letter,
                group=self._pool.retry_group if work.assignment.retry_delay_seconds else self._pool.group(work.tier),
                worker_id=self._worker_id,
                reason=reason,
                error=error,
                onward=self._tracing.onward(work),
            )
            # One after the other: whoever finds the result after a crash of this worker knows that nothing is owed.
            self.delivery.produce(work, replace(letter, result=value))
        elif request_id is not None and value is not None:
            self.delivery.produce_result(work, request_id.encode(), value)
        self.delivery.finish_if_delivered(work)

    def _result(self, work: Work, reason: Reason, *, service_seconds: float | None, **more: Any) -> Result:
        now_ms = self._clock.wall_ms()
        waited_ms = now_ms - work.first_enqueued_at - int((service_seconds or 0) * 1000)
        reply = reply_of(work)
        return Result(
            request_id=work.request_id or "",
            status=reason.status,
            reason=reason.code,
            tier=work.tier.value,
            attempt=work.attempt,
            replay_count=work.history.replay_count,
            worker=self._worker_id,
            queue_seconds=max(0, waited_ms) / 1000,
            service_seconds=None if service_seconds is None else round(service_seconds, 6),
            finished_at=now_ms,
            tenant=None if work.request is None else work.request.tenant,
            reply=None if reply is None else reply.echo,
            **more,
        )
