"""Everything that a worker reaches outside itself, as one value: the machine's (`machine`), or a simulated one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol

from confluent_kafka import Consumer, Producer

from forebay_schemas.clock import Clock, MakeEvent, SystemClock
from forebay_schemas.contract.tiers import TIERS, Tier
from forebay_schemas.formats.envelope_reader import EnvelopeReader
from forebay_schemas.kafka.clients import create_client
from forebay_schemas.kafka.connection import KafkaConnection
from forebay_worker.bounds import BOUNDS, Bounds
from forebay_worker.cluster.startup import Cluster
from forebay_worker.cluster.topic_watch import TURN_SECONDS
from forebay_worker.execution.handler_backend import HandlerBackend, load_handler
from forebay_worker.execution.handler_process import run_in_child
from forebay_worker.execution.http_backend import HttpBackend
from forebay_worker.ops.server import OpsPages, OpsPort, OpsServer
from forebay_worker.outcome.producer import KafkaProducer
from forebay_worker.request.backend import Backend
from forebay_worker.settings import WorkerSettings
from forebay_worker.signals.poller import Signals
from forebay_worker.telemetry.tracing import Tracing
from forebay_worker.wiring.choices import http_options
from forebay_worker.wiring.signals import make_signals
from forebay_worker.wiring.tracing import make_tracing

ClientConfig = dict[str, Any]
"""Properties of librdkafka, and confluent-kafka's callbacks."""

BackendKind = Literal["http", "handler"]


class FlushedProducer(KafkaProducer, Protocol):
    """A producer that is flushed at the end."""

    def flush(self, timeout: float) -> int: ...


class RunningThread(Protocol):
    """A thread that was started."""

    def is_alive(self) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What is outside. Nothing of it is reached before `build` asks for it.

    ``make_backend`` is called in the event loop, with the brokers' clock; ``make_tracing`` with that clock, too.
    ``start_thread``: runs a function on a thread of that name. ``tiers``: those whose requests are taken.
    ``topics_turn_seconds``: how long the watch of topics waits in one turn.
    """

    clock: Clock
    connection: KafkaConnection
    cluster: Cluster
    make_producer: Callable[[ClientConfig], FlushedProducer]
    make_consumer: Callable[[ClientConfig], Any]
    backend_kind: BackendKind
    make_backend: Callable[[Clock], Backend]
    signals: Signals
    make_tracing: Callable[[Clock], Tracing]
    make_ops: Callable[[OpsPages], OpsPort] = OpsServer
    make_envelope_reader: Callable[..., EnvelopeReader] = EnvelopeReader
    make_event: MakeEvent = threading.Event
    start_thread: Callable[[str, Callable[[], None]], RunningThread]
    tiers: tuple[Tier, ...] = TIERS
    bounds: Bounds = BOUNDS
    topics_turn_seconds: float = TURN_SECONDS


def machine(settings: WorkerSettings) -> World:
    """The machine, its network, and the backend or handler that the settings name.

    Imports the handler; reaches nothing else yet. Raises ``UsageError`` for what can be checked without the network.
    """
    connection = settings.connection()
    if settings.handler is None:
        kind: BackendKind = "http"
        make_backend: Callable[[Clock], Backend] = lambda _: HttpBackend(http_options(settings))  # noqa: E731
    else:
        kind, handler = "handler", load_handler(settings.handler)
        run = partial(run_in_child, settings.handler)
        make_backend = lambda _: HandlerBackend(handler, run_in_child=run)  # noqa: E731
    clock = SystemClock()
    return World(
        clock=clock,
        connection=connection,
        cluster=Cluster(connection, pool=settings.pool_topics(), worker_id=settings.worker_id),
        make_producer=partial(create_client, Producer),
        make_consumer=partial(create_client, Consumer),
        backend_kind=kind,
        make_backend=make_backend,
        signals=make_signals(settings, clock),
        make_tracing=partial(make_tracing, settings),
        start_thread=start_thread,
    )


def start_thread(name: str, run: Callable[[], None]) -> threading.Thread:
    """Runs a function on a daemon thread of that name."""
    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread
