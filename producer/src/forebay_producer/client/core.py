"""What both faces of the client stand on: settings, senders, results, commands, admission and the front. Thread-safe.

Talks to the brokers on the threads of its parts. Its own calls may block where they say so.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import structlog

from forebay_producer.admission.admission import Admission
from forebay_producer.admission.gate import AdmissionGate
from forebay_producer.client.codecs import make_codecs
from forebay_producer.client.control_client import ControlClient
from forebay_producer.client.follow import search_start_ms
from forebay_producer.client.metrics import ProducerMetrics
from forebay_producer.client.open_tracing import make_tracing
from forebay_producer.client.outcome_watch import CLOCK_MARGIN_MS, OutcomeWatch
from forebay_producer.client.prepare import Prepared, names_deadline, prepare
from forebay_producer.client.results_reader import ResultsReader
from forebay_producer.client.sender import ReportServer, Sender, Submitted
from forebay_producer.client.tier_watch import watch_tiers
from forebay_producer.errors import ProducerClosedError, as_argument
from forebay_producer.replies.presence import Presence
from forebay_producer.replies.stream_watch import StreamWatch
from forebay_producer.settings import ProducerSettings
from forebay_schemas.clock import Clock, SystemClock
from forebay_schemas.contract.envelope import Codec, Request
from forebay_schemas.contract.tiers import Tier
from forebay_schemas.contract.topics import Pool
from forebay_schemas.errors import ForebayError, UsageError
from forebay_schemas.kafka.connection import KafkaConnection
from forebay_schemas.kafka.diagnosis import why_refused
from forebay_schemas.kafka.errors import no_answer
from forebay_schemas.runtime.settings import load_settings

SYSTEM_CLOCK: Final = SystemClock()

_log = structlog.get_logger("forebay.producer")


def settings_of(
    settings: ProducerSettings | None, *, servers: str | None, pool: str | None, kafka_properties: Path | None
) -> ProducerSettings:
    """The settings that a client was given, as a whole or as single arguments. Raises ``UsageError``."""
    flags = {"bootstrap_servers": servers, "pool": pool, "kafka_properties": kafka_properties}
    if settings is None:
        try:
            return load_settings(ProducerSettings, flags=flags, config=None)
        except UsageError as error:
            raise as_argument(error) from None
    if any(value is not None for value in flags.values()):
        raise UsageError("settings", "came with other arguments", fix="give settings, or the single arguments")
    return settings


class _Route:
    """Where results of this client's requests go: a partition of results, once a front has one."""

    __slots__ = ("partition",)

    def __init__(self) -> None:
        self.partition: int | None = None


