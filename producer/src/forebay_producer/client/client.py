"""The client library's face: submit requests, be told where they lie, wait for their outcomes.

Speaks to the brokers. Delivery reports come on whichever thread serves them: the flusher's, or the batch's own.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Self

import structlog

from forebay_producer.client.codecs import make_codecs
from forebay_producer.client.control_client import ControlAnswer, ControlClient, target_of
from forebay_producer.client.follow import follow, id_of, no_outcome, search_start_ms
from forebay_producer.client.metrics import ProducerMetrics
from forebay_producer.client.open_tracing import make_tracing
from forebay_producer.client.outcome_watch import CLOCK_MARGIN_MS, OutcomeWatch
from forebay_producer.client.prepare import Prepared, names_deadline, prepare
from forebay_producer.client.results_reader import ResultsReader
from forebay_producer.client.sender import Pending, ReportServer, Sender, Submitted
from forebay_producer.client.tier_watch import watch_tiers
from forebay_producer.errors import ProducerClosedError, as_argument
from forebay_producer.settings import ProducerSettings
from forebay_schemas.clock import Clock, SystemClock
from forebay_schemas.contract.control import ControlAction
from forebay_schemas.contract.envelope import Codec, Request
from forebay_schemas.contract.results import Result, decode_result
from forebay_schemas.contract.tiers import Tier
from forebay_schemas.errors import ForebayError, UsageError
from forebay_schemas.kafka.diagnosis import why_refused
from forebay_schemas.kafka.errors import no_answer
from forebay_schemas.runtime.settings import load_settings

# So many records between two looks at the delivery reports: each look costs 2 microseconds.
_BATCH_POLL_RECORDS: Final = 500

_SYSTEM_CLOCK: Final = SystemClock()

CONTROL_WAIT_SECONDS: Final = 5.0
"""How long a cancel or an expedite waits for a worker's answer, unless told."""

_log = structlog.get_logger("forebay.producer")


class Handle(Submitted, frozen=True, gc=False, kw_only=True):
    """A request that ``producer`` has submitted: where it lies, and what can still be done about it."""

    producer: Producer

    def cancel(self, *, wait_seconds: float = CONTROL_WAIT_SECONDS) -> ControlAnswer:
        """As `Producer.cancel`."""
        return self.producer.cancel(self, wait_seconds=wait_seconds)

    def expedite(self, *, wait_seconds: float = CONTROL_WAIT_SECONDS) -> ControlAnswer:
        """As `Producer.expedite`."""
        return self.producer.expedite(self, wait_seconds=wait_seconds)

    def outcome(self, *, timeout_seconds: float) -> Result:
        """As `Producer.outcome`."""
        return self.producer.outcome(self, timeout_seconds=timeout_seconds)


class Producer:
    """Submits requests to a pool and waits for their outcomes. Thread-safe; use it as a context manager.

    Its settings are ``settings``, or what is given here before FOREBAY_ variables before defaults. It counts in
    ``metrics``, which shows nothing unless it is registered with a Prometheus registry. Idempotent: a
    request that the broker acknowledged is there once, however often the network broke. After a fork make a new one.
    Raises ``UsageError`` for settings that cannot be; the brokers are first asked when something is submitted.
    """

    def __init__(
        self,
        *,
        settings: ProducerSettings | None = None,
        bootstrap_servers: str | None = None,
        pool: str | None = None,
        kafka_properties: Path | None = None,
        metrics: ProducerMetrics | None = None,
        clock: Clock = _SYSTEM_CLOCK,
    ) -> None:
        flags = {"bootstrap_servers": bootstrap_servers, "pool": pool, "kafka_properties": kafka_properties}
        if settings is not None and any(value is not None for value in flags.values()):
            raise UsageError("settings", "came with other arguments", fix="give settings, or the single arguments")
        try:
            settings = settings or load_settings(ProducerSettings, flags=flags, config=None)
            self._connection = settings.connection()
            self._pool = settings.pool_topics()
            self._times = settings.tier_times()
            settings.schema_registry()  # what is wrong with its settings is said now, not at the first submit
        except UsageError as error:
            raise as_argument(error) from None
        self._clock = clock
        self._metrics = ProducerMetrics() if metrics is None else metrics
        self._settings = settings
        self._codecs: Mapping[Tier, Codec] | None = None
        self._delivery_seconds = settings.delivery_timeout_seconds
        self._tracing = make_tracing(settings.traces, service="forebay-producer")
        self._stop_tracing = weakref.finalize(self, self._tracing.close)
        # Single requests go at once, batches are made full: with a linger of 0 a batch takes twice the time (measured),
        # with one of 5 ms a single request takes that much longer.
        self._single = self._make_sender(linger_ms=0)
        self._reports = ReportServer(self._single)
        self._bulk: Sender | None = None
        self._control: ControlClient | None = None
        self._control_lock = threading.Lock()
        self._lock = threading.Lock()
        self._closed = False
        self._pid = os.getpid()
        connection, pool_topics = self._connection, self._pool
        self._watch = OutcomeWatch(
            lambda since_ms, open_seconds: ResultsReader(
                connection, pool=pool_topics, since_ms=since_ms, clock=clock, open_seconds=open_seconds
            ),
            clock=clock,
        )
        weakref.finalize(self, self._watch.close)
        self._stamps_defaults = False
        self._tier_watch = watch_tiers(connection, pool=pool_topics, times=self._times, clock=clock)
        # Without a close(): at the garbage collection or the interpreter's exit at the latest.
        self._stop_reports = weakref.finalize(self, self._reports.stop)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def require_topics(self) -> None:
        """Asks whether the pool can be submitted to.

        Raises ``TopicMissingError``, ``BrokerUnreachableError``, and, with Avro and a Schema Registry,
        ``SchemaRegistryUnreachableError`` or ``SchemaRegistryRefusedError``.
        """
        self._bulk_sender().require_topics()
        self._require_codecs()

    def submit(
        self,
        request: Request | Mapping[str, Any],
        *,
        tier: Tier | str | None = None,
        traceparent: str | None = None,
        timeout_seconds: float | None = None,
    ) -> Handle:
        """Sends one request and returns once the broker has it on all in-sync replicas.

        ``request`` is the envelope; ``request_id`` and the deadline are filled in when missing, and what is no field of
        the envelope is sent along. ``tier`` says what ``priority`` does not. Waits while the local queue is full.
        ``traceparent``: the trace that it belongs to, instead of the caller's own where OpenTelemetry is in use.
        ``timeout_seconds``: how long it may take in all, at most as long as the setting ``delivery_timeout_seconds``,
        which it is unless given.

        Raises ``UsageError`` (``EnvelopeError``, ``PastDeadlineError``, ``RecordTooLargeError``) for a request that
        cannot be; ``TopicMissingError``; ``QueueFullError``; ``BrokerUnreachableError`` when no acknowledgement came in
        time, in which case the broker may have the request all the same; ``KafkaFailedError`` when it refused; and what
        `require_topics` raises.
        """
        self._check_usable()
        done = threading.Event()
        seconds = self._delivery_seconds if timeout_seconds is None else min(timeout_seconds, self._delivery_seconds)
        give_up_at = self._single.give_up_at(seconds)
        try:
            codecs = self._require_codecs()
            prepared = self._prepare(request, tier=tier, traceparent=traceparent, codecs=codecs)
            self._single.require_topics(give_up_at=give_up_at)
            self._watch.submitting(prepared.request_id)
            pending = self._single.send(prepared, done=done, give_up_at=give_up_at)
        except ForebayError as error:
            self._metrics.failed(self._pool.name, error.reason)
            raise
        self._reports.wake()
        if not done.wait(max(0.0, give_up_at - self._clock.monotonic())):
            raise self._single.no_answer(seconds)  # counted when the client reports on it
        assert pending.outcome is not None
        if isinstance(pending.outcome, ForebayError):
            raise pending.outcome
        return self._handle(pending.outcome)

    def submit_batch(
        self, requests: Iterable[Request | Mapping[str, Any]], *, tier: Tier | str | None = None
    ) -> list[Handle | ForebayError]:
        """Sends many requests, pipelined; returns in their order what `submit` would have returned or raised for each.

        One that fails stops no other. Raises only when nothing could be sent at all: what `require_topics` raises.
        """
        sender = self._bulk_sender()
        sender.require_topics()
        codecs = self._require_codecs()
        sent: list[Pending | ForebayError] = []
        for number, request in enumerate(requests, start=1):
            try:
                prepared = self._prepare(request, tier=tier, traceparent=None, codecs=codecs)
                self._watch.submitting(prepared.request_id)
                sent.append(sender.send(prepared))
            except ForebayError as error:
                self._metrics.failed(self._pool.name, error.reason)
                sent.append(error)
            if number % _BATCH_POLL_RECORDS == 0:
                sender.serve_reports(timeout_seconds=0)
        outcomes = (sender.wait_for(one) if isinstance(one, Pending) else one for one in sent)
        return [one if isinstance(one, ForebayError) else self._handle(one) for one in outcomes]

    def cancel(self, request: Submitted | str, *, wait_seconds: float = CONTROL_WAIT_SECONDS) -> ControlAnswer:
        """Asks the workers to end a request as ``cancelled``, whether it waits or runs; waits for their answer.

        ``request`` is what `submit` returned, or an id alone: that is found by whoever holds it, or as soon as it is
        read. With ``wait_seconds`` 0 it returns once the wish is on all in-sync replicas, and says nothing of outcomes.

        Raises ``UsageError`` for what is no request id; ``TopicMissingError``, ``BrokerUnreachableError`` and
        ``KafkaFailedError``: nothing was asked for.
        """
        return self.control_batch(ControlAction.CANCEL, [request], wait_seconds=wait_seconds)[0]

    def expedite(self, request: Submitted | str, *, wait_seconds: float = CONTROL_WAIT_SECONDS) -> ControlAnswer:
        """Asks the workers to move a request that waits to the high tier; its deadline stays. Else as `cancel`."""
        return self.control_batch(ControlAction.EXPEDITE, [request], wait_seconds=wait_seconds)[0]

    def control_batch(
        self,
        action: ControlAction,
        requests: Iterable[Submitted | str],
        *,
        wait_seconds: float = CONTROL_WAIT_SECONDS,
    ) -> list[ControlAnswer]:
        """As `cancel` or `expedite`, for many at once; the answers are in the requests' order.

        With ``UsageError`` none of them was asked for; when the brokers fail, some may have been.
        """
        targets = [target_of(request) for request in requests]
        with self._control_lock:
            self._check_usable()
            if self._control is None:
                self._control = ControlClient(
                    self._connection, pool=self._pool, delivery_seconds=self._delivery_seconds, clock=self._clock
                )
        return self._control.ask(action, targets, wait_seconds=wait_seconds)

    def outcome(
        self, request: Submitted | str, *, timeout_seconds: float, since_ms: int | None = None, replay_count: int = 0
    ) -> Result:
        """The request's first outcome, waited for if need be; ``replay_count`` 1 for that of its first replay.

        ``request`` is what `submit` returned, or an id. Looks from the request's submit on; of a request that somebody
        else submitted only its handle tells that time, or ``since_ms`` (epoch milliseconds on the brokers' clock): a
        time at or before its submit. What others submit makes no wait longer, but the outcome of a request that this
        producer has not submitted, or 100,000 requests ago, is searched for in the topic from that time on.

        Raises ``OutcomeTimeoutError``; ``UsageError`` when it is not known where to begin; ``TopicMissingError``;
        ``BrokerUnreachableError`` when no broker has answered in that time.
        """
        self._check_usable()
        request_id = id_of(request)
        begins_ms = self._since([request], since_ms)
        with self._metrics.awaiting(self._pool.name):
            value = self._watch.wait(
                (request_id, replay_count),
                since_ms=begins_ms,
                timeout_seconds=timeout_seconds,
                look_back=since_ms is not None,
            )
        if value is None:
            self._metrics.timed_out(self._pool.name)
            if not self._watch.is_open and (why := why_refused(self._connection.bootstrap_servers)):
                raise no_answer(self._connection, doing="reading results", why=why)
            raise no_outcome([request_id], timeout_seconds)
        result = decode_result(value)
        self._metrics.outcome(self._pool.name, result.status)
        return result

    def outcomes(
        self, requests: Collection[Submitted | str] | None, *, timeout_seconds: float, since_ms: int | None = None
    ) -> Iterator[Result]:
        """The first outcome of each request as it comes, until all are there; ``since_ms`` as for `outcome`.

        Looks from the earliest of their submits on.

        ``requests`` None: of every request of the pool, and of every replay, until the timeout. A request that is
        executed again after so many others that its first outcome is forgotten (200,000) is then told twice. The
        iterator reads the topic itself, so what is not taken from it costs no memory.

        Raises ``OutcomeTimeoutError`` when some did not come in time, else as `outcome`.
        """
        self._check_usable()
        return follow(
            self._connection,
            pool=self._pool,
            request_ids=None if requests is None else {id_of(one) for one in requests},
            since_ms=self._since(requests, since_ms),
            timeout_seconds=timeout_seconds,
            metrics=self._metrics,
            clock=self._clock,
        )

    def close(self, *, timeout_seconds: float | None = None) -> list[str]:
        """Sends what is still queued; returns the ids of requests that were not acknowledged, and logs their number.

        Waits for acknowledgements as long as the delivery timeout at most, or for ``timeout_seconds``. May be called
        again.
        """
        give_up_at = None if timeout_seconds is None else self._clock.monotonic() + timeout_seconds
        with self._lock:
            if self._closed or self._pid != os.getpid():
                return []
            self._closed = True
        self._watch.close(timeout_seconds=timeout_seconds)
        self._tier_watch.close(timeout_seconds=timeout_seconds)
        if self._control is not None:
            self._control.close()
        self._stop_reports()
        undelivered: list[str] = []
        for sender in (self._single, self._bulk):
            if sender is not None:
                left = None if give_up_at is None else max(0.0, give_up_at - self._clock.monotonic())
                undelivered += sender.close(timeout_seconds=left)
        self._stop_tracing()
        if undelivered:
            _log.warning("closed with requests not acknowledged", requests=len(undelivered))
        return undelivered

    def _prepare(
        self,
        request: Request | Mapping[str, Any],
        *,
        tier: Tier | str | None,
        traceparent: str | None,
        codecs: Mapping[Tier, Codec],
    ) -> Prepared:
        if not self._stamps_defaults:
            self._stamps_defaults = not names_deadline(request)
        return prepare(
            request,
            tier=tier,
            traceparent=traceparent,
            codecs=codecs,
            now_ms=self._clock.wall_ms(),
            default_ttl_ms=self._times.ttl_ms,
        )

    def _handle(self, submitted: Submitted) -> Handle:
        self._watch.acknowledged(submitted.request_id, submitted.enqueued_at)
        if self._stamps_defaults:
            self._tier_watch.stamped()
        return Handle(
            request_id=submitted.request_id,
            topic=submitted.topic,
            partition=submitted.partition,
            offset=submitted.offset,
            enqueued_at=submitted.enqueued_at,
            producer=self,
        )

    def _make_sender(self, *, linger_ms: int | None) -> Sender:
        return Sender(
            self._connection,
            pool=self._pool,
            linger_ms=linger_ms,
            delivery_seconds=self._delivery_seconds,
            clock=self._clock,
            metrics=self._metrics,
            tracing=self._tracing,
        )

    def _bulk_sender(self) -> Sender:
        with self._lock:
            self._check_usable()
            if self._bulk is None:
                self._bulk = self._make_sender(linger_ms=None)
            return self._bulk

    def _require_codecs(self) -> Mapping[Tier, Codec]:
        """Asked for once: from then on the Schema Registry may be away."""
        with self._lock:
            if self._codecs is None:
                self._codecs = make_codecs(self._settings)
            return self._codecs

    def _check_usable(self) -> None:
        if self._pid != os.getpid():
            raise ProducerClosedError("this producer was made before a fork; make a new one in this process")
        if self._closed:
            raise ProducerClosedError("the producer is closed")

    def _since(self, requests: Collection[Submitted | str] | None, since_ms: int | None) -> int:
        return search_start_ms(
            requests, since_ms=since_ms, own_submit_ms=self._watch.since_ms, first_submit_ms=self._own_since()
        )

    def _own_since(self) -> int | None:
        """Before this producer's first submit, on the brokers' clock; None when there was none."""
        senders = [sender for sender in (self._single, self._bulk) if sender is not None]
        firsts = [sender.first_enqueued_at for sender in senders if sender.first_enqueued_at is not None]
        return min(firsts) - CLOCK_MARGIN_MS if firsts else None
