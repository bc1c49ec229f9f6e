"""Sends records with librdkafka and turns delivery reports into results or errors. Talks to the brokers.

Reports arrive on the thread that polls for them; `ReportServer` is a thread that only does that.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, Protocol

import msgspec
from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka import Producer as KafkaProducer

from forebay_producer.client.metrics import ProducerMetrics
from forebay_producer.client.prepare import Prepared
from forebay_producer.client.tracing import NO_TRACING, SendSpan, SendTracing
from forebay_producer.errors import NotDeliveredError, ProducerClosedError, QueueFullError, RecordTooLargeError
from forebay_schemas.clock import Clock
from forebay_schemas.contract.headers import headers_size_bytes
from forebay_schemas.contract.tiers import TIERS
from forebay_schemas.contract.topics import REQUEST_BYTES_MAX, Pool
from forebay_schemas.errors import BrokerUnreachableError, ForebayError, TopicMissingError, UsageError
from forebay_schemas.kafka.clients import create_client
from forebay_schemas.kafka.configs import producer_config
from forebay_schemas.kafka.connection import KafkaConnection
from forebay_schemas.kafka.diagnosis import why_refused
from forebay_schemas.kafka.errors import as_forebay_error, no_answer
from forebay_schemas.kafka.metadata import METADATA_TIMEOUT_SECONDS, require_topics
from forebay_schemas.kafka.permissions import Operation, on_topic
from forebay_schemas.kafka.properties_file import PROPERTIES_FIELD

QUEUED_KBYTES_MAX: Final = 64 * 1024
"""What a sender's queue holds at most, beside librdkafka's own limit of 100,000 records."""

_POLL_SECONDS: Final = 0.05
_FLUSH_SECONDS: Final = 0.01

# librdkafka checks for timed-out records once a second.
_TIMEOUT_CHECK_SECONDS: Final = 2.0
_PURGE_SECONDS_MIN: Final = 0.1
_WORTH_ASKING_SECONDS: Final = 0.1
_HASTY_SECONDS: Final = 1.0

_FOR_ANOTHER_CAUSE: Final = {KafkaError._FATAL, KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT}
"""What the client says of records that it gave up because of a fatal error."""


class Submitted(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The position of an accepted request. ``enqueued_at``: epoch milliseconds on the broker's clock."""

    request_id: str
    topic: str
    partition: int
    offset: int
    enqueued_at: int


class Done(Protocol):
    """What a sent record's report sets, on the thread that serves it."""

    def set(self) -> None: ...


class Pending:
    """A record that was handed to librdkafka. Once it is reported on, ``outcome`` is there, and ``done`` is set."""

    __slots__ = ("_sender", "done", "outcome", "record_bytes", "request_id", "sent_at", "span", "tier", "topic")

    def __init__(self, sender: Sender, prepared: Prepared, topic: str, done: Done | None, span: SendSpan) -> None:
        self._sender = sender
        self.span = span
        self.request_id = prepared.request_id
        self.tier = prepared.tier
        self.sent_at = 0.0
        self.topic = topic
        self.record_bytes = len(prepared.value) + len(prepared.request_id) + headers_size_bytes(prepared.headers)
        self.done = done
        self.outcome: Submitted | ForebayError | None = None

    def report(self, error: KafkaError | None, message: Message) -> None:
        """librdkafka's delivery report. Never raises."""
        self.outcome = outcome = self._sender.judge(self, error, message)
        if isinstance(outcome, Submitted):
            self.span.delivered(outcome.partition, outcome.offset)
        else:
            self.span.failed(outcome.reason)
        if self.done is not None:
            self.done.set()


