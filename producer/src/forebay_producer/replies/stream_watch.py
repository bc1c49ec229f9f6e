"""Follows a pool's streams topic from its end on, for callers that wait for pieces of certain requests.

Owns one thread with one consumer, which starts on demand and joins no group. Pieces of others are skipped by their key.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

import structlog
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from forebay_producer.cluster.topic_scan import ends_of, why_unread
from forebay_schemas.contract.pieces import Piece, PieceError, decode_piece
from forebay_schemas.contract.topics import Pool
from forebay_schemas.errors import ForebayError, TopicMissingError
from forebay_schemas.kafka.clients import create_client
from forebay_schemas.kafka.configs import reader_config
from forebay_schemas.kafka.connection import KafkaConnection
from forebay_schemas.kafka.errors import as_forebay_error, is_unreachable
from forebay_schemas.kafka.metadata import require_topics
from forebay_schemas.kafka.permissions import Operation, on_topic
from forebay_schemas.kafka.transient import TRANSIENT

CLIENT_ID: Final = "forebay-streams"
JOIN_SECONDS_MAX: Final = 2.0

_POLL_SECONDS: Final = 0.2
_BATCH_RECORDS_MAX: Final = 1000

log = structlog.get_logger("forebay.producer")

Take = Callable[[Piece], None]
"""Gets each piece of one request, on the watch's thread. Must return at once and never raise."""

Lose = Callable[[ForebayError], None]
"""Gets the reason when no more pieces can be read."""


class StreamWatch:
    """Gives pieces to whoever follows their request. Thread-safe. Must be closed."""

    def __init__(self, connection: KafkaConnection, *, pool: Pool, partition: int | None) -> None:
        """``partition``: the one to follow; None: all of them."""
        self._connection = connection
        self._pool = pool
        self._partition = partition
        self._lock = threading.Lock()
        self._takers: dict[bytes, tuple[Take, Lose]] = {}
        self._thread: threading.Thread | None = None
        self._opened = threading.Event()
        self._trouble: ForebayError | None = None
        self._stopping = threading.Event()

    def follow(self, request_id: str, take: Take, lose: Lose, *, timeout_seconds: float) -> None:
        """Follows a request. Returns once every piece that is written from now on will be read.

        Blocks on the first call until the topic is open. Raises ``TopicMissingError``, ``BrokerUnreachableError`` and
        ``KafkaFailedError``: then nothing is followed.
        """
        with self._lock:
            self._takers[request_id.encode()] = (take, lose)
            if self._thread is None:
                self._trouble = None
                self._opened.clear()
                # A daemon, so that an owner that forgets to close it can still exit.
                self._thread = threading.Thread(target=self._run, name="forebay-producer-streams", daemon=True)
                self._thread.start()
        is_open = self._opened.wait(timeout_seconds)
        if self._trouble is not None or not is_open:
            self.leave(request_id)
            raise self._trouble or self._explained(KafkaError(KafkaError._TIMED_OUT))

    @property
    def is_open(self) -> bool:
        """Whether `follow` returns at once."""
        return self._opened.is_set() and self._trouble is None

    def leave(self, request_id: str) -> None:
        """Follows a request no longer."""
        with self._lock:
            self._takers.pop(request_id.encode(), None)

    def close(self) -> None:
        """Ends the thread. May be called again."""
        self._stopping.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(JOIN_SECONDS_MAX)

    def _run(self) -> None:
        failure: ForebayError | None = None
        try:
            consumer = create_client(Consumer, reader_config(self._connection, client_id=CLIENT_ID) | _FROM_THE_END)
            try:
                consumer.assign(self._ends(consumer))
                self._opened.set()
                while not self._stopping.is_set():
                    self._read(consumer)
            finally:
                consumer.close()
        except Exception as error:  # noqa: BLE001 - nobody may wait for pieces that nobody reads
            failure = why_unread(error, explain=self._explained, what="streams")
        with self._lock:
            self._thread = None
            self._trouble = failure
            left, self._takers = self._takers, {}
        self._opened.set()
        if failure is not None:
            for _, lose in left.values():
                lose(failure)

    def _ends(self, consumer: Consumer) -> list[TopicPartition]:
        topic = self._pool.streams
        count = require_topics(
            consumer, [topic], connection=self._connection, pool=self._pool.name, operation=Operation.READ
        )[topic]
        numbers = range(count) if self._partition is None or self._partition >= count else [self._partition]
        # The end is looked up now: one that the client looks up could be that after the first pieces.
        return ends_of(consumer, topic, numbers)

    def _read(self, consumer: Consumer) -> None:
        first = consumer.poll(_POLL_SECONDS)
        if first is None:
            return
        for message in (first, *consumer.consume(_BATCH_RECORDS_MAX - 1, 0)):
            error = message.error()
            if error is None:
                self._give(message)
            elif error.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC):
                raise TopicMissingError([self._pool.streams], pool=self._pool.name)
            elif not is_unreachable(error) and error.code() not in TRANSIENT:
                raise self._explained(error)

    def _give(self, message: Message) -> None:
        # Without the lock: one dictionary lookup.
        taker = self._takers.get(message.key() or b"")
        if taker is None:
            return
        try:
            piece = decode_piece(message.value())
        except PieceError as error:
            at = f"{message.topic()}:{message.partition()}:{message.offset()}"
            log.warning("a record of the streams topic is no piece", place=at, error=str(error))
            return
        taker[0](piece)

    def _explained(self, error: KafkaError) -> ForebayError:
        topic = self._pool.streams
        needs = on_topic(Operation.READ, topic)
        return as_forebay_error(error, connection=self._connection, doing=f"reading {topic}", needs=needs)


# A topic that ends before the position was recreated; its pieces are all new.
_FROM_THE_END: Final = {"auto.offset.reset": "earliest", "fetch.wait.max.ms": 100, "fetch.min.bytes": 1}
