"""Delivery: records of outcomes are produced, counted while they are in flight, and produced again if that fails.

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

from forebay_schemas.bounded import BoundedMap
from forebay_schemas.clock import Clock
from forebay_schemas.contract.results import with_reply
from forebay_schemas.contract.tiers import Tier
from forebay_schemas.contract.topics import Pool
from forebay_worker.bounds import Bounds
from forebay_worker.cluster.broker_clock import Acknowledged
from forebay_worker.outcome.producer import BY_KEY, KafkaProducer
from forebay_worker.outcome.records import OutRecord
from forebay_worker.outcome.reported import ReportedOutcomes
from forebay_worker.request.copies import Copies
from forebay_worker.request.replies import awaited_partition, reply_of
from forebay_worker.request.work import Work
from forebay_worker.telemetry.stats import Stats
from forebay_worker.telemetry.tracing import Tracing

DELIVERY_STALL_SECONDS = 3.0
"""After this time without a delivery, while records wait, dispatch stops: a request that cannot be reported must not
run."""

AGAIN_SECONDS = 1.0
REFUSED_AGAIN_SECONDS = 5.0
NEW_PARTITION_SECONDS = 2.0
"""A partition that the client does not know may be new: it asks for its topics' partitions every second. Shorter than
`DELIVERY_STALL_SECONDS`: awaited partitions that do not exist must not stop dispatch."""

ABSENT_SECONDS = 10.0
"""For so long no result waits again for a partition that did not exist."""

ABSENT_MAX = 1_000
CLOCK_SAMPLE_SECONDS = 0.25
"""Interval at which a delivery report is used to learn the brokers' time."""

SMALL_RECORD_BYTES = 16 * 1024
"""Results without a body and dead letters without their content are smaller: topics must accept them."""

_TOO_LARGE = (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE)

_NO_SUCH_PARTITION = frozenset({KafkaError._UNKNOWN_PARTITION, KafkaError.UNKNOWN_TOPIC_OR_PART})

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

log = structlog.get_logger("forebay.outcome")


class Endings(Protocol):
    """Decides how a request goes on when Kafka accepts or refuses its record."""

    def too_large(self, work: Work, record: OutRecord) -> None:
        """The topic accepts no record of this size: the request must end with a smaller one."""

    def expedited(self, work: Work, place: Any) -> None:
        """The request is in the high tier. ``place``: the delivered record."""

    def expedite_refused(self, work: Work) -> None:
        """Kafka refuses the request in the high tier: nothing of it is finished."""


