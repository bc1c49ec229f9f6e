"""Outcomes: each request's end is written to Kafka, and only what was delivered counts as finished.

The event loop's thread alone uses it. It produces and polls for delivery reports without waiting.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import structlog
from confluent_kafka import KafkaError, KafkaException

from forebay_schemas.clock import Clock
from forebay_schemas.contract.control import ControlAction, Controlled, ControlOutcome, encode_controlled
from forebay_schemas.contract.coordination import Capacity, Notice, encode_capacity, encode_clock_probe, encode_notice
from forebay_schemas.contract.headers import REASON
from forebay_schemas.contract.reasons import REASONS_BY_CODE, Reason
from forebay_schemas.contract.results import ERROR_CHARS_MAX, Result, encode_result
from forebay_schemas.contract.tiers import Tier
from forebay_schemas.contract.topics import Pool
from forebay_worker.bounds import BOUNDS, Bounds
from forebay_worker.cluster.broker_clock import Acknowledged
from forebay_worker.outcome.records import OutRecord, dead_letter, expedited_record, retry_record, without_content
from forebay_worker.outcome.reported import KnownOutcomes
from forebay_worker.request.work import Answer, Failure, Work
from forebay_worker.telemetry.stats import Stats
from forebay_worker.telemetry.tracing import NO_TRACING, Tracing

DELIVERY_STALL_SECONDS = 3.0
"""Without a delivery for so long while records wait, dispatch stops: what cannot be reported must not be run."""

AGAIN_SECONDS = 1.0
REFUSED_AGAIN_SECONDS = 5.0
CLOCK_SAMPLE_SECONDS = 0.25
"""How often a delivery report tells the brokers' time."""

RESULT_OVERHEAD_BYTES = 4 * 1024
SMALL_RECORD_BYTES = 16 * 1024
"""A result that has no body is smaller, and so is a dead letter without its content: a topic must take them."""

_TOO_LARGE = (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE)

_REFUSED_FOR_GOOD = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError.POLICY_VIOLATION,
        KafkaError.INVALID_RECORD,
    }
)

_COMPLETED_STATUS, _COMPLETED_CODE = Reason.COMPLETED.status, Reason.COMPLETED.code
_TIER_NAMES = {tier: tier.value for tier in Tier}

log = structlog.get_logger("forebay.outcome")

Delivered = Callable[[KafkaError | None, Any], None]


