"""A world where nothing is outside: for building a worker's parts as `wiring.build` does, without a network."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NoReturn

from forebay_worker.cluster.startup import Cluster
from forebay_worker.ops.server import OpsPages
from forebay_worker.request.work import Answer, Work
from forebay_worker.settings import WorkerSettings
from forebay_worker.signals.poller import SignalPoller
from forebay_worker.telemetry.tracing import NO_TRACING
from forebay_worker.wiring.parts import Parts
from forebay_worker.wiring.world import World, start_thread
from simulated.ports import ManualClock, MemoryProducer


class _FlushedProducer(MemoryProducer):
    def flush(self, timeout: float) -> int:
        del timeout
        return self.poll(0)


class _NoBackend:
    async def run(self, work: Work) -> Answer:
        raise AssertionError(f"{work.request_id} is run")

    async def close(self) -> None:
        """It holds nothing."""


class NoOps:
    """The operations port of a worker that nobody asks."""

    def __init__(self, pages: OpsPages) -> None:
        self.pages = pages

    async def start(self, *, host: str, port: int) -> int:
        del host
        return port

    async def stop(self) -> None:
        """Nothing listens."""


def empty_world(settings: WorkerSettings, **changes: Any) -> World:
    """No broker, engine, GPU or port; ``changes``: fields of `World` that are otherwise."""
    connection, clock = settings.connection(), ManualClock()
    world = World(
        clock=clock,
        connection=connection,
        cluster=Cluster(connection, pool=settings.pool_topics(), worker_id=settings.worker_id),
        make_producer=lambda _: _FlushedProducer(),
        make_consumer=_no_consumer,
        backend_kind="http",
        make_backend=lambda _: _NoBackend(),
        signals=SignalPoller(engine=None, gpu=None, clock=clock),
        make_tracing=lambda _: NO_TRACING,
        make_ops=NoOps,
        start_thread=start_thread,
    )
    return replace(world, **changes)


def pages_of(parts: Parts) -> OpsPages:
    """What the operations port of these parts would show."""
    assert isinstance(parts.ops, NoOps)
    return parts.ops.pages


def _no_consumer(config: dict[str, Any]) -> NoReturn:
    raise AssertionError(f"a consumer is asked for: {config.get('group.id')}")
