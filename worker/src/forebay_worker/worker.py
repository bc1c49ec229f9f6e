"""The worker: puts intake, lanes, pacing, dispatch and outcome together, and takes them down in the right order.

The event loop's thread owns dispatch, execution and outcomes. Each tier's consumer has a thread of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import logging
import math
import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import structlog
from confluent_kafka import Consumer, Producer
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector

from forebay_schemas.clock import SystemClock
from forebay_schemas.contract.control import Control, ControlAction, ControlOutcome
from forebay_schemas.contract.coordination import Capacity, Notice
from forebay_schemas.contract.tiers import TIERS
from forebay_schemas.contract.topics import RETRY_DELAYS_SECONDS, UNPACKED_BYTES_MAX, Pool
from forebay_schemas.errors import BrokerUnreachableError, ExitCode, KafkaFailedError
from forebay_schemas.formats.avro_process import ProcessReader
from forebay_schemas.formats.envelope_reader import EnvelopeReader, NoSchemas
from forebay_schemas.formats.schema_fetcher import SchemaFetcher
from forebay_schemas.kafka.certificates import certificate_ends
from forebay_schemas.kafka.clients import create_client
from forebay_schemas.kafka.configs import READ_BY_ALL, consumer_config, producer_config, reader_config
from forebay_schemas.kafka.connection import KafkaConnection
from forebay_worker.cluster.broker_clock import BrokerClock
from forebay_worker.cluster.startup import Cluster
from forebay_worker.cluster.topic_watch import TopicWatch
from forebay_worker.coordination.follower import Coordination, FollowingConsumer
from forebay_worker.coordination.handover import HandOvers
from forebay_worker.coordination.slot_sharing import Sharer
from forebay_worker.dispatch.dispatcher import Dispatcher
from forebay_worker.dispatch.overload import OverloadLadder
from forebay_worker.execution.executor import Executor
from forebay_worker.execution.handler_backend import HandlerBackend, load_handler
from forebay_worker.execution.handler_process import run_in_child
from forebay_worker.execution.http_backend import HttpBackend
from forebay_worker.intake.early_control import Heard
from forebay_worker.intake.fetcher import Fetcher, FetchingConsumer
from forebay_worker.intake.intake import Intake
from forebay_worker.intake.partitions import HandedOver, Source
from forebay_worker.intake.protocols import KafkaConsumer, OnCommit
from forebay_worker.intake.results_reader import LookingConsumer, ResultsReader
from forebay_worker.ops.gauges import Gauges, gather
from forebay_worker.ops.loop_watch import LoopWatch, look_at
from forebay_worker.ops.metrics import Collector, LoopCollector
from forebay_worker.ops.server import OpsServer
from forebay_worker.ops.status import (
    breaker_status,
    credentials_refused,
    limitation,
    pacing_status,
    running_status,
    shown,
    tiers_status,
)
from forebay_worker.outcome.reporter import Reporter
from forebay_worker.pacing.prediction import Predictor
from forebay_worker.request.backend import Backend
from forebay_worker.request.controls import RECENT_MS
from forebay_worker.request.work import Work
from forebay_worker.settings import WorkerSettings
from forebay_worker.signals.poller import SignalPoller
from forebay_worker.signals.readings import EngineReading, GpuReading
from forebay_worker.signals.sources import make_signals
from forebay_worker.telemetry.stats import Stats
from forebay_worker.telemetry.tracing import make_tracing
from forebay_worker.wiring import http_options, make_failure_policy, make_gate, make_lanes, make_sharing

TICK_SECONDS = 0.02
BROKER_TIME_POLL_SECONDS = 0.005
BROKER_TIME_SECONDS_MAX = 2.0
"""Before anything starts, for the brokers to tell their time."""

STOP_SECONDS_MAX = 15.0
"""After the drain: for deliveries, last commits and hand-overs, all together."""

DENIED_AGAIN_SECONDS = 5.0

UNREACHABLE_AGAIN_SECONDS = 1.0
UNREACHABLE_SAID_SECONDS = 60.0
"""How often the brokers are asked at the start while none answers, and how often the log says so."""

HELD_SECONDS_BEFORE_UNREADY = 5.0
"""A handler that blocks for so long is named by /readyz, too."""

FETCH_BYTES = 64 * 1024
LOOK_KILOBYTES = 16 * 1024
"""Prefetch of whoever looks through the results."""

HEARTBEAT_SECONDS_MAX = 30.0
FROZEN_SECONDS = 50.0
"""Longer than /livez waits: whoever asks it is faster, and may look at the process first."""

EMPTY_SHARE_SECONDS = 10.0
"""With ``group.protocol=consumer`` a member that gets no partition is never called back (librdkafka 2.16, seen)."""

_Loop = Intake | Coordination | Fetcher | ResultsReader | SchemaFetcher | TopicWatch

log = structlog.get_logger("forebay.worker")


class Worker:
    """One worker process. `run` returns when it has drained."""

    def __init__(self, settings: WorkerSettings) -> None:
        """Checks what can be checked without the network. Raises ``UsageError``."""
        self._settings = settings
        self._pool: Pool = settings.pool_topics()
        self._connection: KafkaConnection = settings.connection()
        self._cluster = Cluster(self._connection, pool=self._pool, worker_id=settings.worker_id)
        self._handler = load_handler(settings.handler) if settings.handler is not None else None
        self._clock = BrokerClock(SystemClock())
        registry = settings.schema_registry()
        self._schemas = None if registry is None else SchemaFetcher(registry, clock=self._clock)
        self._foreign = ProcessReader(clock=self._clock)
        # After the handler's import, which may set OpenTelemetry up.
        self._tracing = make_tracing(settings, self._clock)
        self._stats = Stats()
        self._times = settings.tier_times()
        self._overload = OverloadLadder(self._times)
        self._signals = self._make_signals()
        self._intakes: dict[str, Intake] = {}
        pool = self._pool
        self._topics = TopicWatch(
            topics=[
                *(pool.requests(tier) for tier in TIERS),
                *pool.retries,
                pool.coordination,
                pool.control,
                pool.results,
            ],
            ask=self._cluster.topic_ids,
            clock=self._clock,
        )
        self._results_reader = ResultsReader(
            make_consumer=self._make_looking_consumer,
            topic=pool.results,
            topic_id=partial(self._topics.id_of, pool.results),
            clock=self._clock,
        )
        self._threads: list[threading.Thread] = []
        self._close_threads = threading.Event()
        self._drain = asyncio.Event()
        self._loop_heartbeat = self._clock.monotonic()
        self._watch_again_at = 0.0
        self._ops_port = 0
        self._coordination: Coordination | None = None
        self._share_until = math.inf
        self._waits_for_cluster: str | None = "waiting for Kafka"
        self._request_of: Callable[[asyncio.Task[Any]], str | None] = lambda _: None

    async def run(self) -> None:
        """Works until SIGTERM or SIGINT, then drains. Raises ``ForebayError`` when it cannot start."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._drain.set)
        self._producer = create_client(
            Producer,
            producer_config(
                self._connection,
                client_id=self._settings.worker_id,
                record_bytes_max=UNPACKED_BYTES_MAX,
                compression=READ_BY_ALL,
            ),
        )
        self._reporter = Reporter(
            producer=self._producer,
            pool=self._pool,
            worker_id=self._settings.worker_id,
            clock=self._clock,
            stats=self._stats,
            on_acknowledged=self._clock.acknowledged,
            explain=self._cluster.explain_writing,
            tracing=self._tracing,
        )
        self._dispatcher = Dispatcher(
            clock=self._clock,
            gate=make_gate(self._settings),
            predictor=Predictor() if self._settings.asks_for_tokens else None,
            lanes=make_lanes(self._settings),
            overload=self._overload,
            read_signals=self._read_signals,
            reporter=self._reporter,
            stats=self._stats,
            buffer_bytes_max=self._settings.buffer_bytes_max,
            retries_max=self._settings.max_retries,
            failures=make_failure_policy(self._settings),
            tier_times=self._times,
            tracing=self._tracing,
        )
        self._sharer = Sharer(
            sharing=make_sharing(self._settings, started_ms=self._clock.wall_ms()),
            dispatcher=self._dispatcher,
            clock=self._clock,
            send=self._reporter.send_capacity,
        )
        self._hand_overs = HandOvers(worker_id=self._settings.worker_id, send=self._reporter.send_notice)
        ops = self._make_ops(loop)
        self._ops_port = await ops.start(host=self._settings.ops_host, port=self._settings.ops_port)
        self._backend: Backend = (
            HttpBackend(http_options(self._settings))
            if self._handler is None
            else HandlerBackend(self._handler, run_in_child=partial(run_in_child, str(self._settings.handler)))
        )
        self._executor = Executor(dispatcher=self._dispatcher, backend=self._tracing.around(self._backend))
        self._request_of = self._executor.request_of
        try:
            if (partitions := await self._find_cluster()) is not None:
                await self._signals.start()
                await self._learn_broker_time()
                self._start_threads(loop, partitions)
                log.info("working", pool=self._pool.name, worker=self._settings.worker_id, ops_port=self._ops_port)
                following = asyncio.create_task(self._follow_denials())
                await self._turn_until(self._drain.is_set)
                following.cancel()
                await self._stop()
        finally:
            faulthandler.cancel_dump_traceback_later()
            self._close_threads.set()
            await asyncio.to_thread(self._foreign.close)
            await self._signals.stop()
            await self._backend.close()
            await ops.stop()
            await asyncio.to_thread(self._tracing.close)
        if self._executor.runner_count:
            # asyncio would wait for it for ever; all that it holds up has been delivered, committed and handed over.
            log.error("a handler ignores its cancellation; ending without it", handlers=self._executor.runner_count)
            logging.shutdown()
            os._exit(ExitCode.OK)
        log.info("drained")

    async def _find_cluster(self) -> dict[str, int] | None:
        """How many partitions each topic has, once brokers answer; None when the worker is to end before that.

        Kafka may well be away for a while, as it may be later. Raises what no waiting mends, and
        ``BrokerUnreachableError`` once the worker is to wait no longer.
        """
        patience_seconds = self._settings.kafka_wait_seconds
        give_up_at = math.inf if patience_seconds is None else self._clock.monotonic() + patience_seconds
        say_at = -math.inf
        while True:
            asked = asyncio.create_task(asyncio.to_thread(self._cluster.require_usable))
            while not asked.done():
                self._loop_heartbeat = self._clock.monotonic()
                await asyncio.wait({asked}, timeout=HEARTBEAT_SECONDS_MAX / 10)
            try:
                partitions = asked.result()
            except BrokerUnreachableError as error:
                now = self._clock.monotonic()
                if now >= give_up_at:
                    raise
                self._waits_for_cluster = f"waiting for Kafka: {error}"
                if now >= say_at:
                    say_at = now + UNREACHABLE_SAID_SECONDS
                    log.warning("waiting for Kafka", error=str(error), ops_port=self._ops_port)
            else:
                self._waits_for_cluster = None
                return partitions
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._drain.wait(), UNREACHABLE_AGAIN_SECONDS)
                return None

    async def _learn_broker_time(self) -> None:
        """Asks twice, since the first answer also waits for the connection. Gives up after two seconds."""
        end = self._clock.monotonic() + BROKER_TIME_SECONDS_MAX
        for _ in range(2):
            answers: list[bool] = []
            self._reporter.probe_clock(answers.append)
            while not answers and self._clock.monotonic() < end and not self._drain.is_set():
                await asyncio.sleep(BROKER_TIME_POLL_SECONDS)
                self._reporter.poll()
        if not self._clock.is_known:
            log.warning(
                "the brokers' time is not known; deadlines go by this machine's clock until a result is written",
                fix=f"{self._pool.coordination} should have message.timestamp.type=LogAppendTime",
            )

    def _start_threads(self, loop: asyncio.AbstractEventLoop, partitions: dict[str, int]) -> None:
        def deliver(batch: list[Work]) -> None:
            loop.call_soon_threadsafe(self._accept, batch)

        def answer(action: ControlAction, request_id: str, outcome: ControlOutcome) -> None:
            loop.call_soon_threadsafe(self._reporter.answer_control, action, request_id, outcome)

        def hear_controls(controls: list[tuple[Control, int]]) -> None:
            # Dispatch first: what an intake hands it for one of them must find it there.
            self._dispatcher.controls.heard.extend(controls)
            since_ms = self._clock.wall_ms() - RECENT_MS
            heard = [Heard(control, stamped_ms, stamped_ms > since_ms) for control, stamped_ms in controls]
            for intake in self._intakes.values():
                intake.heard_controls.extend(heard)

        def hear_capacity(capacity: Capacity, age_seconds: float) -> None:
            loop.call_soon_threadsafe(self._sharer.hear, capacity, age_seconds)

        def hand_over(over: HandedOver) -> None:
            loop.call_soon_threadsafe(self._hand_overs.add, over)

        if self._connection.properties.get("group.protocol", "classic").lower() == "consumer":
            self._share_until = self._clock.monotonic() + EMPTY_SHARE_SECONDS
        pool, dispatcher = self._pool, self._dispatcher
        sources = {
            tier.value: [
                Source(
                    topic=pool.requests(tier),
                    tier=tier,
                    retry_delay_seconds=0,
                    credit=dispatcher.lookahead.credits[tier],
                )
            ]
            for tier in TIERS
        }
        sources["retry"] = [
            Source(
                topic=pool.retry(tier, delay),
                tier=tier,
                retry_delay_seconds=delay,
                credit=dispatcher.lookahead.retry_credits[tier],
            )
            for tier in TIERS
            for delay in RETRY_DELAYS_SECONDS
        ]
        coordination = self._coordination = Coordination(
            consumer=cast(FollowingConsumer, self._make_reader()),
            topic=pool.coordination,
            control_topic=pool.control,
            partitions=partitions,
            worker_id=self._settings.worker_id,
            clock=self._clock,
            topic_ids=self._topics,
            hear=self._hear,
            hear_controls=hear_controls,
            has_room=self._dispatcher.controls.has_room,
            hear_capacity=hear_capacity,
            send=self._reporter.send_notice,
            explain=self._cluster.explain_following,
        )
        envelopes = EnvelopeReader(self._schemas or NoSchemas(), foreign=self._foreign)
        fetcher = Fetcher(make_consumer=self._make_fetching_consumer, clock=self._clock)
        for name, of_intake in sources.items():
            intake = Intake(
                name=name,
                make_consumer=partial(self._make_consumer, name),
                sources=of_intake,
                envelopes=envelopes,
                clock=self._clock,
                deliver=deliver,
                hand_over=hand_over,
                peers=coordination,
                topic_ids=self._topics,
                explain=partial(self._cluster.explain_reading, name),
                fetcher=fetcher,
                look=self._results_reader.look,
                answer=answer,
                quiet=dispatcher.quiet,
                default_ttl_ms=self._times.ttl_ms,
            )
            self._intakes[name] = intake
            self._start_thread(f"intake-{name}", intake)
        self._start_thread("topics", self._topics)
        self._start_thread("fetcher", fetcher)
        self._start_thread("results", self._results_reader)
        self._start_thread("coordination", coordination)
        if self._schemas is not None:
            self._start_thread("schemas", self._schemas)

    def _start_thread(self, name: str, loop: _Loop) -> None:
        thread = threading.Thread(target=self._run_thread, args=(loop,), name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _run_thread(self, loop: _Loop) -> None:
        while not self._close_threads.is_set():
            loop.step()
        loop.close()

    def _make_consumer(self, name: str, on_commit: OnCommit) -> KafkaConsumer:
        group = f"forebay.{self._pool.name}.{name}"
        config = consumer_config(self._connection, client_id=self._settings.worker_id, group=group)
        return cast(KafkaConsumer, create_client(Consumer, {**config, "on_commit": on_commit}))

    def _make_reader(self) -> Consumer:
        config = reader_config(self._connection, client_id=self._settings.worker_id)
        # Retention has passed the position of a process that stood still: what is left starts later. The prefetch is
        # bounded: before a million cancels the client's own bound is 64 MiB, and some 50 MB for their messages.
        config |= {"queued.min.messages": 10_000, "queued.max.messages.kbytes": 8192}
        return create_client(Consumer, config | {"auto.offset.reset": "earliest", "enable.partition.eof": True})

    def _make_fetching_consumer(self) -> FetchingConsumer:
        config = reader_config(self._connection, client_id=self._settings.worker_id)
        # One record is wanted, not what follows it.
        config |= {"queued.min.messages": 1, "fetch.message.max.bytes": FETCH_BYTES, "auto.offset.reset": "error"}
        config["enable.partition.eof"] = True
        return cast(FetchingConsumer, create_client(Consumer, config))

    def _make_looking_consumer(self) -> LookingConsumer:
        config = reader_config(self._connection, client_id=self._settings.worker_id)
        # It is to end soon: at the end of a partition no fetch waits for more.
        config |= {"enable.partition.eof": True, "fetch.wait.max.ms": 10, "auto.offset.reset": "earliest"}
        config |= {"queued.max.messages.kbytes": LOOK_KILOBYTES}
        return cast(LookingConsumer, create_client(Consumer, config))

    def _hear(self, notice: Notice, age_seconds: float) -> None:
        for intake in self._intakes.values():
            intake.hear(notice, age_seconds)

    def _accept(self, batch: list[Work]) -> None:
        self._clock.read(batch[-1].record)
        self._dispatcher.accept(batch)
        self._executor.start_runnable()

    async def _turn_until(self, done: Any) -> None:
        while not done():
            self._loop_heartbeat = self._clock.monotonic()
            self._watch_for_freezing(self._loop_heartbeat)
            self._reporter.poll()
            if self._reporter.fatal is not None:
                # Only a new producer can go on: a new process starts from what is committed, and nothing is lost.
                raise KafkaFailedError(
                    f"outcomes can no longer be delivered: {self._reporter.fatal}; restart the worker"
                )
            self._follow_broker_time(self._loop_heartbeat)
            self._dispatcher.tick()
            self._sharer.step(self._loop_heartbeat)
            self._hand_overs.step(self._loop_heartbeat)
            self._executor.cancel_overdue()
            self._executor.start_runnable()
            await asyncio.sleep(TICK_SECONDS)

    async def _follow_denials(self) -> None:
        """Asks what is allowed while something is denied: of an idle topic no client tells that it is over."""
        while True:
            await asyncio.sleep(DENIED_AGAIN_SECONDS)
            if not any(intake.was_denied for intake in self._intakes.values()):
                continue
            asked_at = self._clock.monotonic()
            lacking = await asyncio.to_thread(self._cluster.lacking)
            if lacking is not None:
                for intake in self._intakes.values():
                    intake.forget_denials(lacking, before=asked_at)

    def _follow_broker_time(self, now: float) -> None:
        self._clock.look(now)
        if self._clock.wants_probe(now):
            self._reporter.probe_clock()

    def _watch_for_freezing(self, now: float) -> None:
        """Ends the process, with every thread's stack on stderr, if the event loop does not turn for `FROZEN_SECONDS`.

        The watch is a thread in C: some of the Kafka client's calls (pause, resume, incremental_assign) hold Python's
        lock while they wait, and its heartbeats would keep the partitions of a frozen worker for minutes.
        """
        if now >= self._watch_again_at:
            self._watch_again_at = now + FROZEN_SECONDS / 10
            faulthandler.dump_traceback_later(FROZEN_SECONDS, exit=True)

    async def _stop(self) -> None:
        """Lets go of all partitions within a second, then lets finish what runs, delivers, and says so.

        The new owners withhold what runs here until they are told what became of it.
        """
        dispatcher = self._dispatcher
        log.info("draining", running=len(dispatcher.running), drain_seconds=self._settings.drain_seconds)
        dispatcher.stopping = True
        self._close_threads.set()
        await self._turn_for(self._settings.drain_seconds, lambda: not dispatcher.running)
        if dispatcher.running:
            log.warning("drain time is over; giving back what still runs", running=len(dispatcher.running))
            await self._executor.give_back()
        end = self._clock.monotonic() + STOP_SECONDS_MAX
        await self._turn_for(STOP_SECONDS_MAX, lambda: self._reporter.undelivered_records == 0)
        if self._reporter.undelivered_records:
            log.error("outcomes not delivered; their requests run again", records=self._reporter.undelivered_records)
        left = end - self._clock.monotonic()
        await self._turn_for(left, lambda: not any(thread.is_alive() for thread in self._threads))
        await asyncio.sleep(TICK_SECONDS)  # for a hand-over that the last of them has just made
        self._hand_overs.step(self._clock.monotonic())
        await self._turn_for(end - self._clock.monotonic(), lambda: self._hand_overs.is_all_told)
        if not self._hand_overs.is_all_told:
            log.error("hand-overs not told; their requests may run again")
        self._sharer.leave()
        await asyncio.to_thread(self._producer.flush, max(1.0, end - self._clock.monotonic()))

    async def _turn_for(self, seconds: float, done: Any) -> None:
        end = self._clock.monotonic() + seconds
        await self._turn_until(lambda: done() or self._clock.monotonic() >= end)

    def _make_signals(self) -> SignalPoller:
        return make_signals(self._settings, self._clock)

    def _read_signals(self, now: float) -> tuple[EngineReading | None, GpuReading | None]:
        return self._signals.latest_engine(now), self._signals.latest_gpu(now)

    def _make_ops(self, loop: asyncio.AbstractEventLoop) -> OpsServer:
        thread_id = threading.get_ident()
        self._watch = LoopWatch(
            ask=loop.call_soon_threadsafe,
            look=lambda: look_at(loop, thread_id, self._request_of),
            clock=time.monotonic,
            whose=self._whose_code,
        )
        live = CollectorRegistry()
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=live)
        live.register(LoopCollector(pool=self._pool.name, watch=self._watch, clock=time.monotonic))
        registry = CollectorRegistry()
        registry.register(
            Collector(
                pool=self._pool.name,
                worker_id=self._settings.worker_id,
                backend=self._settings.backend_name,
                stats=self._stats,
                gauges=self._gauges,
                certificate_ends=certificate_ends(self._connection.properties),
            )
        )
        return OpsServer(
            registry=registry,
            live=live,
            not_alive=self._not_alive,
            not_ready=self._not_ready,
            status=self._status,
            watch=self._watch,
        )

    @property
    def _whose_code(self) -> str:
        return "backend" if self._handler is None else "handler"

    def _not_alive(self) -> list[str]:
        now = self._clock.monotonic()
        beats = {f"intake {name}": intake.heartbeat for name, intake in list(self._intakes.items())}
        beats["loop"] = self._loop_heartbeat
        problems = [
            f"{name} has not turned for {now - beat:.0f} s"
            for name, beat in beats.items()
            if now - beat > HEARTBEAT_SECONDS_MAX
        ]
        if now - beats["loop"] > HEARTBEAT_SECONDS_MAX and (words := self._watch.words(time.monotonic())) is not None:
            problems.append(words)
        return problems

    def _not_ready(self) -> list[str]:
        if self._drain.is_set():
            return ["draining"]
        if self._waits_for_cluster is not None:
            return [self._waits_for_cluster]
        # On the operations port's thread: only what any thread may read.
        intakes = list(self._intakes.items())
        problems = [
            f"{name}: the group has not assigned partitions yet"
            for name, intake in intakes
            if not intake.assigned_once and self._clock.monotonic() < self._share_until
        ]
        problems += [trouble for _, intake in intakes for trouble in intake.troubles]
        if self._coordination is not None:
            problems += self._coordination.troubles
        if self._schemas is not None and self._schemas.trouble is not None:
            problems.append(f"records wait for their schema: {self._schemas.trouble}")
        if self._foreign.trouble is not None:
            problems.append(f"records by schemas of others wait: {self._foreign.trouble}")
        if not self._reporter.accepts(self._clock.monotonic()):
            problems.append("results are not delivered")
        problems += credentials_refused(self._dispatcher)
        now = time.monotonic()
        if self._watch.held_seconds(now) >= HELD_SECONDS_BEFORE_UNREADY and (words := self._watch.words(now)):
            problems.append(words)
        return problems + self._cluster.troubles

    def _gauges(self) -> Gauges:
        return gather(
            settings=self._settings,
            clock=self._clock,
            dispatcher=self._dispatcher,
            signals=self._signals,
            reporter=self._reporter,
            hand_overs=self._hand_overs,
            results_reader=self._results_reader,
            intakes=self._intakes,
        )

    @property
    def _state(self) -> str:
        if self._drain.is_set():
            return "draining"
        return "working" if self._waits_for_cluster is None else "waiting_for_kafka"

    def _status(self) -> dict[str, Any]:
        now, now_ms = self._clock.monotonic(), self._clock.wall_ms()
        dispatcher = self._dispatcher
        return {
            "worker": self._settings.worker_id,
            "pool": self._pool.name,
            "state": self._state,
            "backend": "http" if self._handler is None else "handler",
            "limited_by": shown(limitation(dispatcher, now)),
            "share_requests": dispatcher.gate.share_requests,
            "limit_requests": dispatcher.gate.limit_requests,
            "in_flight_requests": len(dispatcher.running),
            "in_flight_bytes": dispatcher.in_flight_bytes,
            "in_flight_bytes_max": self._settings.in_flight_bytes_max,
            "pacing": pacing_status(dispatcher.gate, policy=self._settings.pacing_policy, now=now),
            "sharing": self._sharer.status(now),
            "tier_times": self._sharer.tier_peers.status(now),
            "signals": self._signals.sources(now),
            "breaker": breaker_status(dispatcher),
            "overload": self._overload.status(),
            "controls_remembered": len(dispatcher.controls.entries),
            "undelivered_records": self._reporter.undelivered_records,
            "clock": self._clock.status(),
            "tiers": tiers_status(dispatcher, stats=self._stats, now=now, now_ms=now_ms),
            "intakes": {
                name: {
                    "assigned": intake.assigned,
                    "held_records": intake.held_records,
                    "looked_for": intake.looked_for,
                    "unfinished_records": intake.unfinished_records,
                    "troubles": intake.troubles,
                }
                for name, intake in self._intakes.items()
            },
            "handed_over_running": self._hand_overs.running_count,
            "running": running_status(dispatcher, now=now, now_ms=now_ms),
        }