class KafkaProducer(Protocol):
    """What is used of confluent-kafka's Producer; the simulated broker gives the same."""

    def produce(
        self, topic: str, value: bytes | None, key: bytes | None, *, headers: Any, on_delivery: Delivered
    ) -> None: ...
    def poll(self, timeout: float) -> int: ...


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
        explain: Callable[[KafkaError, str], str] = lambda error, _: error.str(),
        tracing: Tracing = NO_TRACING,
        bounds: Bounds = BOUNDS,
    ) -> None:
        """``on_acknowledged`` is given a delivery report a few times a second: it tells the brokers' time.

        ``explain`` says in words what is wrong when writing to a topic failed.
        """
        self._bounds = bounds
        self._explain = explain
        self._tracing = tracing
        self._producer = producer
        self._pool = pool
        self._results_topic = pool.results
        self._high_topic = pool.requests(Tier.HIGH)
        self._worker_id = worker_id
        self._clock = clock
        self._stats = stats
        self._on_acknowledged = on_acknowledged
        self._sample_at = 0.0
        # A closure for each delivery report costs 2.4 microseconds (measured); results are found by their key.
        self._awaiting: dict[bytes, Work] = {}
        self._awaiting_same_key: dict[bytes, deque[Work]] = {}
        self._known = KnownOutcomes(bounds)
        # By how long they wait, so that each is in order of time.
        self._again: dict[float, deque[tuple[float, Work, OutRecord]]] = {
            AGAIN_SECONDS: deque(),
            REFUSED_AGAIN_SECONDS: deque(),
        }
        self._last_delivery = clock.monotonic()
        # Asked once for all reports of a look at them: the time costs as much as counting a request does.
        self._polled_ms = clock.wall_ms()
        self.undelivered_records = 0
        self.undelivered_bytes = 0
        self.on_expedite_refused: Callable[[Work], None] = lambda _: None
        """Given a request that Kafka does not take into the high tier: nothing of it is finished."""
        self.fatal: str | None = None
        """Why the producer can never deliver anything again; None while it can."""

    @property
    def undelivered_records_max(self) -> int:
        """With so many undelivered records nothing more is started."""
        return self._bounds.undelivered_records_max

    def accepts(self, now: float) -> bool:
        """Whether more may be started: false when outcomes pile up or none is delivered any more."""
        return self.undelivered_records == 0 or (
            self.undelivered_records < self._bounds.undelivered_records_max
            and self.undelivered_bytes < self._bounds.undelivered_bytes_max
            and now - self._last_delivery < DELIVERY_STALL_SECONDS
        )

    def completed(self, work: Work, answer: Answer, *, service_seconds: float) -> None:
        """The backend answered."""
        assert work.request is not None
        request_id = work.request.request_id
        now_ms = self._clock.wall_ms()
        waited_ms = now_ms - work.first_enqueued_at - int(service_seconds * 1000)
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
        )
        try:
            value = encode_result(result)
        except (TypeError, ValueError) as error:
            problem = f"the handler's answer: {error}"
            self.failed(work, Failure(reason=Reason.HANDLER_FAILED, error=problem), service_seconds=service_seconds)
            return
        if len(value) > self._bounds.result_bytes_max - RESULT_OVERHEAD_BYTES:
            self._too_large(work, len(value), service_seconds)
            return
        self._stats.ended(work, Reason.COMPLETED, service_seconds)
        work.outcome = Reason.COMPLETED
        self._tracing.decided(work, Reason.COMPLETED)
        work.awaiting = 1
        self._produce_result(work, request_id.encode(), value)

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
        self, work: Work, reason: Reason, *, cause: str | None = None, service_seconds: float | None = None
    ) -> None:
        """The deadline passed, before or during the execution, or will before a retry."""
        late_seconds = (self._clock.wall_ms() - work.deadline_ms) / 1000
        error = cause if cause is not None else f"the deadline passed {late_seconds:.3f} s ago"
        self._end(work, reason, error, service_seconds, dead=False)

    def retry(self, work: Work, failure: Failure, *, delay_seconds: int) -> None:
        """The execution failed and is tried again after a delay, by whoever reads the retry topic then."""
        self._stats.retries[work.tier] += 1
        self._tracing.passed_on(work, "retried", failure.reason)
        work.awaiting = 1
        topic = self._pool.retry(work.tier, delay_seconds)
        not_before = self._clock.wall_ms() + delay_seconds * 1000
        onward = self._tracing.onward(work)
        self._produce(
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
        self._produce(work, expedited_record(work, topic=self._high_topic, onward=self._tracing.onward(work)))

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
        self._tell(encode_controlled(answer), lambda _: None)

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

    def failed(self, work: Work, failure: Failure, *, service_seconds: float | None) -> None:
        """The execution failed and nothing more is tried."""
        self._end(work, failure.reason, failure.error, service_seconds, dead=True)

    def rejected(self, work: Work, reason: Reason, error: str) -> None:
        """The record cannot be run at all; it is kept as a dead letter."""
        self._end(work, reason, error, None, dead=True)

    def send_notice(self, notice: Notice, on_delivery: Callable[[bool], None] = lambda _: None) -> None:
        """Tells the other workers something, once; ``on_delivery`` gets whether it is durable. From any thread."""
        self._tell(encode_notice(notice), on_delivery)

    def send_capacity(self, capacity: Capacity, on_delivery: Callable[[bool], None]) -> None:
        """Tells the other workers what this one does, once; ``on_delivery`` as in `send_notice`."""
        self._tell(encode_capacity(capacity), on_delivery)

    def probe_clock(self, on_delivery: Callable[[bool], None] = lambda _: None) -> None:
        """Has a broker tell its time: by the report of a record that no worker heeds."""
        self._tell(encode_clock_probe(self._worker_id), on_delivery)

    def _tell(self, value: bytes, on_delivery: Callable[[bool], None]) -> None:
        def delivered(error: KafkaError | None, message: Any) -> None:
            if error is not None:
                log.warning("notice not delivered", error=self._explain(error, self._pool.coordination))
            else:
                self._on_acknowledged(message)
            on_delivery(error is None)

        try:
            self._producer.produce(
                self._pool.coordination, value, self._worker_id.encode(), headers=None, on_delivery=delivered
            )
        except (BufferError, KafkaException) as error:
            log.warning("notice not sent", error=str(error))
            on_delivery(False)

    def poll(self) -> None:
        """Serves delivery reports and sends again what failed; call it many times a second."""
        self._polled_ms = self._clock.wall_ms()
        self._producer.poll(0)
        now = self._clock.monotonic()
        if self.undelivered_records == 0:
            self._last_delivery = now
        for again in self._again.values():
            while again and again[0][0] <= now:
                _, work, record = again.popleft()
                self._uncount(record.value)
                self._produce(work, record)

    def _too_large(self, work: Work, size_bytes: int, service_seconds: float | None) -> None:
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
            self._produce(work, replace(letter, result=value))
        elif request_id is not None and value is not None:
            self._produce_result(work, request_id.encode(), value)
        if work.awaiting == 0:
            self._tracing.delivered(work, self._clock.monotonic())
            work.assignment.done.append(work.offset)

    def _result(self, work: Work, reason: Reason, *, service_seconds: float | None, **more: Any) -> Result:
        now_ms = self._clock.wall_ms()
        waited_ms = now_ms - work.first_enqueued_at - int((service_seconds or 0) * 1000)
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
            **more,
        )

    def _produce_result(self, work: Work, key: bytes, value: bytes) -> None:
        self._count(value)
        headers = self._tracing.result_headers(work)
        try:
            self._producer.produce(self._results_topic, value, key, headers=headers, on_delivery=self._result_delivered)
        except (BufferError, KafkaException) as error:
            self._later(work, OutRecord(topic=self._results_topic, key=key, value=value, headers=headers or []), error)
            return
        if key in self._awaiting:
            self._awaiting_same_key.setdefault(key, deque()).append(work)
        else:
            self._awaiting[key] = work

    def _produce(self, work: Work, record: OutRecord) -> None:
        self._count(record.value)
        try:
            self._producer.produce(
                record.topic,
                record.value,
                record.key,
                headers=record.headers,
                on_delivery=partial(self._record_delivered, work, record),
            )
        except (BufferError, KafkaException) as error:
            self._later(work, record, error)

    def _result_delivered(self, error: KafkaError | None, message: Any) -> None:
        key = message.key()
        work = self._awaiting.pop(key)
        if key in self._awaiting_same_key:
            others = self._awaiting_same_key[key]
            self._awaiting[key] = others.popleft()
            if not others:
                del self._awaiting_same_key[key]
        if error is None:
            self._delivered(work, message, message.value(), is_result=True)
            return
        value, headers = message.value(), self._tracing.result_headers(work)
        self._later(work, OutRecord(topic=self._results_topic, key=key, value=value, headers=headers or []), error)

    def _record_delivered(self, work: Work, record: OutRecord, error: KafkaError | None, message: Any) -> None:
        if error is None:
            if record.result is not None:
                self._produce_result(work, (work.request_id or "").encode(), record.result)
            self._delivered(work, message, record.value, is_result=False)
            if record.topic == self._high_topic:
                outcome = ControlOutcome.EXPEDITED
                self.answer_control(ControlAction.EXPEDITE, work.request_id or "", outcome, place=message)
        else:
            self._later(work, record, error)

    def _delivered(self, work: Work, message: Any, value: bytes | None, *, is_result: bool) -> None:
        self._uncount(value)
        now = self._last_delivery = self._clock.monotonic()
        if now >= self._sample_at:
            self._sample_at = now + CLOCK_SAMPLE_SECONDS
            self._on_acknowledged(message)
        work.assignment.refused = None
        work.awaiting -= 1
        if work.awaiting == 0:
            self._tracing.delivered(work, now)
            work.assignment.done.append(work.offset)
            if work.outcome is not None:
                self._stats.durable(work, work.outcome, self._polled_ms)
        if is_result:
            self._known.add(work.request_id or "", work.history.replay_count, now)

    def _later(self, work: Work, record: OutRecord, error: BufferError | KafkaException | KafkaError) -> None:
        """A produce failed: it is made again, for ever; its offset stays unfinished meanwhile.

        Size alone would stop it for ever, so what is refused for its size is made again without what makes it large.
        One that Kafka refuses for good (no permission, no such topic) stops its partition, and says so, until it works.
        """
        self._stats.produce_failures += 1
        cause = error.args[0] if isinstance(error, KafkaException) else error
        code = cause.code() if isinstance(cause, KafkaError) else None
        if isinstance(cause, KafkaError) and cause.fatal():
            self.fatal = cause.str()
        if record.topic == self._high_topic and (code in _TOO_LARGE or code in _REFUSED_FOR_GOOD):
            log.error(
                "not taken into the high tier",
                topic=record.topic,
                offset=work.offset,
                error=str(cause),
                traceparent=work.traceparent,
            )
            self._uncount(record.value)
            self.answer_control(ControlAction.EXPEDITE, work.request_id or "", ControlOutcome.REFUSED)
            self.on_expedite_refused(work)
            return
        if code in _TOO_LARGE and record.size_bytes > SMALL_RECORD_BYTES:
            self._uncount(record.value)
            self._without_size(work, record)
            return
        why = self._explain(cause, record.topic) if isinstance(cause, KafkaError) else str(cause)
        again_seconds = AGAIN_SECONDS
        if code in _REFUSED_FOR_GOOD:
            work.assignment.refused = f"{record.topic}: {why}"
            again_seconds = REFUSED_AGAIN_SECONDS
            say, event = log.error, "outcome refused; its partition stops"
        else:
            say, event = log.warning, "outcome not delivered; trying again"
        say(event, topic=record.topic, offset=work.offset, error=why, traceparent=work.traceparent)
        self._again[again_seconds].append((self._clock.monotonic() + again_seconds, work, record))

    def _without_size(self, work: Work, record: OutRecord) -> None:
        if record.topic == self._results_topic:
            self._too_large(work, record.size_bytes, None)
        elif record.topic == self._pool.dead_letter:
            self._produce(work, without_content(record))
        else:
            reason = dict(record.headers)[REASON] or b""
            error = f"it failed, and is too large for {record.topic}"
            self.failed(work, Failure(reason=REASONS_BY_CODE[reason.decode()], error=error), service_seconds=None)

    def _count(self, value: bytes | None) -> None:
        self.undelivered_records += 1
        self.undelivered_bytes += len(value or b"")

    def _uncount(self, value: bytes | None) -> None:
        self.undelivered_records -= 1
        self.undelivered_bytes -= len(value or b"")
