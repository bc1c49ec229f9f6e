"""`build`: everything a worker is made of, put together in one place. Starts nothing and asks nobody anything."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector

from forebay_schemas.contract.topics import Pool
from forebay_schemas.formats.avro_process import ProcessReader
from forebay_schemas.formats.envelope_reader import NoSchemas
from forebay_schemas.formats.schema_fetcher import SchemaFetcher
from forebay_schemas.kafka.certificates import certificate_ends
from forebay_worker.cluster.broker_clock import BrokerClock
from forebay_worker.cluster.startup import Cluster
from forebay_worker.cluster.topic_watch import TopicWatch
from forebay_worker.coordination.handover import HandOvers
from forebay_worker.coordination.slot_sharing import SlotSharing
from forebay_worker.dispatch.dispatcher import Dispatcher
from forebay_worker.dispatch.overload import OverloadLadder
from forebay_worker.execution.executor import Executor
from forebay_worker.intake.intake import Intake
from forebay_worker.intake.results_reader import ResultsReader
from forebay_worker.ops.document import StatusDocument
from forebay_worker.ops.gauges import Configured, gather
from forebay_worker.ops.loop_watch import LoopWatch, look_at
from forebay_worker.ops.metrics import Collector, LoopCollector
from forebay_worker.ops.probes import Probes
from forebay_worker.ops.run_state import RunState
from forebay_worker.ops.server import OpsPages, OpsPort
from forebay_worker.outcome.reporter import Reporter
from forebay_worker.pacing.prediction import Predictor
from forebay_worker.request.backend import Backend
from forebay_worker.settings import WorkerSettings
from forebay_worker.signals.poller import Signals
from forebay_worker.signals.readings import EngineReading, GpuReading
from forebay_worker.streaming.backend import StreamingBackend
from forebay_worker.streaming.outlet import Streams
from forebay_worker.telemetry.stats import Stats
from forebay_worker.telemetry.tracing import Tracing
from forebay_worker.wiring.choices import make_failure_policy, make_gate, make_lanes, make_sharing
from forebay_worker.wiring.clients import Clients
from forebay_worker.wiring.exchange import Exchange
from forebay_worker.wiring.readers import Readers
from forebay_worker.wiring.world import FlushedProducer, RunningThread, World


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What the settings say of a worker's life. ``kafka_wait_seconds``: None for as long as it takes."""

    worker_id: str
    pool: Pool
    ops_host: str
    ops_port: int
    kafka_wait_seconds: float | None
    drain_seconds: float
    joins_by_consumer_protocol: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """A worker, not running yet. Each part has one owner: the thread that its room's docstring names."""

    terms: Terms
    state: RunState
    clock: BrokerClock
    cluster: Cluster
    signals: Signals
    tracing: Tracing
    producer: FlushedProducer
    reporter: Reporter
    dispatcher: Dispatcher
    sharer: SlotSharing
    hand_overs: HandOvers
    backend: Backend
    streams: Streams
    executor: Executor
    results: ResultsReader
    foreign: ProcessReader
    readers: Readers
    ops: OpsPort
    start_thread: Callable[[str, Callable[[], None]], RunningThread]


