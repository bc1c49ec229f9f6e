"""Sends pieces to the streams topic by a producer of its own, so that no outcome waits behind them. The event loop.

What cannot be sent is dropped and never waited for; the producer's queue is bounded.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

import structlog
from confluent_kafka import KafkaError, KafkaException

from forebay_schemas.contract.reply import Reply
from forebay_schemas.errors import ForebayError, TopicMissingError
from forebay_worker.outcome.producer import KafkaProducer
from forebay_worker.request.work import Work
from forebay_worker.streaming.continuity import Sent, SentMemory
from forebay_worker.streaming.run import Run
from forebay_worker.telemetry.stats import Stats

JOIN_SECONDS: Final = 0.1
"""Events that follow the first text are joined for as long."""

OPEN_SECONDS_MAX: Final = 1.0
"""The first request that streams waits as long for the topic to be found; then it runs without pieces."""

LOOK_AGAIN_SECONDS: Final = 60.0
"""A topic that was missing may have been made, and partitions may have been added."""

_NO_TOPIC: Final = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    }
)

log = structlog.get_logger("forebay.streaming")


class StreamProducer(KafkaProducer, Protocol):
    """A producer that is told the partition."""

    def produce(  # type: ignore[override]  # the outcomes' goes by the key alone
        self, topic: str, value: bytes, key: bytes, partition: int = -1, *, on_delivery: Any
    ) -> None: ...
    def flush(self, timeout: float) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """The streams topic, found: its producer and how many partitions it has."""

    producer: StreamProducer
    partitions: int


class Streams:
    """Runs of requests whose answers are followed."""

    def __init__(
        self,
        *,
        topic: str,
        make_producer: Callable[[], StreamProducer],
        count_partitions: Callable[[], int],
        stats: Stats,
        explain: Callable[[KafkaError, str], str],
    ) -> None:
        """``make_producer`` and ``count_partitions`` are called on another thread, the first once, when a request asks
        for pieces. ``count_partitions`` raises ``ForebayError`` or ``KafkaException``."""
        self._topic = topic
        self._make_producer = make_producer
        self._count_partitions = count_partitions
        self._stats = stats
        self._explain = explain
        self._opened: Opened | None = None
        self._producer: StreamProducer | None = None
        self._look: asyncio.Task[None] | None = None
        self._look_at = 0.0
        self._said: str | None = None
        self._prefix = secrets.token_hex(4)
        self._runs = 0
        self._running: dict[bytes, Run] = {}
        self._waiting: list[Run] = []
        self._timer: asyncio.TimerHandle | None = None
        self._memory = SentMemory()

    async def begin(self, work: Work, reply: Reply) -> Run | None:
        """The run of an execution; None while there is no streams topic."""
        await self._open()
        opened = self._opened
        if opened is None:
            return None
        assert work.request is not None
        partition = reply.partition
        self._runs += 1
        run = Run(
            outlet=self,
            request_id=work.request.request_id,
            attempt=work.attempt,
            replay_count=work.history.replay_count,
            name=f"{self._prefix}-{self._runs:x}",
            partition=partition if partition is not None and partition < opened.partitions else -1,
            sent=self._memory.take(_memory_key(work)),
        )
        self._running[run.key] = run
        return run

    def end(self, run: Run) -> None:
        """The execution has its answer."""
        run.end()
        self._forget(run)

    def break_off(self, run: Run, work: Work) -> None:
        """The execution failed; the request may come again."""
        sent: Sent | None = run.break_off()
        self._forget(run)
        if sent is not None:
            self._memory.put(_memory_key(work), sent)

    def send(self, run: Run, value: bytes) -> bool:
        """As `Outlet.send`."""
        producer = self._producer
        if producer is None or self._opened is None:
            self._stats.pieces_dropped += 1
            return False
        try:
            producer.produce(self._topic, value, run.key, run.partition, on_delivery=self._delivered)
        except (BufferError, KafkaException) as error:
            self._stats.pieces_dropped += 1
            self._say(f"a piece was not sent: {error}")
            return False
        self._stats.pieces += 1
        return True

    def wait(self, run: Run) -> None:
        """As `Outlet.wait`: one timer for all runs."""
        self._waiting.append(run)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(JOIN_SECONDS, self._flush)

    def poll(self) -> None:
        """Takes reports of pieces that were not delivered. Call it some times a second."""
        if self._producer is not None:
            self._producer.poll(0)

    def close(self, timeout_seconds: float) -> None:
        """Waits for what is on its way. On any thread, when nothing runs any more."""
        if self._producer is not None:
            self._producer.flush(timeout_seconds)

    def _flush(self) -> None:
        self._timer = None
        waiting, self._waiting = self._waiting, []
        for run in waiting:
            run.flush()

    def _forget(self, run: Run) -> None:
        if self._running.get(run.key) is run:
            del self._running[run.key]

    def _delivered(self, error: KafkaError | None, message: Any) -> None:
        if error is None:
            return  # the client reports errors alone
        self._stats.pieces_dropped += 1
        if error.code() in _NO_TOPIC:
            self._opened = None  # looked for again in a while
        self._say(self._explain(error, self._topic))
        run = self._running.get(message.key())
        if run is not None:
            run.lose()

    async def _open(self) -> None:
        now = asyncio.get_running_loop().time()
        if self._look is None and (self._look_at == 0.0 or now >= self._look_at):
            self._look_at = now + LOOK_AGAIN_SECONDS
            self._look = asyncio.create_task(self._look_for_topic())
        if self._look is not None and self._producer is None:
            # The answer is worth more than its pieces.
            await asyncio.wait([self._look], timeout=OPEN_SECONDS_MAX)

    async def _look_for_topic(self) -> None:
        try:
            partitions = await asyncio.to_thread(self._count_partitions)
            if self._producer is None:
                self._producer = await asyncio.to_thread(self._make_producer)
            self._opened = Opened(producer=self._producer, partitions=partitions)
            self._said = None
        except TopicMissingError as error:
            self._opened = None
            self._say(str(error))
        except (ForebayError, KafkaException) as error:
            self._say(str(error))  # what was known before still holds
        finally:
            self._look = None

    def _say(self, problem: str) -> None:
        if problem != self._said:
            self._said = problem
            log.warning("answers are not streamed piece by piece; their results come whole", problem=problem)


def _memory_key(work: Work) -> tuple[str, int]:
    assert work.request is not None
    return work.request.request_id, work.history.replay_count