class Sender:
    """One Kafka producer for a pool's request topics. Thread-safe. Must be closed.

    ``linger_ms``: how long a record waits for others to join its batch; None = as the connection's properties say.
    ``delivery_seconds``: how long a record may wait for its acknowledgement, and a caller for room in the queue.
    """

    def __init__(
        self,
        connection: KafkaConnection,
        *,
        pool: Pool,
        linger_ms: int | None,
        delivery_seconds: float,
        clock: Clock,
        metrics: ProducerMetrics,
        tracing: SendTracing = NO_TRACING,
    ) -> None:
        self._connection = connection
        self._tracing = tracing
        self._pool = pool
        self._topics = {tier: pool.requests(tier) for tier in TIERS}
        self._topics_exist = False
        self._asking = threading.Lock()
        self._answers = 0
        self._refusal: ForebayError | None = None
        self._refused_after = 0.0
        self._delivery_seconds = delivery_seconds
        self._clock = clock
        self._metrics = metrics
        metrics.add_pool(pool.name)
        self._fatal: KafkaError | None = None
        self._closed = False
        self._in_flight: set[Pending] = set()
        self.first_enqueued_at: int | None = None
        for name in ("message.timeout.ms", "delivery.timeout.ms"):
            if name in connection.properties:
                fix = "set FOREBAY_DELIVERY_TIMEOUT_SECONDS instead"
                raise UsageError(PROPERTIES_FIELD, f"sets {name}", fix=fix)
        config = producer_config(connection, client_id="forebay-producer", record_bytes_max=REQUEST_BYTES_MAX)
        config.setdefault("queue.buffering.max.kbytes", QUEUED_KBYTES_MAX)
        config["message.timeout.ms"] = int(delivery_seconds * 1000)
        if linger_ms is not None:
            config["linger.ms"] = linger_ms
        self._client = create_client(KafkaProducer, config)

    def give_up_at(self, timeout_seconds: float | None) -> float:
        """When a call that begins now gives up, in monotonic seconds; None: after the delivery timeout."""
        return self._clock.monotonic() + (self._delivery_seconds if timeout_seconds is None else timeout_seconds)

    @property
    def topics_exist(self) -> bool:
        """Whether `require_topics` returns at once."""
        return self._topics_exist

    def require_topics(self, *, give_up_at: float | None = None) -> None:
        """Raises ``TopicMissingError`` and ``BrokerUnreachableError``. Stops asking after the first success."""
        # librdkafka itself would queue records for a missing topic for half a minute.
        if self._topics_exist:
            return
        if give_up_at is None:
            give_up_at = self.give_up_at(None)
        # One call asks for all that wait: the answer lists every topic of the cluster and may take long.
        answers_seen, seconds = self._answers, min(METADATA_TIMEOUT_SECONDS, give_up_at - self._clock.monotonic())
        if not self._asking.acquire(timeout=max(0.0, give_up_at - self._clock.monotonic())):
            why = why_refused(self._connection.bootstrap_servers) or "another call is still asking"
            raise no_answer(self._connection, doing="listing topics", why=why)
        try:
            self._ask_for_topics(answers_seen, give_up_at, seconds)
        finally:
            self._asking.release()

    def send(self, prepared: Prepared, *, done: Done | None = None, give_up_at: float | None = None) -> Pending:
        """Queues a record; waits for room while the queue is full, until ``give_up_at`` (monotonic seconds) at most.

        Raises ``QueueFullError``, ``RecordTooLargeError``, ``ProducerClosedError``, ``KafkaFailedError``: not sent.
        """
        topic = self._topics[prepared.tier]
        pending = Pending(self, prepared, topic, done, self._tracing.sending(prepared, topic))
        pending.sent_at = self._clock.monotonic()
        self._in_flight.add(pending)
        try:
            self._produce(prepared, pending, give_up_at)
        except BaseException as error:
            self._in_flight.discard(pending)
            pending.span.failed(error.reason if isinstance(error, ForebayError) else type(error).__name__)
            raise
        return pending

    def serve_reports(self, *, timeout_seconds: float) -> None:
        """Calls `Pending.report` for each delivery report; waits up to ``timeout_seconds`` for one."""
        self._serve(self._client.poll, timeout_seconds)

    def wait_for(self, pending: Pending) -> Submitted | ForebayError:
        """Waits for the record's result. Serves reports meanwhile, and sends the queue without lingering."""
        while (outcome := pending.outcome) is None:
            self._serve(self._client.flush, _FLUSH_SECONDS)
        return outcome

    def in_flight(self) -> bool:
        """Whether a record has no delivery report yet."""
        return bool(self._in_flight)

    def close(self, *, timeout_seconds: float | None = None) -> list[str]:
        """Waits for the acknowledgements, for ``timeout_seconds`` or as long as a record may; returns the ids of the
        requests without one."""
        self._closed = True
        waiting = tuple(self._in_flight)
        if timeout_seconds is None:
            timeout_seconds = self._delivery_seconds + _TIMEOUT_CHECK_SECONDS
        self._serve(self._client.flush, timeout_seconds)
        if self._in_flight:
            self._client.purge()
            self._serve(self._client.flush, min(_TIMEOUT_CHECK_SECONDS, max(_PURGE_SECONDS_MIN, timeout_seconds)))
        self._client.close()
        return [pending.request_id for pending in waiting if not isinstance(pending.outcome, Submitted)]

    def _serve(self, call: Callable[[float], object], seconds: float) -> None:
        try:
            call(seconds)
        except KafkaException as error:
            # Why it can send nothing any more the client tells once and by raising: a principal that may write to no
            # topic gets no producer id.
            if not error.args[0].fatal():
                raise
            self._fatal = error.args[0]
            # What waits for a producer id is reported as failed now, not only after its timeout.
            self._client.purge(in_queue=True, in_flight=False, blocking=False)

    def _produce(self, prepared: Prepared, pending: Pending, give_up_at: float | None) -> None:
        began: float | None = None
        headers = pending.span.headers(prepared.headers)
        while True:
            if self._closed:
                raise ProducerClosedError("the producer is closed")
            try:
                self._client.produce(
                    pending.topic,
                    value=prepared.value,
                    key=prepared.request_id,
                    headers=headers,
                    on_delivery=pending.report,
                )
            except BufferError:
                now = self._clock.monotonic()
                if began is None:
                    began = now
                if now >= (began + self._delivery_seconds if give_up_at is None else give_up_at):
                    raise QueueFullError(
                        f"the local queue was full for {now - began:.3g} s: the brokers take less than is"
                        " submitted; submit more slowly, or raise queue.buffering.max.kbytes and .messages"
                    ) from None
                self._serve(self._client.poll, _POLL_SECONDS)
            except KafkaException as error:
                if error.args[0].code() == KafkaError._FATAL:
                    self._serve(self._client.poll, 0)  # it tells why
                raise self._explain(error.args[0], pending) from None
            except RuntimeError:
                # Raised by confluent-kafka when another thread has closed the client.
                if self._closed:
                    raise ProducerClosedError("the producer is closed") from None
                raise
            else:
                return

    def _ask_for_topics(self, answers_seen: int, give_up_at: float, seconds: float) -> None:
        """``seconds``: how long the caller was ready to wait when it called."""
        if self._topics_exist:
            return
        left_seconds = min(METADATA_TIMEOUT_SECONDS, give_up_at - self._clock.monotonic())
        refusal = self._refusal if self._answers != answers_seen else None
        # The call that asked may have had a shorter timeout than this one.
        is_hasty = isinstance(refusal, BrokerUnreachableError) and self._refused_after < seconds - _HASTY_SECONDS
        if refusal is not None and not (is_hasty and left_seconds >= _WORTH_ASKING_SECONDS):
            raise refusal.with_traceback(None)
        try:
            require_topics(
                self._client,
                self._topics.values(),
                connection=self._connection,
                pool=self._pool.name,
                operation=Operation.WRITE,
                timeout_seconds=max(left_seconds, _WORTH_ASKING_SECONDS),
            )
        except ForebayError as error:
            self._refusal, self._refused_after = error, left_seconds
            raise
        else:
            self._topics_exist = True
        finally:
            self._answers += 1

    def judge(self, pending: Pending, error: KafkaError | None, message: Message) -> Submitted | ForebayError:
        """The result that a delivery report stands for."""
        self._in_flight.discard(pending)
        if error is not None:
            failure = self._explain(error, pending)
            self._metrics.failed(self._pool.name, failure.reason)
            return failure
        self._metrics.acknowledged(self._pool.name, pending.tier, self._clock.monotonic() - pending.sent_at)
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        enqueued_at = message.timestamp()[1]
        if self.first_enqueued_at is None:
            self.first_enqueued_at = enqueued_at
        return Submitted(
            request_id=pending.request_id,
            topic=pending.topic,
            partition=partition,
            offset=offset,
            enqueued_at=enqueued_at,
        )

    def no_answer(self, seconds: float) -> ForebayError:
        """The error for a record without acknowledgement after ``seconds``; probes the brokers for the cause."""
        why = why_refused(self._connection.bootstrap_servers)
        return self._unacknowledged(seconds, why=f" ({why})" if why else "")

    def _unacknowledged(self, seconds: float, *, why: str = "") -> ForebayError:
        if self._connection.watch.authentication_failure is not None:
            error = KafkaError(KafkaError._MSG_TIMED_OUT)
            return as_forebay_error(error, connection=self._connection, doing="submitting", needs=None)
        return BrokerUnreachableError(
            f"no acknowledgement from {self._connection.bootstrap_servers} within {seconds:g} s{why};"
            " the broker may have the request all the same. Check FOREBAY_BOOTSTRAP_SERVERS and that Kafka runs"
        )

    def _explain(self, error: KafkaError, pending: Pending) -> ForebayError:
        if error.code() in _FOR_ANOTHER_CAUSE and self._fatal is not None:
            error = self._fatal
        code = error.code()
        if code == KafkaError.MSG_SIZE_TOO_LARGE:
            return RecordTooLargeError(record_bytes=pending.record_bytes, bytes_max=REQUEST_BYTES_MAX)
        if code in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION):
            self._topics_exist = False
            return TopicMissingError([pending.topic], pool=self._pool.name)
        if code in (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT):
            return NotDeliveredError(f"request {pending.request_id} was not acknowledged before the producer closed")
        if code == KafkaError._MSG_TIMED_OUT and self._connection.watch.authentication_failure is None:
            return self._unacknowledged(self._delivery_seconds)
        return as_forebay_error(
            error,
            connection=self._connection,
            doing=f"submitting to {pending.topic}",
            needs=on_topic(Operation.WRITE, pending.topic),
        )


class ReportServer:
    """A thread that serves a sender's reports while records are in flight; starts at the first `wake`.

    Must be stopped.
    """

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._lock = threading.Lock()
        self._work = threading.Event()
        self._stopping = False
        self._started = False
        # A daemon, so that an owner that forgets to stop it can still exit.
        self._thread = threading.Thread(target=self._run, name="forebay-producer-reports", daemon=True)

    def wake(self) -> None:
        """Notifies the thread of a sent record. Never blocks."""
        self._work.set()
        if not self._started:
            with self._lock:
                self._start()

    def stop(self) -> None:
        """Ends the thread within a tenth of a second. May be called again."""
        with self._lock:
            self._stopping = True
        self._work.set()
        if self._started and self._thread is not threading.current_thread():
            self._thread.join()

    def _start(self) -> None:
        if not self._started and not self._stopping:
            self._thread.start()
            self._started = True

    def _run(self) -> None:
        while not self._stopping:
            self._work.wait()
            self._work.clear()
            while self._sender.in_flight() and not self._stopping:
                self._sender.serve_reports(timeout_seconds=_POLL_SECONDS)
