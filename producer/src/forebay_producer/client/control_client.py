"""Cancels and expedites requests: writes commands to the control topic and reads the workers' answers.

Talks to the brokers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec
from confluent_kafka import KafkaError
from confluent_kafka import Producer as KafkaProducer

from forebay_producer.client.control_answers import ControlAnswers, Expected
from forebay_producer.client.follow import id_of
from forebay_producer.client.operator_identity import user_and_host
from forebay_producer.client.sender import Submitted
from forebay_producer.errors import no_request_id
from forebay_schemas.clock import Clock
from forebay_schemas.contract.control import (
    DONE,
    Control,
    ControlAction,
    Controlled,
    ControlOutcome,
    control_key,
    encode_control,
)
from forebay_schemas.contract.envelope_problems import is_request_id
from forebay_schemas.contract.tiers import TIERS
from forebay_schemas.contract.topics import REQUEST_BYTES_MAX, Pool
from forebay_schemas.errors import UsageError
from forebay_schemas.kafka.clients import create_client
from forebay_schemas.kafka.configs import producer_config
from forebay_schemas.kafka.connection import KafkaConnection
from forebay_schemas.kafka.errors import as_forebay_error
from forebay_schemas.kafka.metadata import METADATA_TIMEOUT_SECONDS, require_topics
from forebay_schemas.kafka.permissions import Operation, on_topic

_POLL_SECONDS: Final = 0.05
_QUEUED_RECORDS: Final = 10_000


class Target(NamedTuple):
    """The request to control: its id and, if known, the position it was submitted to."""

    request_id: str
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None


def target_of(request: Submitted | str) -> Target:
    """The target for what `submit` returned, or for an id. Raises ``UsageError`` for an invalid request id."""
    if isinstance(request, Submitted):
        return Target(request.request_id, request.topic, request.partition, request.offset)
    return Target(id_of(request))


class ControlAnswer(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The answer to a cancel or an expedite.

    ``outcome`` is None when no worker answered in time; the command stays published, and a worker applies it when it
    reads the request. ``worker`` is the worker that answered; ``topic``, ``partition`` and ``offset`` are the new
    position of an expedited request.
    """

    request_id: str
    action: ControlAction
    outcome: ControlOutcome | None
    worker: str | None = None
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None

    @property
    def done(self) -> bool:
        """Whether the command was carried out."""
        return self.outcome in DONE


