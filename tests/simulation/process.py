"""Worker processes: the real `Worker`, wired into a `World` of simulated clients, threads and time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from forebay_schemas import clock as schemas_clock
from forebay_schemas.contract.tiers import Tier
from forebay_worker.bounds import Bounds
from forebay_worker.cluster.topic_watch import LOOK_SECONDS
from forebay_worker.dispatch.failure_policy import SUSPECTS_MAX
from forebay_worker.dispatch.suspects import Phase
from forebay_worker.intake.intake import Intake
from forebay_worker.lifecycle.worker import Worker
from forebay_worker.request import memory
from forebay_worker.settings import WorkerSettings
from forebay_worker.telemetry.tracing import NO_TRACING
from forebay_worker.wiring.parts import Parts, build
from forebay_worker.wiring.world import World
from simulated.world import NoOps
from simulation.backend import Backend, BackendClient
from simulation.broker import Broker
from simulation.consumer import GroupConsumer
from simulation.executions import Execution, Place
from simulation.follower import Follower
from simulation.oracle import Oracle
from simulation.producer import SimulatedProducer
from simulation.scheduler import Clock, Process, Scheduler, threading_in
from simulation.surroundings import DeadlyReader, NoSignals, SimulatedCluster

Patch = tuple[Any, str, Any]

WITHHELD_RELEASED_MAX = 12
LOOKAHEAD_RECORDS_CHECKED_MAX = 1_000
"""A lookahead that may grow beyond it has no bound that a short history could reach."""

CLOCK_ERRORS_MS = (3_600_000, -3_600_000, 1_500)


@dataclass(slots=True, eq=False)
class Running:
    """A worker process of the history."""

    process: Process
    settings: WorkerSettings
    worker: Worker | None = None
    has_ended: bool = False

    @property
    def parts(self) -> Parts | None:
        """The worker's parts; None before it begins."""
        return None if self.worker is None else self.worker.parts

    @property
    def is_draining(self) -> bool:
        return self.parts is not None and self.parts.state.drain.is_set()

    @property
    def intakes(self) -> list[Intake]:
        """Those that it has made."""
        return [] if self.worker is None else list(self.worker.parts.readers.intakes.values())


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
        """While it lasts the bugs are in the worker."""
        before = [(owner, name, getattr(owner, name)) for owner, name, _ in patches]
        for owner, name, value in patches:
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
        running = Running(process, self._settings.model_copy(update={"worker_id": name}))
        self.running.append(running)
        self._oracle.ledger.note(f"{name} starts")
        self._scheduler.soon(process, self._run, running)
        return running

    def _run(self, running: Running) -> None:
        task = running.process.loop.create_task(self._live(running))
        task.add_done_callback(lambda _: self._exited(running, task.exception()))

    async def _live(self, running: Running) -> None:
        running.worker = Worker(build(running.settings, self._world(running)))
        await running.worker.run()

    def _exited(self, running: Running, error: BaseException | None) -> None:
        if error is not None:
            raise error
        if not running.has_ended:
            self._oracle.ledger.note(f"{running.process.name} has drained")
            self._oracle.executions.causes.drained(running.process.name)
            self._end(running)

    def _gave_up_looking(self, name: str) -> bool:
        return any(
            each.process.name == name and each.parts is not None and each.parts.results.given_up_count > 0
            for each in self.running
        )

    def kill(self, running: Running) -> None:
        """kill -9."""
        if not running.has_ended:
            self._oracle.ledger.note(f"{running.process.name} is killed")
            self._oracle.executions.died(running.process.name)
            self._end(running)

    def _tried_alone(self, name: str) -> Place | None:
        for running in self.running:
            if running.process.name == name and running.parts is not None:
                trial = running.parts.dispatcher.suspects._trial
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
        self._scheduler.soon(running.process, self._stop, running)

    def _stop(self, running: Running) -> None:
        assert running.worker is not None, "a process that is told to stop has begun"
        running.worker.stop()

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
            consumer for intake in running.intakes if isinstance(consumer := intake._ownership.consumer, GroupConsumer)
        ]

    def dispose(self) -> None:
        """Frees what the processes hold."""
        for each in self.running + self.ended:
            each.process.dispose()

    def _world(self, running: Running) -> World:
        settings, process = running.settings, running.process
        connection, threading = settings.connection(), threading_in(self._scheduler)
        return World(
            clock=self._make_clock(),
            connection=connection,
            cluster=SimulatedCluster(
                connection, pool=settings.pool_topics(), worker_id=settings.worker_id, broker=self._broker
            ),
            make_producer=lambda _: SimulatedProducer(broker=self._broker, process=process),
            make_consumer=partial(self._make_consumer, process),
            backend_kind="http",
            make_backend=partial(self._make_backend, running),
            signals=NoSignals(),
            make_tracing=lambda _: NO_TRACING,
            make_ops=NoOps,
            make_envelope_reader=partial(DeadlyReader, die=partial(self._dies_decoding, running)),
            make_event=threading.Event,
            start_thread=threading.start,
            tiers=tuple(self._tiers),
            bounds=self._bounds,
            topics_turn_seconds=LOOK_SECONDS,
        )

    def _make_clock(self) -> Clock:
        wrong_ms = CLOCK_ERRORS_MS[self._started % len(CLOCK_ERRORS_MS)]
        return Clock(self._scheduler, ahead_ms=wrong_ms if self._has_wrong_clocks else 0)

    def _make_consumer(self, process: Process, config: dict[str, Any]) -> Any:
        if "on_commit" not in config:
            return Follower(broker=self._broker, process=process)
        group = self._broker.groups[config["group.id"]]
        return GroupConsumer(broker=self._broker, process=process, group=group, on_commit=config["on_commit"])

    def _make_backend(self, running: Running, clock: schemas_clock.Clock) -> BackendClient:
        return BackendClient(
            backend=self._backend,
            process=running.process,
            clock=clock,
            oracle=self._oracle,
            die=partial(self._killed_by, running),
        )

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
                for intake in running.intakes:
                    for key, commit in intake.commits._confirmed.items():
                        self._oracle.commits.check_confirmed(process.name, key, *commit)

    def check_bounds(self) -> None:
        """Checks the upper bounds on every worker's memory of things."""
        for running in self.running:
            if running.parts is not None:
                self._check_worker(running.process.name, running.parts)

    def _check_worker(self, name: str, parts: Parts) -> None:
        bounds, fail = self._bounds, self._oracle.ledger.fail
        dispatcher, reporter = parts.dispatcher, parts.reporter
        if len(dispatcher.running) > dispatcher.gate.limit_requests:
            fail(f"{name} has {len(dispatcher.running)} requests in flight")
        sizes = [
            memory.in_flight_bytes(work, bounds) for work in (*dispatcher.running.values(), *dispatcher.named_starts)
        ]
        if sum(sizes) != dispatcher.slots.memory_bytes:
            fail(f"{name} counts {dispatcher.slots.memory_bytes} bytes in flight, and there are {sum(sizes)}")
        if sizes and sum(sizes) - max(sizes) >= (dispatcher.gate.memory_bytes_max or 0):
            fail(f"{name} has {sum(sizes)} bytes in flight")
        for tier in self._tiers if bounds.lookahead_records_max < LOOKAHEAD_RECORDS_CHECKED_MAX else ():
            # Retries may join a full lane, failed probes and suspects go back to it, and what was withheld is let go at
            # once.
            back = dispatcher.gate.limit_requests + SUSPECTS_MAX
            most = 2 * bounds.lookahead_records_max + back + WITHHELD_RELEASED_MAX
            if (records := len(dispatcher.lanes[tier])) > most:
                fail(f"the lane {tier} of {name} holds {records} requests, at most {most} may be there")
        if len(reporter._known) > bounds.reported_requests_max:
            fail(f"{name} remembers {len(reporter._known)} outcomes")
        if reporter.delivery.undelivered_records < 0 or reporter.delivery.undelivered_bytes < 0:
            fail(f"{name} counts {reporter.delivery.undelivered_records} undelivered records")
        for intake in parts.readers.intakes.values():
            for assignment_, records in intake._held._records.items():
                if records > bounds.parked_records_max + 250 or records < 0:
                    fail(f"{name} holds {records} records of {assignment_.topic}/{assignment_.partition}")

    def busy(self) -> str | None:
        """Something that a worker still holds, in words; None when nobody holds anything, as it must be when everything
        has ended."""
        for running in self.running:
            name, parts = running.process.name, running.parts
            if parts is None:
                continue
            dispatcher = parts.dispatcher
            if dispatcher.running or len(dispatcher.lanes):
                return f"{name} has {len(dispatcher.running)} running, {len(dispatcher.lanes)} waiting"
            if not dispatcher.suspects.is_idle or dispatcher.named_starts:
                return f"{name} keeps starts that wait"
            if parts.hand_overs.running_count:
                return f"{name} thinks that it still runs {parts.hand_overs.running_count} requests of others"
            if parts.reporter.delivery.undelivered_records:
                return f"{name} has {parts.reporter.delivery.undelivered_records} undelivered records"
            if len(parts.reporter.copies):
                return f"{name} keeps {len(parts.reporter.copies)} copies"
            if dispatcher.breaker._suspect is not None or dispatcher.failures.suspect_count:
                return f"{name} keeps a suspect"
            for intake in parts.readers.intakes.values():
                if intake.held_records or intake.unfinished_records:
                    return f"{name}/{intake.name} holds {intake.held_records}, unfinished {intake.unfinished_records}"
        return None
