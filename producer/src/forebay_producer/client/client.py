"""The client library's public classes: submit requests, cancel and expedite them, wait for their outcomes.

Talks to the brokers. Delivery reports arrive on the report thread, or on the thread that submits a batch.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

import structlog

from forebay_producer.admission.admission import Admission
from forebay_producer.admission.gate import AdmissionGate
from forebay_producer.client.codecs import make_codecs
from forebay_producer.client.control_client import ControlAnswer, ControlClient, target_of
from forebay_producer.client.follow import follow, id_of, no_outcome, search_start_ms
from forebay_producer.client.handle import CONTROL_WAIT_SECONDS, Handle
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

# Records between two polls for delivery reports: each poll costs 2 microseconds.
_BATCH_POLL_RECORDS: Final = 500

_SYSTEM_CLOCK: Final = SystemClock()

_log = structlog.get_logger("forebay.producer")


class Producer:
    """Submits requests to a pool and waits for their outcomes. Thread-safe; use it as a context manager.

    Settings come from ``settings``, or from the arguments, then FOREBAY_ variables, then defaults. ``metrics`` counts;
    register it with a Prometheus registry to expose the counts. Submits are idempotent: an acknowledged request is
    stored once, even after network failures. After a fork create a new producer. ``admission`` refuses requests that
    would wait in vain; without it every valid request is sent.

    Raises ``UsageError`` for invalid settings. Connects lazily, on the first submit.
    """

    def __init__(
        self,
        *,
        settings: ProducerSettings | None = None,
        bootstrap_servers: str | None = None,
        pool: str | None = None,
        kafka_properties: Path | None = None,
        metrics: ProducerMetrics | None = None,
        admission: Admission | None = None,
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
            settings.schema_registry()  # invalid settings fail now, not at the first submit
        except UsageError as error:
            raise as_argument(error) from None
        self._clock = clock
        self._metrics = ProducerMetrics() if metrics is None else metrics
        self._settings = settings
        self._codecs: Mapping[Tier, Codec] | None = None
        self._delivery_seconds = settings.delivery_timeout_seconds
        self._tracing = make_tracing(settings.traces, service="forebay-producer")
        self._stop_tracing = weakref.finalize(self, self._tracing.close)
        # Single requests are sent at once, batches linger: a linger of 0 doubles the time of a batch (measured), one of
        # 5 ms delays a single request by as much.
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
        self._gate = AdmissionGate(
            admission,
            connection=connection,
            pool=pool_topics,
            times=self._times,
            clock=clock,
            count=partial(self._metrics.decided, pool_topics.name),
        )
        self._stamps_defaults = False
        self._tier_watch = watch_tiers(connection, pool=pool_topics, times=self._times, clock=clock)
        # Without a close(), at garbage collection or at the interpreter's exit.
        self._stop_reports = weakref.finalize(self, self._reports.stop)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def require_topics(self) -> None:
        """Checks that requests can be submitted to the pool.

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
        do_not_queue: bool = False,
    ) -> Handle:
        """Sends one request and returns once the broker has it on all in-sync replicas.

        ``request`` is the envelope. A missing ``request_id`` or deadline is filled in; unknown fields are sent along.
        ``tier`` is needed only where ``priority`` does not give it. Blocks while the local queue is full.
        ``traceparent`` names the trace of the request; by default it is the caller's, where OpenTelemetry is in use.
        ``do_not_queue``: with an ``admission``, refuses the request unless it would start at once.
        ``timeout_seconds`` bounds the whole call. Default and upper bound: the setting ``delivery_timeout_seconds``.

        Raises ``UsageError`` (``EnvelopeError``, ``PastDeadlineError``, ``RecordTooLargeError``) for an invalid
        request; ``TopicMissingError``; ``QueueFullError``; ``BrokerUnreachableError`` when no acknowledgement arrived
        in time, though the broker may have stored the request; ``KafkaFailedError`` when the broker refused;
        ``AdmissionRefusedError``; and what `require_topics` raises.
        """
        self._check_usable()
        done = threading.Event()
        seconds = self._delivery_seconds if timeout_seconds is None else min(timeout_seconds, self._delivery_seconds)
        give_up_at = self._single.give_up_at(seconds)
        try:
            codecs = self._require_codecs()
            prepared = self._prepare(
                request, tier=tier, traceparent=traceparent, codecs=codecs, do_not_queue=do_not_queue
            )
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
        """Sends many requests, pipelined. Returns for each, in order, what `submit` would have returned or raised.

        A failed request does not stop the others. Raises only when nothing can be sent: what `require_topics` raises.
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
        """Cancels a request, waiting or running: publishes the command and waits for a worker's answer.

        ``request`` is what `submit` returned, or an id. By its id alone a request is found by the worker that holds it,
        or by the one that reads it later. ``wait_seconds`` 0 returns as soon as the command is on all in-sync replicas,
        without an answer.

        Raises ``UsageError`` for an invalid request id. After ``TopicMissingError``, ``BrokerUnreachableError`` and
        ``KafkaFailedError`` nothing was published.
        """
        return self.control_batch(ControlAction.CANCEL, [request], wait_seconds=wait_seconds)[0]

    def expedite(self, request: Submitted | str, *, wait_seconds: float = CONTROL_WAIT_SECONDS) -> ControlAnswer:
        """Moves a waiting request to the high tier. Its deadline stays. Otherwise like `cancel`."""
        return self.control_batch(ControlAction.EXPEDITE, [request], wait_seconds=wait_seconds)[0]

    def control_batch(
        self,
        action: ControlAction,
        requests: Iterable[Submitted | str],
        *,
        wait_seconds: float = CONTROL_WAIT_SECONDS,
    ) -> list[ControlAnswer]:
        """Cancels or expedites many requests at once. The answers are in the order of the requests.

        After ``UsageError`` no command was published; when the brokers fail, some may have been.
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
        """Waits for the first outcome of a request. ``replay_count`` 1 is the outcome of its first replay.

        ``request`` is what `submit` returned, or an id. The search begins at the time of the submit. For a request that
        another producer submitted, pass its handle, or ``since_ms``: a time at or before its submit, in epoch
        milliseconds on the brokers' clock. Outcomes of this producer's last 100,000 requests arrive without a search;
        for others the results topic is read from that time on. Other producers' traffic does not slow the wait.

        Raises ``OutcomeTimeoutError``; ``UsageError`` when the time to begin at is unknown; ``TopicMissingError``;
        ``BrokerUnreachableError`` when no broker answered in that time.
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
        self._gate.ended(request_id)
        self._metrics.outcome(self._pool.name, result.status)
        return result

    def outcomes(
        self, requests: Collection[Submitted | str] | None, *, timeout_seconds: float, since_ms: int | None = None
    ) -> Iterator[Result]:
        """Yields the first outcome of each request as it arrives, until all have arrived. ``since_ms`` as in `outcome`.

        The search begins at the earliest submit.

        ``requests`` None yields the outcomes of all requests and replays of the pool, until the timeout. 200,000
        outcomes are remembered; a request that runs again after as many others is then yielded twice. The iterator
        reads the topic while it is iterated, and buffers nothing.

        Raises ``OutcomeTimeoutError`` when an outcome did not arrive in time, and what `outcome` raises.
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
        """Flushes the queue and closes the client. Returns the ids of requests without acknowledgement; logs how many.

        Waits for ``timeout_seconds``, by default for the delivery timeout. May be called again.
        """
        give_up_at = None if timeout_seconds is None else self._clock.monotonic() + timeout_seconds
        with self._lock:
            if self._closed or self._pid != os.getpid():
                return []
            self._closed = True
        self._watch.close(timeout_seconds=timeout_seconds)
        self._tier_watch.close(timeout_seconds=timeout_seconds)
        self._gate.close()
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
        do_not_queue: bool = False,
    ) -> Prepared:
        if not self._stamps_defaults:
            self._stamps_defaults = not names_deadline(request)
        prepared = prepare(
            request,
            tier=tier,
            traceparent=traceparent,
            codecs=codecs,
            now_ms=self._clock.wall_ms(),
            default_ttl_ms=self._times.ttl_ms,
        )
        self._gate.admit(prepared, do_not_queue=do_not_queue)
        return prepared

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
        """Fetched once; afterwards the Schema Registry may be unreachable."""
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
        """A time before this producer's first submit, on the brokers' clock; None before any submit."""
        senders = [sender for sender in (self._single, self._bulk) if sender is not None]
        firsts = [sender.first_enqueued_at for sender in senders if sender.first_enqueued_at is not None]
        return min(firsts) - CLOCK_MARGIN_MS if firsts else None
