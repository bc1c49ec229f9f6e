"""Follows the workers' answers to cancels and expedites on the coordination topic, for all calls together.

Owns one thread with one consumer, which starts on demand, ends after a while without a call, and joins no group.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from confluent_kafka import Consumer, KafkaError, TopicPartition

from forebay_producer.cluster.topic_scan import ends_of, why_unread
from forebay_schemas.clock import Clock
from forebay_schemas.contract.control import DONE, ControlAction, Controlled, decode_controlled
from forebay_schemas.contract.topics import Pool
from forebay_schemas.errors import ForebayError
from forebay_schemas.kafka.clients import create_client
from forebay_schemas.kafka.configs import reader_config
from forebay_schemas.kafka.connection import KafkaConnection
from forebay_schemas.kafka.errors import as_forebay_error, is_unreachable
from forebay_schemas.kafka.metadata import METADATA_TIMEOUT_SECONDS, require_topics
from forebay_schemas.kafka.permissions import Operation, on_topic
from forebay_schemas.kafka.transient import TRANSIENT

BETTER_ANSWER_SECONDS: Final = 1.0
"""Wait for a better answer after a worker's "too late": another worker may hold a retry of the request."""

IDLE_SECONDS: Final = 30.0
"""The thread ends when no call has waited for as long."""

JOIN_SECONDS_MAX: Final = 2.0

_POLL_SECONDS: Final = 0.05
_BATCH_RECORDS_MAX: Final = 1000


@dataclass(slots=True, eq=False)
class Expected:
    """One call's answers. ``best``: the best answer so far, by request id. ``open_until``: monotonic seconds at which
    the wait for a better one ends."""

    action: ControlAction
    open_until: dict[str, float]
    changed: Callable[[], None]
    best: dict[str, Controlled] = field(default_factory=dict)
    failure: ForebayError | None = None

    def left_seconds(self, now: float) -> float:
        """How long to wait still; 0 when all answers are there or their time is over."""
        if self.failure is not None:
            return 0.0
        return max(0.0, max([*self.open_until.values()], default=now) - now)

    def take(self, answer: Controlled, now: float) -> None:
        """An answer was read."""
        if answer.action is not self.action or answer.request_id not in self.open_until:
            return
        self.best[answer.request_id] = answer
        if answer.outcome in DONE:
            del self.open_until[answer.request_id]
        else:
            until = self.open_until[answer.request_id]
            self.open_until[answer.request_id] = min(until, now + BETTER_ANSWER_SECONDS)
        self.changed()


class ControlAnswers:
    """Gives answers to the calls that expect them. Thread-safe. Must be closed."""

    def __init__(self, connection: KafkaConnection, *, pool: Pool, clock: Clock) -> None:
        self._connection = connection
        self._pool = pool
        self._clock = clock
        self._topic = pool.coordination
        self._lock = threading.Lock()
        self._expected: dict[str, list[Expected]] = {}
        self._left_at = 0.0
        self._thread: threading.Thread | None = None
        self._opened = threading.Event()
        self._trouble: ForebayError | None = None
        self._stopping = threading.Event()

    def expect(
        self, action: ControlAction, request_ids: set[str], *, wait_seconds: float, changed: Callable[[], None]
    ) -> Expected:
        """Expects an answer for each request; returns once all that is written from now on will be read.

        ``changed`` is called on the thread for each answer, and when no more can be read; it must return at once.
        Raises ``TopicMissingError``, ``BrokerUnreachableError`` and ``KafkaFailedError``. The caller must `leave`.
        """
        end = self._clock.monotonic() + wait_seconds
        expected = Expected(action=action, open_until=dict.fromkeys(request_ids, end), changed=changed)
        with self._lock:
            for request_id in request_ids:
                self._expected.setdefault(request_id, []).append(expected)
            if self._thread is None:
                self._trouble = None
                self._opened = threading.Event()
                # A daemon, so that an owner that forgets to close it can still exit.
                self._thread = threading.Thread(
                    target=self._run, args=(self._opened,), name="forebay-producer-answers", daemon=True
                )
                self._thread.start()
            opened = self._opened
        opened.wait(METADATA_TIMEOUT_SECONDS * 2)
        if self._trouble is not None:
            self.leave(expected)
            raise self._trouble.with_traceback(None)
        return expected

    def begin(self, expected: Expected, *, wait_seconds: float) -> None:
        """The commands are published: the wait for what is not answered yet begins now."""
        end = self._clock.monotonic() + wait_seconds
        with self._lock:
            for request_id in expected.open_until.keys() - expected.best.keys():
                expected.open_until[request_id] = end

    def leave(self, expected: Expected) -> None:
        """Expects no more."""
        with self._lock:
            for request_id in [*expected.open_until, *expected.best]:
                others = [each for each in self._expected.get(request_id, ()) if each is not expected]
                if others:
                    self._expected[request_id] = others
                else:
                    self._expected.pop(request_id, None)
            self._left_at = self._clock.monotonic()

    def close(self) -> None:
        """Ends the thread. May be called again."""
        self._stopping.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(JOIN_SECONDS_MAX)

    def _run(self, opened: threading.Event) -> None:
        failure: ForebayError | None = None
        try:
            # A topic that ends before the position was recreated; the answers arrive in the new one.
            config = reader_config(self._connection, client_id="forebay-control") | {"auto.offset.reset": "earliest"}
            consumer = create_client(Consumer, config)
            try:
                consumer.assign(self._ends(consumer))
                self._left_at = self._clock.monotonic()
                opened.set()
                while not self._stopping.is_set() and not self._is_idle():
                    self._read(consumer)
            finally:
                consumer.close()
        except Exception as error:  # noqa: BLE001 - nobody may wait for answers that nobody reads
            failure = why_unread(error, explain=self._explained, what="answers")
        self._end(failure, opened)

    def _is_idle(self) -> bool:
        """Whether the thread may end; no call can begin to rely on it afterwards."""
        with self._lock:
            if self._expected or self._clock.monotonic() - self._left_at < IDLE_SECONDS:
                return False
            self._thread = None
            return True

    def _end(self, failure: ForebayError | None, opened: threading.Event) -> None:
        with self._lock:
            if self._thread is threading.current_thread():
                self._thread = None
            waiting = [] if failure is None else [each for expected in self._expected.values() for each in expected]
            if failure is not None:
                self._trouble, self._expected = failure, {}
        opened.set()
        for expected in waiting:
            expected.failure = failure
            expected.changed()

    def _read(self, consumer: Consumer) -> None:
        first = consumer.poll(_POLL_SECONDS)
        if first is None:
            return
        for message in (first, *consumer.consume(_BATCH_RECORDS_MAX - 1, 0)):
            error = message.error()
            if error is not None:
                if error.code() in TRANSIENT or is_unreachable(error):
                    continue
                raise self._explained(error)
            answer = decode_controlled(message.value())
            if answer is None:
                continue
            now = self._clock.monotonic()
            with self._lock:
                for expected in self._expected.get(answer.request_id, ()):
                    expected.take(answer, now)

    def _ends(self, consumer: Consumer) -> list[TopicPartition]:
        count = require_topics(
            consumer, [self._topic], connection=self._connection, pool=self._pool.name, operation=Operation.READ
        )[self._topic]
        return ends_of(consumer, self._topic, range(count))

    def _explained(self, error: KafkaError) -> ForebayError:
        needs = on_topic(Operation.READ, self._topic)
        return as_forebay_error(error, connection=self._connection, doing=f"reading {self._topic}", needs=needs)