class Delivery:
    """A request is finished when every record of its outcome was delivered (acks=all).

    ``on_acknowledged`` gets a delivery report a few times a second, which shows the brokers' time. ``explain`` puts a
    failed write into words.
    """

    def __init__(
        self,
        *,
        producer: KafkaProducer,
        pool: Pool,
        clock: Clock,
        stats: Stats,
        tracing: Tracing,
        known: ReportedOutcomes,
        copies: Copies,
        endings: Endings,
        on_acknowledged: Callable[[Acknowledged], None],
        explain: Callable[[KafkaError, str], str],
        bounds: Bounds,
    ) -> None:
        self._producer = producer
        self._results_topic = pool.results
        self._high_topic = pool.requests(Tier.HIGH)
        self._clock = clock
        self._stats = stats
        self._tracing = tracing
        self._known = known
        self._copies = copies
        self._endings = endings
        self._on_acknowledged = on_acknowledged
        self._explain = explain
        self._bounds = bounds
        self._sample_at = 0.0
        # A closure for each delivery report costs 2.4 microseconds (measured); results are found by their key.
        self._awaiting: dict[bytes, Work] = {}
        self._awaiting_same_key: dict[bytes, deque[Work]] = {}
        # By how long they wait, so that each is in order of time.
        self._again: dict[float, deque[tuple[float, Work, OutRecord]]] = {
            AGAIN_SECONDS: deque(),
            REFUSED_AGAIN_SECONDS: deque(),
            NEW_PARTITION_SECONDS: deque(),
        }
        self._absent_since: BoundedMap[int, float] = BoundedMap(entries_max=ABSENT_MAX)
        self._last_delivery = clock.monotonic()
        # Asked once for all reports of a look at them: the time costs as much as counting a request does.
        self._polled_ms = clock.wall_ms()
        self.undelivered_records = 0
        self.undelivered_bytes = 0
        self.fatal: str | None = None
        """Why the producer can never deliver anything again; None while it can."""

    def accepts(self, now: float) -> bool:
        """Whether more may start: False if outcomes pile up or none is delivered any more."""
        return self.undelivered_records == 0 or (
            self.undelivered_records < self._bounds.undelivered_records_max
            and self.undelivered_bytes < self._bounds.undelivered_bytes_max
            and now - self._last_delivery < DELIVERY_STALL_SECONDS
        )

    def poll(self) -> None:
        """Serves delivery reports and retries failed records; call it many times a second."""
        self._polled_ms = self._clock.wall_ms()
        self._producer.poll(0)
        now = self._clock.monotonic()
        if self.undelivered_records == 0:
            self._last_delivery = now
        for again in self._again.values():
            while again and again[0][0] <= now:
                _, work, record = again.popleft()
                self._uncount(record.value)
                self.produce(work, record)

    def produce_result(self, work: Work, key: bytes, value: bytes) -> None:
        """Produces a result, to the partition that it is awaited in."""
        partition = awaited_partition(work)
        if partition is not None:
            self.produce(work, self._result_record(work, key, value, partition))
            return
        self._count(value)
        headers = self._tracing.result_headers(work)
        try:
            self._producer.produce(self._results_topic, value, key, headers=headers, on_delivery=self._result_delivered)
        except (BufferError, KafkaException) as error:
            self._later(work, self._result_record(work, key, value, None), error)
            return
        if key in self._awaiting:
            self._awaiting_same_key.setdefault(key, deque()).append(work)
        else:
            self._awaiting[key] = work

    def produce(self, work: Work, record: OutRecord) -> None:
        """Produces any other record of an outcome; its ``result`` once it is durable."""
        self._count(record.value)
        try:
            self._producer.produce(
                record.topic,
                record.value,
                record.key,
                BY_KEY if record.partition is None else record.partition,
                headers=record.headers,
                on_delivery=partial(self._record_delivered, work, record),
            )
        except (BufferError, KafkaException) as error:
            self._later(work, record, error)

    def finish_if_delivered(self, work: Work) -> None:
        """Finishes a request without undelivered records."""
        if work.awaiting == 0:
            self._tracing.delivered(work, self._clock.monotonic())
            work.assignment.done.append(work.offset)
            self.end_copies(work)

    def end_copies(self, first: Work, result: Any = None) -> None:
        """Finishes the copies of a request that is finished. ``result``: its delivered result, which is written to each
        other partition that a copy awaits it in; None for a request that goes on elsewhere."""
        copies = self._copies.end(first)
        if not copies:
            return
        now = self._clock.monotonic()
        partitions: set[int] = set() if result is None else {result.partition()}
        for copy in copies:
            if not copy.assignment.claims.claim(copy.offset):
                continue  # its new owner sees to it
            self._stats.copies[copy.tier] += 1
            self._tracing.passed_on(copy, "duplicate")
            reply = reply_of(copy)
            if result is None or reply is None or reply.partition is None or reply.partition in partitions:
                self._finish(copy, now)
                continue
            partitions.add(reply.partition)
            copy.awaiting = 1
            value = with_reply(result.value(), reply.echo, bytes_max=self._bounds.result_bytes_max)
            self.produce(copy, self._result_record(copy, result.key(), value, reply.partition))

    def _finish(self, work: Work, now: float) -> None:
        self._tracing.delivered(work, now)
        work.assignment.done.append(work.offset)

    def _result_record(self, work: Work, key: bytes, value: bytes, partition: int | None) -> OutRecord:
        headers = self._tracing.result_headers(work) or []
        return OutRecord(topic=self._results_topic, key=key, value=value, headers=headers, partition=partition)

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
        self._later(work, self._result_record(work, key, message.value(), None), error)

    def _record_delivered(self, work: Work, record: OutRecord, error: KafkaError | None, message: Any) -> None:
        if error is None:
            if record.result is not None:
                self.produce_result(work, (work.request_id or "").encode(), record.result)
            self._delivered(work, message, record.value, is_result=record.topic == self._results_topic)
            if record.topic == self._high_topic:
                self._endings.expedited(work, message)
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
        if is_result:
            self._known.add(work.request_id or "", work.history.replay_count, now)
        if work.awaiting == 0:
            self._finish(work, now)
            if work.outcome is not None:
                self._stats.durable(work, work.outcome, self._polled_ms)
            self.end_copies(work, message if is_result else None)

    def _later(self, work: Work, record: OutRecord, error: BufferError | KafkaException | KafkaError) -> None:
        """Retries a failed produce for ever; its offset stays unfinished meanwhile.

        A record refused for its size would be refused for ever, so it is made again without its large part. One that
        Kafka refuses for good (no permission, no such topic) stops its partition, and is reported, until it works.
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
            self._endings.expedite_refused(work)
            return
        if record.partition is not None and code in _NO_SUCH_PARTITION:
            self._look_elsewhere(work, record, record.partition)
            return
        if code in _TOO_LARGE and record.size_bytes > SMALL_RECORD_BYTES:
            self._uncount(record.value)
            self._endings.too_large(work, record)
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

    def _look_elsewhere(self, work: Work, record: OutRecord, partition: int) -> None:
        """A result is awaited in a partition that the client does not know: it is tried once more, in case the
        partition is new, then the result goes where its key belongs."""
        now = self._clock.monotonic()
        absent_since = self._absent_since.get(partition)
        if absent_since is None or now - absent_since > ABSENT_SECONDS:
            self._absent_since.put(partition, absent_since := now)
        if now - absent_since < NEW_PARTITION_SECONDS:
            self._again[NEW_PARTITION_SECONDS].append((now + NEW_PARTITION_SECONDS, work, record))
            return
        self._uncount(record.value)
        if work.outcome is None:
            # A copy's: the result lies where the key belongs, or where the first is awaited.
            work.awaiting = 0
            self._finish(work, now)
        else:
            self.produce(work, replace(record, partition=None))

    def _count(self, value: bytes | None) -> None:
        self.undelivered_records += 1
        self.undelivered_bytes += len(value or b"")

    def _uncount(self, value: bytes | None) -> None:
        self.undelivered_records -= 1
        self.undelivered_bytes -= len(value or b"")
