"""Worker processes: the real `Worker` with all its stages, over simulated clients, threads and time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from zlib import crc32

from confluent_kafka import Producer

from forebay_schemas.contract.envelope import Request
from forebay_schemas.contract.offsets_metadata import encode_metadata
from forebay_schemas.contract.tiers import Tier
from forebay_schemas.formats.envelope_reader import EnvelopeReader, SchemaSource
from forebay_worker import worker
from forebay_worker.cluster import startup as cluster
from forebay_worker.cluster import topic_watch
from forebay_worker.coordination import follower as coordination
from forebay_worker.dispatch import lookahead
from forebay_worker.dispatch.failure_policy import SUSPECTS_MAX
from forebay_worker.dispatch.suspects import Phase
from forebay_worker.intake import fetcher, notices, results_reader
from forebay_worker.intake import parked as held
from forebay_worker.intake import partitions as ownership
from forebay_worker.outcome import reported as known
from forebay_worker.outcome import reporter as outcome
from forebay_worker.pacing import gate
from forebay_worker.partition import assignment, claims, credit
from forebay_worker.settings import WorkerSettings
from forebay_worker.worker import Worker
from simulation.backend import Backend, BackendClient
from simulation.broker import Broker
from simulation.consumer import GroupConsumer
from simulation.executions import Execution, Place
from simulation.follower import Follower
from simulation.oracle import Oracle
from simulation.producer import SimulatedProducer
from simulation.scheduler import Clock, Process, Scheduler, threading_in

Patch = tuple[Any, str, Any]

WITHHELD_RELEASED_MAX = 12
CLOCK_ERRORS_MS = (3_600_000, -3_600_000, 1_500)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The worker's own constants, made small enough for a short history to reach them."""

    lookahead_records: int
    lookahead_follows_rate: bool
    retry_room_records: int
    held_records: int
    known_requests: int
    undelivered_records: int
    notices: int
    metadata_bytes: int
    result_bytes: int
    request_bytes: int
    """What each counts of the memory for those in flight."""

    def patches(self) -> list[Patch]:
        return [
            (lookahead, "LOOKAHEAD_RECORDS_MIN", self.lookahead_records),
            *([] if self.lookahead_follows_rate else [(lookahead.Lookahead, "ended", lambda _: None)]),
            (lookahead, "RETRY_ROOM_RECORDS", self.retry_room_records),
            (held, "HELD_RECORDS_MAX", self.held_records),
            (known, "KNOWN_REQUESTS_MAX", self.known_requests),
            (outcome, "UNDELIVERED_RECORDS_MAX", self.undelivered_records),
            (outcome, "LATER_BYTES_MAX", self.result_bytes),
            (gate, "REQUEST_BYTES", self.request_bytes),
            (notices, "KEPT_NOTICES_MAX", self.notices),
            (ownership, "METADATA_BYTES_NEARLY_FULL", self.metadata_bytes * 3 // 4),
            (assignment, "encode_metadata", partial(encode_metadata, bytes_max=self.metadata_bytes)),
        ]


class _NoOps:
    async def start(self, *, host: str, port: int) -> int:
        del host
        return port

    async def stop(self) -> None:
        """Nothing listens."""


class _NoSignals:
    async def start(self) -> None:
        """There is nothing to look at."""

    async def stop(self) -> None:
        """Nothing was started."""

    def latest_engine(self, now: float) -> None:
        del now

    def latest_gpu(self, now: float) -> None:
        del now


class SimulatedWorker(Worker):
    """The worker without its HTTP server, and without a look at engines and GPUs."""

    def _make_signals(self) -> Any:
        return _NoSignals()

    def _make_ops(self, _loop: Any) -> Any:
        return _NoOps()

    @property
    def gave_up_looking(self) -> bool:
        return self._results_reader.given_up_count > 0


class _DeadlyReader(EnvelopeReader):
    """Some records kill the process that decodes them."""

    __slots__ = ("_die",)

    def __init__(self, source: SchemaSource, *, die: Callable[[str], None], **more: Any) -> None:
        super().__init__(source, **more)
        self._die = die

    def read(self, value: bytes | None, *, content_type: str | None = None) -> Request:
        request = super().read(value, content_type=content_type)
        self._die(request.request_id)
        return request


@dataclass(slots=True, eq=False)
class Running:
    """A worker process of the history."""

    process: Process
    worker: SimulatedWorker
    has_ended: bool = False


class Cluster:
    """Starts, stops and kills worker processes."""

    def __init__(
        self,
        *,
        scheduler: Scheduler,
        broker: Broker,
        backend: Backend,
        oracle: Oracle,
        tiers: list[Tier],
        bounds: Bounds,
        settings: WorkerSettings,
        uses_consumer_protocol: bool,
        has_wrong_clocks: bool,
    ) -> None:
        self._scheduler = scheduler
        self._broker = broker
        self._backend = backend
        self._oracle = oracle
        self._tiers = tiers
        self._bounds = bounds
        self._settings = settings
        self._uses_consumer_protocol = uses_consumer_protocol
        self._has_wrong_clocks = has_wrong_clocks
        self._started = 0
        self.running: list[Running] = []
        self.ended: list[Running] = []
        self.idle_tick_seconds = 0.25
        self.poll_stretch = 3.0
        broker.commit_answered = self._check_confirmed
        oracle.executions.gave_up_looking = self._gave_up_looking
        oracle.executions.tried_alone = self._tried_alone

    @contextmanager
    def in_place(self, patches: list[Patch]) -> Iterator[None]:
        """While it lasts, the worker's modules reach the simulation where they would reach the machine."""
        threading = threading_in(self._scheduler)
        every: list[Patch] = [
            (claims, "threading", threading),
            (coordination, "threading", threading),
            (credit, "threading", threading),
            (fetcher, "threading", threading),
            (results_reader, "threading", threading),
            (topic_watch, "threading", threading),
            (topic_watch, "TURN_SECONDS", topic_watch.LOOK_SECONDS),
            (worker, "threading", threading),
            (worker, "SystemClock", self._make_clock),
            (worker, "create_client", self._create_client),
            (cluster.Cluster, "require_usable", lambda _: self._partitions()),
            (cluster.Cluster, "lacking", lambda _: []),
            (cluster.Cluster, "topic_ids", lambda _, topics: {topic: crc32(topic.encode()) for topic in topics}),
            (worker, "HttpBackend", self._make_backend),
            (worker, "EnvelopeReader", self._make_reader),
            (worker, "TIERS", tuple(self._tiers)),
            *self._bounds.patches(),
            *patches,
        ]
        before = [(owner, name, getattr(owner, name)) for owner, name, _ in every]
        for owner, name, value in every:
            setattr(owner, name, value)
        try:
            yield
        finally:
            for owner, name, value in reversed(before):
                setattr(owner, name, value)

    def start(self) -> Running:
        """Another worker process."""
        self._started += 1
        name = f"w{self._started}"
        process = Process(self._scheduler, name)
        process.idle_tick_seconds, process.poll_stretch = self.idle_tick_seconds, self.poll_stretch
        self._scheduler.current_process = process
        running = Running(process, SimulatedWorker(self._settings.model_copy(update={"worker_id": name})))
        self.running.append(running)
        self._oracle.ledger.note(f"{name} starts")
        self._scheduler.soon(process, self._run, running)
        return running

    def _run(self, running: Running) -> None:
        task = running.process.loop.create_task(running.worker.run())
        task.add_done_callback(lambda _: self._exited(running, task.exception()))

    def _exited(self, running: Running, error: BaseException | None) -> None:
        if error is not None:
            raise error
        if not running.has_ended:
            self._oracle.ledger.note(f"{running.process.name} has drained")
            self._oracle.executions.causes.drained(running.process.name)
            self._end(running)

    def _gave_up_looking(self, name: str) -> bool:
        return any(each.process.name == name and each.worker.gave_up_looking for each in self.running)

    def kill(self, running: Running) -> None:
        """kill -9."""
        if not running.has_ended:
            self._oracle.ledger.note(f"{running.process.name} is killed")
            self._oracle.executions.died(running.process.name)
            self._end(running)

    def _tried_alone(self, name: str) -> Place | None:
        for running in self.running:
            if running.process.name == name and hasattr(running.worker, "_dispatcher"):
                trial = running.worker._dispatcher.suspects._trial
                if trial is not None and trial.phase is not Phase.GATHERING:
                    return trial.work.assignment.topic, trial.work.assignment.partition, trial.work.offset
        return None

    def _killed_by(self, running: Running, execution: Execution) -> None:
        topic, partition, _ = execution.place
        for group in self._broker.groups.values():
            if topic in group.topics:
                offset, metadata = group.committed.get((topic, partition), (0, None))
                self._oracle.executions.killed_by(execution, metadata, offset)
        self.kill(running)

    def _end(self, running: Running) -> None:
        running.has_ended = True
        running.process.die()
        self._broker.watch(running.process)
        self.running.remove(running)
        self.ended.append(running)

    def terminate(self, running: Running) -> None:
        """SIGTERM."""
        self._oracle.ledger.note(f"{running.process.name} is told to stop")
        self._scheduler.soon(running.process, running.worker._drain.set)

    def stop(self, running: Running, seconds: float) -> None:
        """SIGSTOP, and SIGCONT after a time."""
        process = running.process
        if process.stopped:
            return
        self._oracle.ledger.note(f"{process.name} is stopped for {seconds:.1f} s")
        self._oracle.executions.cannot_be_reached(process.name, seconds)
        process.stop()
        self._broker.watch(process)
        self._scheduler.later(seconds, None, self._continue, running)

    def _continue(self, running: Running) -> None:
        if not running.has_ended:
            self._oracle.ledger.note(f"{running.process.name} goes on")
            running.process.resume()
            self._heard_again(running)

    def cut_off(self, running: Running, seconds: float) -> None:
        """Nothing reaches the brokers, nor comes from them, for a time."""
        process, now = running.process, self._scheduler.now
        self._oracle.ledger.note(f"{process.name} is cut off for {seconds:.1f} s")
        self._oracle.executions.cannot_be_reached(process.name, seconds)
        process.cut_until = max(process.cut_until, now + seconds)
        if process.unreachable_since is None:
            process.unreachable_since = now
            self._broker.watch(process)
        self._scheduler.at(process.cut_until, None, self._connected, running)
        if not self._uses_consumer_protocol:
            self._scheduler.later(10.0, process, self._session_timed_out, running)

    def _session_timed_out(self, running: Running) -> None:
        if running.process.cut_until > self._scheduler.now:
            for consumer in self._consumers(running):
                consumer.session_timed_out()

    def _connected(self, running: Running) -> None:
        process = running.process
        if process.cut_until <= self._scheduler.now and process.alive and not process.stopped:
            process.unreachable_since = None
            self._heard_again(running)

    def _heard_again(self, running: Running) -> None:
        for consumer in self._consumers(running):
            consumer.heartbeat_due()

    def _consumers(self, running: Running) -> list[GroupConsumer]:
        return [
            consumer
            for intake in running.worker._intakes.values()
            if isinstance(consumer := intake._ownership.consumer, GroupConsumer)
        ]

    def dispose(self) -> None:
        """Frees what the processes hold."""
        for each in self.running + self.ended:
            each.process.dispose()

    # What the worker's modules find in place of the machine.

    def _make_clock(self) -> Clock:
        wrong_ms = CLOCK_ERRORS_MS[self._started % len(CLOCK_ERRORS_MS)]
        return Clock(self._scheduler, ahead_ms=wrong_ms if self._has_wrong_clocks else 0)

    def _create_client(self, make: Any, config: dict[str, Any]) -> Any:
        process = self._scheduler.current_process
        assert process is not None
        if make is Producer:
            return SimulatedProducer(broker=self._broker, process=process)
        if "on_commit" not in config:
            return Follower(broker=self._broker, process=process)
        group = self._broker.groups[config["group.id"]]
        return GroupConsumer(broker=self._broker, process=process, group=group, on_commit=config["on_commit"])

    def _partitions(self) -> dict[str, int]:
        return {topic: len(logs) for topic, logs in self._broker.topics.items()}

    def _make_backend(self, _settings: WorkerSettings) -> BackendClient:
        process = self._scheduler.current_process
        assert process is not None
        running = next(each for each in self.running if each.process is process)
        return BackendClient(
            backend=self._backend,
            process=process,
            clock=running.worker._clock,
            oracle=self._oracle,
            die=partial(self._killed_by, running),
        )

    def _make_reader(self, source: SchemaSource, **more: Any) -> EnvelopeReader:
        process = self._scheduler.current_process
        assert process is not None
        running = next(each for each in self.running if each.process is process)
        return _DeadlyReader(source, die=partial(self._dies_decoding, running), **more)

    def _dies_decoding(self, running: Running, request_id: str) -> None:
        """A record that kills whoever decodes it has been read."""
        if not self._backend.kills_reader(request_id):
            return
        name = running.process.name
        self._oracle.ledger.note(f"{name} dies while it decodes {request_id}")
        self._oracle.ledger.counts["died_decoding"] += 1
        if self._tried_alone(name) is not None:
            self._oracle.ledger.fail(f"{name} decodes {request_id} beside a suspect")
        self.kill(running)
        self._scheduler.sleep(1e9)  # this thread is gone

    def _check_confirmed(self, process: Process) -> None:
        for running in self.running:
            if running.process is process:
                for intake in running.worker._intakes.values():
                    for key, commit in intake.commits._confirmed.items():
                        self._oracle.check_confirmed(process.name, key, *commit)

    def check_bounds(self) -> None:
        """What every worker may hold at most."""
        for running in self.running:
            self._check_worker(running.process.name, running.worker)

    def _check_worker(self, name: str, worker: SimulatedWorker) -> None:
        if not hasattr(worker, "_hand_overs"):
            return
        bounds, fail = self._bounds, self._oracle.ledger.fail
        dispatcher, reporter = worker._dispatcher, worker._reporter
        if len(dispatcher.running) > dispatcher.gate.limit_requests:
            fail(f"{name} has {len(dispatcher.running)} requests in flight")
        sizes = [gate.in_flight_bytes(work) for work in (*dispatcher.running.values(), *dispatcher.named_starts)]
        if sum(sizes) != dispatcher.in_flight_bytes:
            fail(f"{name} counts {dispatcher.in_flight_bytes} bytes in flight, and there are {sum(sizes)}")
        if sizes and sum(sizes) - max(sizes) >= (dispatcher.gate.memory_bytes_max or 0):
            fail(f"{name} has {sum(sizes)} bytes in flight")
        for tier in self._tiers if not bounds.lookahead_follows_rate else ():
            # Retries may join a full lane, failed probes and suspects go back to it, and what was withheld is let go at
            # once.
            back = dispatcher.gate.limit_requests + SUSPECTS_MAX
            most = 2 * bounds.lookahead_records + back + WITHHELD_RELEASED_MAX
            if (records := len(dispatcher.lanes[tier])) > most:
                fail(f"the lane {tier} of {name} holds {records} requests, at most {most} may be there")
        if len(reporter._known) > bounds.known_requests:
            fail(f"{name} remembers {len(reporter._known)} outcomes")
        if reporter.undelivered_records < 0 or reporter.undelivered_bytes < 0:
            fail(f"{name} counts {reporter.undelivered_records} undelivered records")
        for intake in worker._intakes.values():
            for assignment_, records in intake._held._records.items():
                if records > bounds.held_records + 250 or records < 0:
                    fail(f"{name} holds {records} records of {assignment_.topic}/{assignment_.partition}")

    def busy(self) -> str | None:
        """What a worker still holds; None when nobody holds anything, as it must be when everything has ended."""
        for running in self.running:
            name, worker = running.process.name, running.worker
            if not hasattr(worker, "_executor"):
                continue
            if worker._dispatcher.running or len(worker._dispatcher.lanes):
                return f"{name} has {len(worker._dispatcher.running)} running, {len(worker._dispatcher.lanes)} waiting"
            if not worker._dispatcher.suspects.is_idle or worker._dispatcher.named_starts:
                return f"{name} keeps starts that wait"
            if worker._hand_overs.running_count:
                return f"{name} thinks that it still runs {worker._hand_overs.running_count} requests of others"
            if worker._reporter.undelivered_records:
                return f"{name} has {worker._reporter.undelivered_records} undelivered records"
            if worker._dispatcher.breaker._suspect is not None or worker._dispatcher.failures.suspect_count:
                return f"{name} keeps a suspect"
            for intake in worker._intakes.values():
                if intake.held_records or intake.unfinished_records:
                    return f"{name}/{intake.name} holds {intake.held_records}, unfinished {intake.unfinished_records}"
        return None
