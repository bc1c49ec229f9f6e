"""The client library's public classes: submit requests, cancel and expedite them, wait for their outcomes.

Talks to the brokers. Delivery reports arrive on the report thread, or on the thread that submits a batch.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Self

from forebay_producer.admission.admission import Admission
from forebay_producer.client.control_client import ControlAnswer, target_of
from forebay_producer.client.core import SYSTEM_CLOCK, Core, settings_of
from forebay_producer.client.follow import follow, id_of, no_outcome
from forebay_producer.client.handle import CONTROL_WAIT_SECONDS, Handle
from forebay_producer.client.metrics import ProducerMetrics
from forebay_producer.client.sender import Pending, Submitted
from forebay_producer.settings import ProducerSettings
from forebay_schemas.clock import Clock
from forebay_schemas.contract.control import ControlAction
from forebay_schemas.contract.envelope import Request
from forebay_schemas.contract.results import Result, decode_result
from forebay_schemas.contract.tiers import Tier
from forebay_schemas.errors import ForebayError

# Records between two polls for delivery reports: each poll costs 2 microseconds.
_BATCH_POLL_RECORDS: Final = 500


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
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        given = settings_of(settings, servers=bootstrap_servers, pool=pool, kafka_properties=kafka_properties)
        self._core = Core(given, metrics=metrics, admission=admission, clock=clock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def require_topics(self) -> None:
        """Checks that requests can be submitted to the pool.

        Raises ``TopicMissingError``, ``BrokerUnreachableError``, and, with Avro and a Schema Registry,
        ``SchemaRegistryUnreachableError`` or ``SchemaRegistryRefusedError``.
        """
        self._core.bulk_sender().require_topics()
        self._core.make_ready()

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
        core, sender = self._core, self._core.single
        core.check_usable()
        done = threading.Event()
        seconds = core.delivery_seconds if timeout_seconds is None else min(timeout_seconds, core.delivery_seconds)
        give_up_at = sender.give_up_at(seconds)
        try:
            core.make_ready()
            prepared = core.prepare(
                request, tier=tier, traceparent=traceparent, reply=core.reply, do_not_queue=do_not_queue
            )
            sender.require_topics(give_up_at=give_up_at)
            core.watch.submitting(prepared.request_id)
            pending = sender.send(prepared, done=done, give_up_at=give_up_at)
        except ForebayError as error:
            core.count_failure(error)
            raise
        core.reports.wake()
        if not done.wait(max(0.0, give_up_at - core.clock.monotonic())):
            raise sender.no_answer(seconds)  # counted when the client reports on it
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
        core = self._core
        sender = core.bulk_sender()
        sender.require_topics()
        core.make_ready()
        sent: list[Pending | ForebayError] = []
        for number, request in enumerate(requests, start=1):
            try:
                prepared = core.prepare(request, tier=tier, reply=core.reply)
                core.watch.submitting(prepared.request_id)
                sent.append(sender.send(prepared))
            except ForebayError as error:
                core.count_failure(error)
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
        return self._core.control().ask(action, targets, wait_seconds=wait_seconds)

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
        core = self._core
        core.check_usable()
        request_id = id_of(request)
        begins_ms = core.since([request], since_ms)
        with core.metrics.awaiting(core.pool.name):
            value = core.watch.wait(
                (request_id, replay_count),
                since_ms=begins_ms,
                timeout_seconds=timeout_seconds,
                look_back=since_ms is not None,
            )
        if value is None:
            core.metrics.timed_out(core.pool.name)
            core.check_reading()
            raise no_outcome([request_id], timeout_seconds)
        result = decode_result(value)
        core.gate.ended(request_id)
        core.metrics.outcome(core.pool.name, result.status)
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
        core = self._core
        core.check_usable()
        return follow(
            core.connection,
            pool=core.pool,
            request_ids=None if requests is None else {id_of(one) for one in requests},
            since_ms=core.since(requests, since_ms),
            timeout_seconds=timeout_seconds,
            metrics=core.metrics,
            clock=core.clock,
        )

    def close(self, *, timeout_seconds: float | None = None) -> list[str]:
        """Flushes the queue and closes the client. Returns the ids of requests without acknowledgement; logs how many.

        Waits for ``timeout_seconds``, by default for the delivery timeout. May be called again.
        """
        return self._core.close(timeout_seconds=timeout_seconds)

    def _handle(self, submitted: Submitted) -> Handle:
        self._core.acknowledged(submitted)
        return Handle(
            request_id=submitted.request_id,
            topic=submitted.topic,
            partition=submitted.partition,
            offset=submitted.offset,
            enqueued_at=submitted.enqueued_at,
            producer=self,
        )
