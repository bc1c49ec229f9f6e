"""The way of pieces to the streams topic: its partition, one timer, a topic that is missing, deliveries that fail."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError
from structlog.testing import capture_logs

from forebay_schemas.contract.pieces import Piece, decode_piece
from forebay_schemas.contract.reasons import Reason
from forebay_schemas.errors import TopicMissingError
from forebay_worker.request.backend import BackendFailed
from forebay_worker.request.work import Answer, Failure, Work
from forebay_worker.streaming import outlet as outlet_module
from forebay_worker.streaming.backend import StreamingBackend
from forebay_worker.streaming.outlet import Streams
from forebay_worker.telemetry.stats import Stats
from simulated.ports import MemoryRecord, plain
from simulated.streams import shown
from simulated.works import POOL, make_work


@pytest.fixture(autouse=True)
def a_busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The topic is found by another thread, which may have to wait for its turn."""
    monkeypatch.setattr(outlet_module, "OPEN_SECONDS_MAX", 60.0)


class Producer:
    """Takes pieces, and reports at the next poll those that fail."""

    def __init__(self) -> None:
        self.taken: list[tuple[int, bytes, Piece]] = []
        self.fails: Callable[[Piece], KafkaError | None] = lambda _: None
        self.is_full = False
        self._reports: list[Callable[[], None]] = []

    def produce(self, topic: str, value: bytes, key: bytes, partition: int = -1, *, on_delivery: Any) -> None:
        assert topic == POOL.streams
        if self.is_full:
            raise BufferError("Local: Queue full")
        piece = decode_piece(value)
        error = self.fails(piece)
        if error is None:
            self.taken.append((partition, key, piece))
        else:
            self._reports.append(lambda: on_delivery(error, MemoryRecord(key_bytes=key)))

    def poll(self, timeout: float) -> int:
        assert timeout == 0
        reports, self._reports = self._reports, []
        for report in reports:
            report()
        return len(reports)

    def flush(self, timeout: float) -> int:  # noqa: ARG002 - as the client's
        return 0

    def pieces(self, key: bytes = b"r-0") -> list[Piece]:
        return [piece for _, of, piece in self.taken if of == key]


class Topic:
    """The streams topic as the brokers tell of it."""

    def __init__(self, partitions: int | None = 4) -> None:
        self.partitions = partitions
        self.asked = 0

    def count(self) -> int:
        self.asked += 1
        if self.partitions is None:
            raise TopicMissingError([POOL.streams], pool=POOL.name)
        return self.partitions


class Engine:
    """Streams by a script."""

    def __init__(self, *scripts: Callable[[Work], Awaitable[None]]) -> None:
        self._scripts = list(scripts)

    async def run(self, work: Work) -> Answer:
        await self._scripts.pop(0)(work)
        return Answer(body={})

    async def close(self) -> None:
        """Nothing."""


def say(work: Work, text: str) -> None:
    assert work.stream is not None
    choices = [{"index": 0, "delta": {"content": text}}]
    work.stream.add(b"", json.dumps({"choices": choices}).encode(), choices, {}, True)


def make_streams(producer: Producer, topic: Topic | None = None, stats: Stats | None = None) -> Streams:
    return Streams(
        topic=POOL.streams,
        make_producer=lambda: producer,
        count_partitions=(topic or Topic()).count,
        stats=stats or Stats(),
        explain=plain,
    )


def followed(**reply: Any) -> Work:
    return make_work(reply={"stream": True, **reply})


@pytest.mark.parametrize(
    ("reply", "partition"),
    [
        ({"partition": 3}, 3),
        ({"partition": 0}, 0),
        ({"partition": 4}, -1),  # does not exist: by the key
        ({}, -1),
        ({"partition": None}, -1),
    ],
)
def test_pieces_go_to_the_partition_of_the_reply_else_by_their_key(reply: dict[str, Any], partition: int) -> None:
    producer = Producer()

    async def speak(work: Work) -> None:
        say(work, "a")

    asyncio.run(StreamingBackend(Engine(speak), make_streams(producer)).run(followed(**reply)))
    assert [(at, key, piece.last) for at, key, piece in producer.taken] == [
        (partition, b"r-0", False),
        (partition, b"r-0", True),
    ]


@pytest.mark.parametrize("reply", [None, {"stream": False}, {"stream": 1}, {"stream": True, "partition": -1}, "stream"])
def test_nobody_follows_a_request_whose_reply_does_not_say_so(reply: Any) -> None:
    producer, topic = Producer(), Topic()

    async def check(work: Work) -> None:
        assert work.stream is None

    asyncio.run(StreamingBackend(Engine(check), make_streams(producer, topic)).run(make_work(reply=reply)))
    assert (producer.taken, topic.asked) == ([], 0)


def test_one_timer_joins_the_pieces_of_all_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outlet_module, "JOIN_SECONDS", 0.02)
    producer, stats = Producer(), Stats()

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        timers: list[float] = []
        call_later = loop.call_later

        def counted(delay: float, *call: Any, **options: Any) -> Any:
            timers.extend([delay] if delay == 0.02 else [])
            return call_later(delay, *call, **options)

        monkeypatch.setattr(loop, "call_later", counted)
        streams = make_streams(producer, stats=stats)

        async def speak(work: Work) -> None:
            for text in "abcd":
                say(work, text)
            await asyncio.sleep(0.2)

        works = [make_work(offset=number, reply={"stream": True}) for number in range(20)]
        await asyncio.gather(*(StreamingBackend(Engine(speak), streams).run(work) for work in works))
        assert len(timers) == 1

    asyncio.run(scenario())
    for number in range(20):
        pieces = producer.pieces(b"r-%d" % number)
        assert [(piece.number, len(piece.events), piece.last) for piece in pieces] == [
            (0, 1, False),
            (1, 3, False),
            (2, 0, True),
        ]
    assert (stats.pieces, stats.pieces_dropped) == (60, 0)


def test_a_missing_topic_is_said_once_costs_no_answer_and_is_found_when_it_was_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outlet_module, "LOOK_AGAIN_SECONDS", 0.0)
    producer, topic = Producer(), Topic(None)

    async def scenario() -> None:
        streams = make_streams(producer, topic)

        async def silent(work: Work) -> None:
            assert work.stream is None

        for _ in range(3):
            assert (await StreamingBackend(Engine(silent), streams).run(followed())).body == {}
        topic.partitions = 2

        async def speak(work: Work) -> None:
            say(work, "a")

        await StreamingBackend(Engine(speak), streams).run(followed())

    with capture_logs() as logs:
        asyncio.run(scenario())
    assert len(producer.pieces()) == 2
    assert len(logs) == 1
    assert POOL.streams in logs[0]["problem"]


def test_a_topic_that_is_not_found_in_time_holds_no_request_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outlet_module, "OPEN_SECONDS_MAX", 0.01)
    released = threading.Event()

    def never() -> int:
        released.wait(30)
        return 1

    async def scenario() -> None:
        streams = Streams(
            topic=POOL.streams, make_producer=Producer, count_partitions=never, stats=Stats(), explain=plain
        )

        async def silent(work: Work) -> None:
            assert work.stream is None

        try:
            assert (await StreamingBackend(Engine(silent), streams).run(followed())).body == {}
        finally:
            released.set()

    asyncio.run(scenario())


def test_a_full_queue_and_a_failed_delivery_end_the_run_and_not_the_answer() -> None:
    producer, stats = Producer(), Stats()

    async def scenario() -> None:
        streams = make_streams(producer, stats=stats)

        async def into_a_full_queue(work: Work) -> None:
            say(work, "a")
            producer.is_full = True
            say(work, "b")
            await asyncio.sleep(2 * outlet_module.JOIN_SECONDS)
            producer.is_full = False
            say(work, "c")

        assert (await StreamingBackend(Engine(into_a_full_queue), streams).run(followed())).body == {}
        assert shown(producer.pieces()).text() == "a"
        assert not shown(producer.pieces()).is_whole

        async def not_delivered(work: Work) -> None:
            producer.fails = lambda piece: None if piece.error else KafkaError(KafkaError._MSG_TIMED_OUT)
            say(work, "a")
            streams.poll()
            say(work, "b")

        work = make_work(offset=1, reply={"stream": True})
        assert (await StreamingBackend(Engine(not_delivered), streams).run(work)).body == {}

    with capture_logs() as logs:
        asyncio.run(scenario())
    assert [(piece.number, piece.error) for piece in producer.pieces(b"r-1")] == [(1, "stream_broken")]
    assert stats.pieces_dropped == 3
    assert {log["log_level"] for log in logs} == {"warning"}


def test_a_failure_and_a_cancellation_end_the_run_and_a_retry_here_goes_on() -> None:
    producer = Producer()

    async def scenario() -> None:
        streams = make_streams(producer)

        async def fail(work: Work) -> None:
            say(work, "ab")
            raise BackendFailed(Failure(reason=Reason.BACKEND_BAD_RESPONSE, error="it broke off"))

        async def hang(work: Work) -> None:
            say(work, "abc")
            await asyncio.sleep(60)

        async def speak(work: Work) -> None:
            say(work, "abcd")

        backend = StreamingBackend(Engine(fail, hang, speak), streams)
        with pytest.raises(BackendFailed):
            await backend.run(followed())
        task = asyncio.create_task(backend.run(followed()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        work = followed()
        await backend.run(work)
        assert work.stream is None

    asyncio.run(scenario())
    reader = shown(producer.pieces())
    assert (reader.text(), reader.is_whole) == ("abcd", True)
    assert [piece.error for piece in producer.pieces()] == [None, "stream_broken", None, "stream_broken", None, None]
