"""The worked examples of ARCHITECTURE.md run in a worker's wiring: a policy, a backend, a signal source, a codec."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from examples.backend import Echo
from examples.codec import MessagePackCodec, MessagePackReader
from examples.pacing_policy import ShortQueue
from examples.signal_source import FigureFile
from forebay_producer.client.prepare import prepare
from forebay_schemas.contract.coordination import decode_capacity
from forebay_schemas.contract.results import decode_result
from forebay_schemas.contract.tiers import TIERS
from forebay_schemas.errors import EnvelopeError
from forebay_schemas.formats.envelope_reader import NoSchemas
from forebay_worker.request.backend import Backend
from forebay_worker.request.work import Answer, Work
from forebay_worker.settings import WorkerSettings
from forebay_worker.signals.poller import SignalPoller, Signals
from forebay_worker.wiring import choices
from forebay_worker.wiring.parts import build
from forebay_worker.wiring.world import machine
from simulated.ports import NOW_MS, ManualClock, MemoryProducer
from simulated.works import POOL, make_assignment, make_work

SETTINGS = WorkerSettings(backend_url="http://127.0.0.1:9", pool=POOL.name)
DAY_MS = 86_400_000


class _Endless:
    async def run(self, work: Work) -> Answer:
        del work
        await asyncio.Event().wait()
        raise AssertionError

    async def close(self) -> None: ...


class _Producer(MemoryProducer):
    def flush(self, timeout: float) -> int:
        del timeout
        return 0


class Running:
    """A worker that turns a second at a time, and reads back what it publishes of its share of the backend."""

    def __init__(self, backend: Backend, *, clock: ManualClock, signals: Signals | None = None) -> None:
        self.clock = clock
        self.producer = _Producer()
        world = replace(
            machine(SETTINGS), clock=clock, make_producer=lambda _: self.producer, make_backend=lambda _: backend
        )
        self.parts = build(SETTINGS, world if signals is None else replace(world, signals=signals))
        self._received = 0

    async def until(self, done: Callable[[], bool]) -> None:
        parts = self.parts
        for _ in range(500):
            self.clock.advance(1.0)
            parts.reporter.delivery.poll()
            parts.sharer.step(self.clock.monotonic())
            published = self.producer.delivered_to(POOL.coordination)
            for record in published[self._received :]:
                if (capacity := decode_capacity(record.value())) is not None:
                    parts.sharer.receive(capacity, 0.0)
            self._received = len(published)
            parts.dispatcher.tick()
            parts.executor.start_runnable()
            await asyncio.sleep(0.001)
            if done():
                return
        raise AssertionError("it did not come to that")


def test_a_backend_of_ones_own_executes_requests() -> None:
    async def scenario() -> None:
        worker = Running(Echo(), clock=ManualClock())
        assignment = make_assignment()
        works = [
            make_work(assignment, offset=offset, payload=payload, ttl_ms=DAY_MS)
            for offset, payload in enumerate([{"say": "hello"}, {}])
        ]
        worker.parts.dispatcher.accept(works)
        await worker.until(lambda: len(worker.producer.delivered_to(POOL.results)) == 2)
        results = [decode_result(record.value()) for record in worker.producer.delivered_to(POOL.results)]
        assert {result.request_id: (result.reason, result.body) for result in results} == {
            "r-0": ("completed", {"said": "hello"}),
            "r-1": ("backend_rejected", None),
        }
        [letter] = worker.producer.delivered_to(POOL.dead_letter)
        assert letter.value() == works[1].record.value()

    asyncio.run(asyncio.wait_for(scenario(), 20))


def test_a_policy_of_ones_own_follows_a_signal_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands for ``make_policy`` is the case that a new policy gets there."""
    monkeypatch.setattr(choices, "make_policy", lambda _: ShortQueue(limit_min=2, limit_start=20, limit_max=40))
    file = tmp_path / "figures.json"
    file.write_bytes(b'{"running": 20, "waiting": 0}')

    async def scenario() -> None:
        clock = ManualClock()
        signals = SignalPoller(engine=FigureFile(file, clock=clock), gpu=None, clock=clock)
        worker = Running(_Endless(), clock=clock, signals=signals)
        dispatcher, assignment = worker.parts.dispatcher, make_assignment()
        dispatcher.accept([make_work(assignment, offset=offset, ttl_ms=DAY_MS) for offset in range(100)])
        await signals.start()
        try:
            await worker.until(lambda: len(dispatcher.running) > 30)
            assert dispatcher.gate.limit_requests > 30
            file.write_bytes(b'{"running": 20, "waiting": 9}')
            await worker.until(lambda: dispatcher.gate.limit_requests == 2)
            assert any("queue in the engine" in change.cause for change in dispatcher.gate.changes)
        finally:
            await signals.stop()

    asyncio.run(asyncio.wait_for(scenario(), 20))


def test_a_codec_of_ones_own_is_written_by_the_client_and_read_beside_json() -> None:
    fields = {"request_id": "r-1", "biz_type": "chat_completion", "payload": {"messages": ["é"]}, "own": [1]}
    codecs = dict.fromkeys(TIERS, MessagePackCodec())
    prepared = prepare(fields, tier=None, traceparent=None, codecs=codecs, now_ms=NOW_MS)
    assert prepared.headers == [("content-type", b"application/vnd.msgpack")]
    reader = MessagePackReader(NoSchemas())
    for value in (prepared.value, msgspec.json.encode(fields)):
        request = reader.read(value)
        assert request.request_id == "r-1"
        assert msgspec.json.decode(request.payload) == {"messages": ["é"]}
    for damaged in (b"\xc1", b"\xc1\x81", b"\xc1\x91\x01", b"\xc1\xc1"):
        with pytest.raises(EnvelopeError):
            reader.read(damaged)