class Core:
    """One client of one pool. Must be closed. Raises ``UsageError`` for invalid settings. Connects lazily."""

    def __init__(
        self,
        settings: ProducerSettings,
        *,
        metrics: ProducerMetrics | None,
        admission: Admission | None,
        clock: Clock,
    ) -> None:
        try:
            self.connection: Final = settings.connection()
            self.pool: Final = settings.pool_topics()
            self._times = settings.tier_times()
            self._front = settings.front_topics()
            settings.schema_registry()  # invalid settings fail now, not at the first submit
        except UsageError as error:
            raise as_argument(error) from None
        self.clock: Final = clock
        self.metrics: Final = ProducerMetrics() if metrics is None else metrics
        self._settings = settings
        self._codecs: Mapping[Tier, Codec] | None = None
        self.delivery_seconds: Final = settings.delivery_timeout_seconds
        self._tracing = make_tracing(settings.traces, service="forebay-producer")
        self._stop_tracing = weakref.finalize(self, self._tracing.close)
        # Single requests are sent at once, batches linger: a linger of 0 doubles the time of a batch (measured), one of
        # 5 ms delays a single request by as much.
        self.single: Final = self._make_sender(linger_ms=0)
        self.reports: Final = ReportServer(self.single)
        self._bulk: Sender | None = None
        self._control: ControlClient | None = None
        self._streams: StreamWatch | None = None
        self._presence: Presence | None = None
        self._route = _Route()
        self._making = threading.Lock()
        self._lock = threading.Lock()
        self._closed = False
        self._pid = os.getpid()
        self.watch: Final = self._make_watch(self._route)
        weakref.finalize(self, self.watch.close)
        self.gate: Final = AdmissionGate(
            admission,
            connection=self.connection,
            pool=self.pool,
            times=self._times,
            clock=clock,
            count=partial(self.metrics.decided, self.pool.name),
        )
        self._stamps_defaults = False
        self._tier_watch = watch_tiers(self.connection, pool=self.pool, times=self._times, clock=clock)
        # Without a close(), at garbage collection or at the interpreter's exit.
        self._stop_reports = weakref.finalize(self, self.reports.stop)

    @property
    def is_ready(self) -> bool:
        """Whether `make_ready` returns at once."""
        return self.gate.is_open and self._codecs is not None and (self._front is None or self._presence is not None)

    @property
    def reply(self) -> dict[str, Any] | None:
        """The fields that a request's ``reply`` gets; None without a front."""
        return None if self._route.partition is None else {"partition": self._route.partition}

    def make_ready(self) -> None:
        """Fetches schemas, reads the pool's load for an admission, and claims the front's partition, once. Blocks.

        Raises what `codecs` and `Presence` raise.
        """
        self.codecs()
        self.gate.open()
        if self._front is None or self._presence is not None:
            return
        with self._making:
            if self._presence is None:
                presence = Presence(self.connection, pool=self.pool, front=self._front, clock=self.clock)
                self._route.partition, self._presence = presence.partition, presence

    def codecs(self) -> Mapping[Tier, Codec]:
        """The codec of each tier. Fetched once; afterwards the Schema Registry may be unreachable. Blocks."""
        with self._lock:
            if self._codecs is None:
                self._codecs = make_codecs(self._settings)
            return self._codecs

    def prepare(
        self,
        request: Request | Mapping[str, Any],
        *,
        tier: Tier | str | None,
        traceparent: str | None = None,
        reply: Mapping[str, Any] | None = None,
        do_not_queue: bool = False,
    ) -> Prepared:
        """The record of an admitted request. Raises as `prepare`, and ``AdmissionRefusedError``."""
        if not self._stamps_defaults:
            self._stamps_defaults = not names_deadline(request)
        prepared = prepare(
            request,
            tier=tier,
            traceparent=traceparent,
            codecs=self.codecs(),
            now_ms=self.clock.wall_ms(),
            default_ttl_ms=self._times.ttl_ms,
            reply=reply,
        )
        self.gate.admit(prepared, do_not_queue=do_not_queue)
        return prepared

    def acknowledged(self, submitted: Submitted) -> None:
        """The brokers have the request."""
        self.watch.acknowledged(submitted.request_id, submitted.enqueued_at)
        if self._stamps_defaults:
            self._tier_watch.stamped()

    def count_failure(self, error: ForebayError) -> None:
        """A request was not sent."""
        self.metrics.failed(self.pool.name, error.reason)

    def bulk_sender(self) -> Sender:
        """The sender of batches, made at the first call."""
        with self._lock:
            self.check_usable()
            if self._bulk is None:
                self._bulk = self._make_sender(linger_ms=None)
            return self._bulk

    def control(self) -> ControlClient:
        """The client for cancels and expedites, made at the first call."""
        with self._lock:
            self.check_usable()
            if self._control is None:
                self._control = ControlClient(
                    self.connection, pool=self.pool, delivery_seconds=self.delivery_seconds, clock=self.clock
                )
            return self._control

    def streams(self) -> StreamWatch:
        """The reader of pieces, made at the first call."""
        with self._lock:
            self.check_usable()
            if self._streams is None:
                self._streams = StreamWatch(self.connection, pool=self.pool, partition=self._route.partition)
            return self._streams

    def check_usable(self) -> None:
        """Raises ``ProducerClosedError``."""
        if self._pid != os.getpid():
            raise ProducerClosedError("this producer was made before a fork; make a new one in this process")
        if self._closed:
            raise ProducerClosedError("the producer is closed")

    def check_reading(self) -> None:
        """After a wait in vain: raises ``BrokerUnreachableError`` when no broker has answered at all. Blocks."""
        if not self.watch.is_open and (why := why_refused(self.connection.bootstrap_servers)):
            raise no_answer(self.connection, doing="reading results", why=why)

    def since(self, requests: Collection[Submitted | str] | None, since_ms: int | None) -> int:
        """Where the search for these requests' outcomes begins. Raises ``UsageError`` when that is not known."""
        return search_start_ms(
            requests, since_ms=since_ms, own_submit_ms=self.watch.since_ms, first_submit_ms=self._own_since()
        )

    def close(self, *, timeout_seconds: float | None = None) -> list[str]:
        """Flushes and closes everything. The ids of requests without acknowledgement; logs how many. Blocks."""
        give_up_at = None if timeout_seconds is None else self.clock.monotonic() + timeout_seconds
        with self._lock:
            if self._closed or self._pid != os.getpid():
                return []
            self._closed = True
        self.watch.close(timeout_seconds=timeout_seconds)
        self._tier_watch.close(timeout_seconds=timeout_seconds)
        self.gate.close()
        for part in (self._control, self._streams, self._presence):
            if part is not None:
                part.close()
        self._stop_reports()
        undelivered: list[str] = []
        for sender in (self.single, self._bulk):
            if sender is not None:
                left = None if give_up_at is None else max(0.0, give_up_at - self.clock.monotonic())
                undelivered += sender.close(timeout_seconds=left)
        self._stop_tracing()
        if undelivered:
            _log.warning("closed with requests not acknowledged", requests=len(undelivered))
        return undelivered

    def _make_sender(self, *, linger_ms: int | None) -> Sender:
        return Sender(
            self.connection,
            pool=self.pool,
            linger_ms=linger_ms,
            delivery_seconds=self.delivery_seconds,
            clock=self.clock,
            metrics=self.metrics,
            tracing=self._tracing,
        )

    def _make_watch(self, route: _Route) -> OutcomeWatch:
        # Not this object's methods: the watch's threads would keep it alive.
        read_all = partial(_read_results, self.connection, self.pool, self.clock, _Route())
        read_own = partial(_read_results, self.connection, self.pool, self.clock, route)
        return OutcomeWatch(read_all, clock=self.clock, make_follower=None if self._front is None else read_own)

    def _own_since(self) -> int | None:
        """A time before this client's first submit, on the brokers' clock; None before any submit."""
        senders = [sender for sender in (self.single, self._bulk) if sender is not None]
        firsts = [sender.first_enqueued_at for sender in senders if sender.first_enqueued_at is not None]
        return min(firsts) - CLOCK_MARGIN_MS if firsts else None


def _read_results(
    connection: KafkaConnection, pool: Pool, clock: Clock, route: _Route, since_ms: int | None, open_seconds: float
) -> ResultsReader:
    return ResultsReader(
        connection,
        pool=pool,
        since_ms=since_ms,
        clock=clock,
        open_seconds=open_seconds,
        partition=route.partition,
    )