def build(settings: WorkerSettings, world: World) -> Parts:
    """All parts. Must be called in the event loop that will run them. Raises ``UsageError``."""
    loop = asyncio.get_running_loop()
    terms = _terms(settings, world)
    pool, worker_id, cluster = terms.pool, terms.worker_id, world.cluster
    clock = BrokerClock(world.clock)
    clients = Clients(world, pool=pool, worker_id=worker_id)
    registry = settings.schema_registry()
    schemas = None if registry is None else SchemaFetcher(registry, clock=clock)
    foreign = ProcessReader(clock=clock)
    tracing = world.make_tracing(clock)
    tier_times = settings.tier_times()
    stats = Stats()
    producer = clients.producer()
    reporter = Reporter(
        producer=producer,
        pool=pool,
        worker_id=worker_id,
        clock=clock,
        stats=stats,
        on_acknowledged=clock.acknowledged,
        explain=cluster.explain_writing,
        tracing=tracing,
        bounds=world.bounds,
        answers_rejected=settings.answer_rejected,
    )
    dispatcher = Dispatcher(
        clock=clock,
        gate=make_gate(settings),
        predictor=Predictor() if settings.asks_for_tokens else None,
        lanes=make_lanes(settings),
        overload=OverloadLadder(tier_times),
        read_signals=partial(_read_signals, world.signals),
        reporter=reporter,
        stats=stats,
        buffer_bytes_max=settings.buffer_bytes_max,
        retries_max=settings.max_retries,
        failures=make_failure_policy(settings),
        tier_times=tier_times,
        tracing=tracing,
        bounds=world.bounds,
        make_event=world.make_event,
    )
    sharer = SlotSharing(
        sharing=make_sharing(settings, started_ms=clock.wall_ms()),
        dispatcher=dispatcher,
        clock=clock,
        send=reporter.announcer.send_capacity,
    )
    hand_overs = HandOvers(worker_id=worker_id, send=reporter.announcer.send_notice)
    backend = world.make_backend(clock)
    streams = Streams(
        topic=pool.streams,
        make_producer=clients.stream_producer,
        count_partitions=cluster.count_streams_partitions,
        stats=stats,
        explain=cluster.explain_writing,
    )
    executor = Executor(dispatcher=dispatcher, backend=tracing.around(StreamingBackend(backend, streams)))
    topics = TopicWatch(
        topics=_watched(world, pool),
        ask=cluster.topic_ids,
        clock=clock,
        turn_seconds=world.topics_turn_seconds,
        make_event=world.make_event,
    )
    results = ResultsReader(
        make_consumer=clients.results_reader,
        topic=pool.results,
        topic_id=partial(topics.id_of, pool.results),
        clock=clock,
        make_event=world.make_event,
    )
    intakes: dict[str, Intake] = {}
    exchange = Exchange(
        post=loop.call_soon_threadsafe,
        clock=clock,
        dispatcher=dispatcher,
        executor=executor,
        reporter=reporter,
        sharer=sharer,
        hand_overs=hand_overs,
        intakes=intakes,
    )
    readers = Readers(
        pool=pool,
        worker_id=worker_id,
        tiers=world.tiers,
        tier_times=tier_times,
        clients=clients,
        cluster=cluster,
        clock=clock,
        topics=topics,
        results=results,
        schemas=schemas,
        envelopes=world.make_envelope_reader(schemas or NoSchemas(), foreign=foreign),
        dispatcher=dispatcher,
        announcer=reporter.announcer,
        exchange=exchange,
        intakes=intakes,
        bounds=world.bounds,
        make_event=world.make_event,
    )
    state = RunState(heartbeat=clock.monotonic())
    watch = LoopWatch(
        ask=loop.call_soon_threadsafe,
        look=partial(look_at, loop, threading.get_ident(), executor.request_of),
        clock=time.monotonic,
        whose="backend" if world.backend_kind == "http" else "handler",
    )
    probes = Probes(
        state=state,
        clock=clock,
        expected=readers.expected,
        intakes=intakes,
        following_troubles=lambda: readers.following_troubles,
        schemas=schemas,
        foreign=foreign,
        delivery=reporter.delivery,
        dispatcher=dispatcher,
        cluster=cluster,
        watch=watch,
    )
    document = StatusDocument(
        worker_id=worker_id,
        pool=pool.name,
        backend=world.backend_kind,
        policy=settings.pacing_policy,
        in_flight_bytes_max=settings.in_flight_bytes_max,
        state=state,
        clock=clock,
        dispatcher=dispatcher,
        sharer=sharer,
        signals=world.signals,
        delivery=reporter.delivery,
        hand_overs=hand_overs,
        stats=stats,
        intakes=intakes,
    )
    collector = Collector(
        pool=pool.name,
        worker_id=worker_id,
        backend=settings.backend_name,
        stats=stats,
        gauges=partial(
            gather,
            configured=_configured(settings),
            clock=clock,
            dispatcher=dispatcher,
            signals=world.signals,
            delivery=reporter.delivery,
            hand_overs=hand_overs,
            results_reader=results,
            intakes=intakes,
        ),
        certificate_ends=certificate_ends(world.connection.properties),
    )
    pages = OpsPages(
        registry=_registry(collector),
        live=_live_registry(LoopCollector(pool=pool.name, watch=watch, clock=time.monotonic)),
        not_alive=probes.not_alive,
        not_ready=probes.not_ready,
        status=document.write,
        watch=watch,
    )
    return Parts(
        terms=terms,
        state=state,
        clock=clock,
        cluster=cluster,
        signals=world.signals,
        tracing=tracing,
        producer=producer,
        reporter=reporter,
        dispatcher=dispatcher,
        sharer=sharer,
        hand_overs=hand_overs,
        backend=backend,
        streams=streams,
        executor=executor,
        results=results,
        foreign=foreign,
        readers=readers,
        ops=world.make_ops(pages),
        start_thread=world.start_thread,
    )


def _terms(settings: WorkerSettings, world: World) -> Terms:
    return Terms(
        worker_id=settings.worker_id,
        pool=settings.pool_topics(),
        ops_host=settings.ops_host,
        ops_port=settings.ops_port,
        kafka_wait_seconds=settings.kafka_wait_seconds,
        drain_seconds=settings.drain_seconds,
        joins_by_consumer_protocol=world.connection.properties.get("group.protocol", "classic").lower() == "consumer",
    )


def _configured(settings: WorkerSettings) -> Configured:
    is_fixed = settings.pacing_policy == "fixed"
    return Configured(
        limit_min_requests=None if is_fixed else min(settings.limit_min, settings.limit_max),
        limit_max_requests=settings.limit_max,
        in_flight_bytes_max=settings.in_flight_bytes_max,
        tier_times=settings.tier_times(),
    )


def _watched(world: World, pool: Pool) -> list[str]:
    requests = [pool.requests(tier) for tier in world.tiers]
    return [*requests, *pool.retries, pool.coordination, pool.control, pool.results]


def _read_signals(signals: Signals, now: float) -> tuple[EngineReading | None, GpuReading | None]:
    return signals.latest_engine(now), signals.latest_gpu(now)


def _registry(collector: Any) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(collector)
    return registry


def _live_registry(collector: Any) -> CollectorRegistry:
    """What the operations port's thread may read while the event loop is held."""
    registry = CollectorRegistry()
    for each in (ProcessCollector, PlatformCollector, GCCollector):
        each(registry=registry)
    registry.register(collector)
    return registry