class ControlClient:
    """Writes control records and waits for answers. Thread-safe. Must be closed.

    ``delivery_seconds``: how long a record may wait for its acknowledgement.
    """

    def __init__(self, connection: KafkaConnection, *, pool: Pool, delivery_seconds: float, clock: Clock) -> None:
        self._connection = connection
        self._pool = pool
        self._clock = clock
        self._delivery_seconds = delivery_seconds
        config = producer_config(connection, client_id="forebay-control", record_bytes_max=REQUEST_BYTES_MAX)
        config["message.timeout.ms"] = int(delivery_seconds * 1000)
        self._client = create_client(KafkaProducer, config)
        self._topics_exist = False
        self._answers = ControlAnswers(connection, pool=pool, clock=clock)

    def close(self) -> None:
        """Closes the client. May be called again."""
        self._answers.close()
        self._client.flush(0)

    def ask(self, action: ControlAction, targets: Sequence[Target], *, wait_seconds: float) -> list[ControlAnswer]:
        """Publishes a command for each target; returns the answers that arrive within ``wait_seconds``, in order.

        Raises ``UsageError`` before anything is published, for an invalid request id or a topic that takes no requests
        of the pool. After ``TopicMissingError``, ``BrokerUnreachableError`` and ``KafkaFailedError`` none, or not all,
        of the commands were published.
        """
        _check(targets, self._pool)
        if not self._topics_exist:
            for topic, operation in (
                (self._pool.control, Operation.WRITE),
                (self._pool.coordination, Operation.READ),
            ):
                require_topics(
                    self._client,
                    [topic],
                    connection=self._connection,
                    pool=self._pool.name,
                    operation=operation,
                    timeout_seconds=min(METADATA_TIMEOUT_SECONDS, self._delivery_seconds),
                )
            self._topics_exist = True
        if wait_seconds <= 0:
            self._write(action, targets)
            return [ControlAnswer(request_id=target.request_id, action=action, outcome=None) for target in targets]
        changed = threading.Event()
        expected = self.begin(action, targets, wait_seconds=wait_seconds, changed=changed.set)
        try:
            while (left := expected.left_seconds(self._clock.monotonic())) > 0:
                changed.wait(left)
                changed.clear()
        finally:
            self.leave(expected)
        return self.end(action, targets, expected)

    def begin(
        self,
        action: ControlAction,
        targets: Sequence[Target],
        *,
        wait_seconds: float,
        changed: Callable[[], None],
    ) -> Expected:
        """Publishes the commands, checked as by `ask`, and expects their answers. The caller must `end` it."""
        ids = {target.request_id for target in targets}
        expected = self._answers.expect(action, ids, wait_seconds=wait_seconds, changed=changed)
        try:
            self._write(action, targets)
        except BaseException:
            self._answers.leave(expected)
            raise
        self._answers.begin(expected, wait_seconds=wait_seconds)
        return expected

    def leave(self, expected: Expected) -> None:
        """Waits for no more answers. May be called again."""
        self._answers.leave(expected)

    def end(self, action: ControlAction, targets: Sequence[Target], expected: Expected) -> list[ControlAnswer]:
        """The answers so far, in the order of the targets. Raises the error that prevents reading them."""
        self._answers.leave(expected)
        if expected.failure is not None:
            raise expected.failure.with_traceback(None)
        return [_answer(action, target.request_id, expected.best.get(target.request_id)) for target in targets]

    def _write(self, action: ControlAction, targets: Sequence[Target]) -> None:
        reports: list[KafkaError | None] = []

        def delivered(error: KafkaError | None, _message: object) -> None:
            reports.append(error)

        now_ms, by = self._clock.wall_ms(), user_and_host()
        for number, target in enumerate(targets, start=1):
            control = Control(
                action=action,
                request_id=target.request_id,
                topic=target.topic,
                partition=target.partition,
                offset=target.offset,
                at=now_ms,
                by=by,
            )
            self._client.produce(
                self._pool.control,
                encode_control(control),
                control_key(action, target.request_id),
                on_delivery=delivered,
            )
            if number % _QUEUED_RECORDS == 0:
                self._client.flush(self._delivery_seconds)
        # A flush would also wait for the records of other threads.
        while len(reports) < len(targets):
            self._client.poll(_POLL_SECONDS)
        failure = next((error for error in reports if error is not None), None)
        if failure is not None:
            topic = self._pool.control
            needs = on_topic(Operation.WRITE, topic)
            raise as_forebay_error(failure, connection=self._connection, doing=f"writing to {topic}", needs=needs)


def _check(targets: Sequence[Target], pool: Pool) -> None:
    submitted_to = [pool.requests(tier) for tier in TIERS]
    for target in targets:
        if not is_request_id(target.request_id):
            raise no_request_id(target.request_id)
        if target.topic is not None and target.topic not in submitted_to:
            raise UsageError(
                "place",
                f"of {target.request_id} is in {target.topic}, which takes no requests of pool {pool.name}",
                fix=f"give the place that submit printed, in one of {', '.join(submitted_to)}",
            )


def _answer(action: ControlAction, request_id: str, heard: Controlled | None) -> ControlAnswer:
    if heard is None:
        return ControlAnswer(request_id=request_id, action=action, outcome=None)
    return ControlAnswer(
        request_id=request_id,
        action=action,
        outcome=heard.outcome,
        worker=heard.worker,
        topic=heard.topic,
        partition=heard.partition,
        offset=heard.offset,
    )
