"""One history: a plan, run in virtual time, checked at every step."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

import msgspec

from forebay_schemas.contract.control import Control, ControlAction, control_key, encode_control
from forebay_schemas.contract.offsets_metadata import METADATA_BYTES_MAX
from forebay_schemas.contract.tiers import Tier
from forebay_schemas.contract.topics import RETRY_DELAYS_SECONDS, Pool
from forebay_worker.settings import WorkerSettings
from simulation.backend import ANSWERS_TO_ALL, Backend, Kind, Mode
from simulation.broker import Broker, FaultRates
from simulation.causes import Causes
from simulation.executions import Executions, Place
from simulation.groups import ClassicGroup, ConsumerGroup
from simulation.ledger import Ledger, Violation
from simulation.oracle import Oracle
from simulation.plan import MEMORY_BYTES_MAX, Plan, draw_plan
from simulation.process import Cluster, Patch
from simulation.replies import Replies, ResultPlaces
from simulation.scheduler import Scheduler

POOL = Pool("sim")
CALM_SECONDS_MAX = 1_200.0
"""A poison kills four workers, each of which the consumer protocol misses after 45 s."""
IDLE_SECONDS_MAX = 150.0
WORKERS_MAX = 4
TRICKLE_SECONDS = 20.0
EVENTS_SHOWN = 80


@dataclass(slots=True, kw_only=True)
class Report:
    """Result of a history. ``violation``: None when every promise was kept."""

    seed: int
    violation: str | None
    virtual_seconds: float
    events: int
    counts: dict[str, int]
    causes: dict[str, int]
    last_events: list[str]
    cpu_seconds: float


class History:
    """Runs a plan."""

    def __init__(self, plan: Plan, *, trace: bool = False) -> None:
        self.plan = plan
        self._random = Random(plan.seed + 1_000_003)
        self._control_random = Random(plan.seed + 3_000_003)
        self._answers_random = Random(plan.seed + 4_000_003)
        self._replies = Replies(plan)
        self.scheduler = Scheduler()
        self._last_place: Place | None = None
        ledger = Ledger(scheduler=self.scheduler, events_max=None if trace else EVENTS_SHOWN)
        executions = Executions(
            scheduler=self.scheduler,
            ledger=ledger,
            causes=Causes(scheduler=self.scheduler, metadata_bytes_max=plan.bounds.metadata_bytes_max),
            attempts_max=plan.max_retries + 1,
            limit=plan.limit,
        )
        self.oracle = Oracle(
            ledger=ledger,
            executions=executions,
            pool=POOL,
            tiers=plan.tiers,
            attempts_max=plan.max_retries + 1,
            places=ResultPlaces(ledger, plan),
        )
        self.broker = Broker(
            scheduler=self.scheduler,
            random=self._random,
            oracle=self.oracle,
            gap_rate=plan.gap_rate,
            rates=plan.rates,
        )
        self.broker.fetch_seconds_max = plan.fetch_seconds_max
        self.broker.fetch_random = Random(plan.seed + 6_000_003)
        self.backend = Backend(
            scheduler=self.scheduler,
            random=self._random,
            latency=plan.latency,
            large_bytes=plan.bounds.result_bytes_max,
        )
        self._make_topics()
        self.cluster = Cluster(
            scheduler=self.scheduler,
            broker=self.broker,
            backend=self.backend,
            oracle=self.oracle,
            tiers=plan.tiers,
            bounds=plan.bounds,
            settings=_settings(plan),
            uses_consumer_protocol=plan.uses_consumer_protocol,
            has_wrong_clocks=plan.has_wrong_clocks,
        )
        self.cluster.idle_tick_seconds = self._random.choice((0.1, 0.2, 0.4))
        self.cluster.poll_stretch = self._random.choice((1.0, 3.0, 6.0, 6.0))

    def _make_topics(self) -> None:
        plan, broker = self.plan, self.broker
        make_group = ConsumerGroup if plan.uses_consumer_protocol else ClassicGroup
        for tier in plan.tiers:
            broker.create_topic(POOL.requests(tier), plan.partitions)
            broker.groups[POOL.group(tier)] = make_group(broker, POOL.group(tier), [POOL.requests(tier)])
        retries = [POOL.retry(tier, delay) for tier in plan.tiers for delay in RETRY_DELAYS_SECONDS]
        for topic in (*retries, POOL.dead_letter, POOL.coordination, POOL.control):
            broker.create_topic(topic, 1)
        broker.create_topic(POOL.results, plan.results_partitions)
        broker.groups[POOL.retry_group] = make_group(broker, POOL.retry_group, retries)

    def run(self, patches: list[Patch] | None = None) -> Report:
        """Lets it happen. Never raises for a broken promise: the report says so."""
        violation = None
        began = time.process_time()
        with self.cluster.in_place(patches or []):
            try:
                self._run()
            except Violation as error:
                violation = str(error)
            except AssertionError as error:
                violation = f"{type(error).__name__}: {error}"
            finally:
                self.cluster.dispose()
        return Report(
            seed=self.plan.seed,
            violation=violation,
            virtual_seconds=self.scheduler.now,
            events=self.scheduler.events,
            counts=dict(self.oracle.ledger.counts),
            causes=dict(self.oracle.ledger.causes),
            cpu_seconds=time.process_time() - began,
            last_events=[f"{at:9.3f}  {text}" for at, text in self.oracle.ledger.events],
        )

    def _run(self) -> None:
        plan, scheduler = self.plan, self.scheduler
        for _ in range(plan.workers):
            scheduler.later(self._random.random(), None, self.cluster.start)
        self._schedule_requests()
        for at, kind in plan.faults:
            scheduler.at(at, None, partial(self._fault, kind))
        if plan.scaled_to_zero_at is not None:
            scheduler.at(plan.scaled_to_zero_at, None, self._scale_to_zero)
        scheduler.later(1.0, None, self._check_bounds)
        scheduler.run_until(plan.fault_seconds)
        self._calm()
        end = scheduler.now + CALM_SECONDS_MAX
        while (unfinished := self.oracle.unfinished()) is not None:
            if scheduler.now >= end:
                self.oracle.ledger.fail(f"{CALM_SECONDS_MAX:.0f} s after the last fault: {unfinished}")
            scheduler.run_until(scheduler.now + 2.0)
        # Repeated executions may still run, notices and answers be on their way.
        end = scheduler.now + IDLE_SECONDS_MAX
        scheduler.run_until(scheduler.now + 3.0)
        while (busy := self.cluster.busy()) is not None:
            if scheduler.now >= end:
                self.oracle.ledger.fail(f"{IDLE_SECONDS_MAX:.0f} s after everything has ended {busy}")
            scheduler.run_until(scheduler.now + 3.0)
        self.oracle.check_end()

    def _check_bounds(self) -> None:
        self.cluster.check_bounds()
        self.scheduler.later(1.0, None, self._check_bounds)

    def _calm(self) -> None:
        self.oracle.ledger.note("calm")
        self.broker.rates = FaultRates()
        self.backend.mode = Mode.UP
        self.broker.refused_topics.clear()
        self.scheduler.later(1.0, None, self._keep_one)
        self.scheduler.later(TRICKLE_SECONDS, None, self._trickle, 0)

    def _trickle(self, number: int) -> None:
        """Somebody goes on sending: bad requests that are left to themselves look like a dead backend, and wait."""
        if self.oracle.unfinished() is None:
            return
        request_id = f"well{number}"
        fields = {"request_id": request_id, "biz_type": "chat_completion", "payload": {}, "ttl_ms": 600_000}
        self.broker.append(POOL.requests(self.plan.tiers[0]), request_id.encode(), msgspec.json.encode(fields), None)
        self.scheduler.later(TRICKLE_SECONDS, None, self._trickle, number + 1)

    def _keep_one(self) -> None:
        """A deployment would start workers again."""
        if all(each.is_draining for each in self.cluster.running):
            self.cluster.start()
        self.scheduler.later(1.0, None, self._keep_one)

    # Traffic.

    def _schedule_requests(self) -> None:
        random, plan = self._random, self.plan
        bursts = [random.uniform(0, plan.fault_seconds * 0.8) for _ in range(random.randint(1, 5))]
        share = {kind: random.random() * 0.2 if random.random() < 0.3 else 0.0 for kind in Kind}
        # Where a commit has hardly any room, crashes are not counted, and a poison kills until its deadline.
        is_counted = plan.bounds.metadata_bytes_max == METADATA_BYTES_MAX
        share[Kind.POISON] = 0.05 if random.random() < 0.3 and is_counted else 0.0
        share[Kind.UNREADABLE] = 0.1 if random.random() < (0.5 if share[Kind.POISON] else 0.05) else 0.0
        kinds = list(Kind)
        weights = [1.0 if kind is Kind.PLAIN else share[kind] for kind in kinds]
        undecodable = 0.1 if random.random() < 0.2 else 0.0
        again = 0.1 if random.random() < 0.3 else 0.0
        for number in range(plan.requests):
            at = random.choice(bursts) + random.random() * random.choice((0.1, 5.0))
            tier = random.choice(plan.tiers)
            if random.random() < undecodable:
                self.scheduler.at(at, None, self._submit_undecodable, number, tier)
                continue
            request_id = f"r{number}"
            self.backend.kinds[request_id] = random.choices(kinds, weights)[0]
            fields: dict[str, Any] = {"request_id": request_id, "biz_type": "chat_completion", "payload": {}}
            ttl_ms = random.choice((None, None, random.randint(500, 5_000), 60_000, 600_000, 7_200_000))
            if ttl_ms is not None:
                fields["ttl_ms"] = ttl_ms
            if random.random() < 0.1:
                fields["max_attempts"] = random.randint(1, 5)
            if random.random() < 0.2:
                fields["priority"] = random.randint(0, 10)
            fields |= self._replies.draw()
            value = msgspec.json.encode(fields)
            self.scheduler.at(at, None, self._submit, tier, request_id, value)
            for later, to, key, copy in self._replies.copies(at, tier, fields):
                topic, value = POOL.requests(to), msgspec.json.encode(copy)
                self.scheduler.at(later, None, self.broker.append, topic, key, value, None)
            if random.random() < again:
                self.scheduler.at(at + random.random() * 20, None, self._submit, tier, request_id, value)

    def _submit(self, tier: Tier, request_id: str, value: bytes) -> None:
        record = self.broker.append(POOL.requests(tier), request_id.encode(), value, None)
        random = self._control_random
        if random.random() < self.plan.control_share:
            if random.random() < 0.2 and self._last_place is not None:
                place: Place | None = self._last_place  # a wrong handle: another request lies there
            else:
                place = record.place if random.random() < 0.8 else None
            actions = [ControlAction.CANCEL]
            if Tier.HIGH in self.plan.tiers and tier is not Tier.HIGH:
                actions += [ControlAction.EXPEDITE] * 2
            for _ in range(random.choice((1, 1, 1, 2))):
                wait_seconds = random.random() * random.choice((0.1, 1.0, 10.0, 40.0))
                self.scheduler.later(wait_seconds, None, self._control, random.choice(actions), request_id, place)
        self._last_place = record.place

    def _control(self, action: ControlAction, request_id: str, place: Place | None) -> None:
        topic, partition, offset = place or (None, None, None)
        control = Control(
            action=action, request_id=request_id, topic=topic, partition=partition, offset=offset, at=0, by="sim"
        )
        self.broker.append(POOL.control, control_key(action, request_id), encode_control(control), None)

    def _submit_undecodable(self, number: int, tier: Tier) -> None:
        value = self._random.choice(
            (b"\xff\x00", b"{}", b"", b'{"request_id":"undecodable-%d","biz_type":7,"payload":{}}' % number)
        )
        key = self._random.choice((None, b"k%d" % number))
        self.broker.append(POOL.requests(tier), key, value or None, None)

    # Faults.

    def _fault(self, kind: str) -> None:
        faults: dict[str, Callable[[], None]] = {
            "kill": self._kill,
            "stop": self._stop,
            "term": self._term,
            "restart": self._rolling_restart,
            "add": self._add,
            "cut": self._cut,
            "brokers": self._brokers_leave,
            "backend": self._backend_breaks,
            "refuse": self._refuse_topic,
            "grow": self._grow,
            "truncate": self._truncate,
        }
        faults[kind]()

    def _any(self) -> Any:
        return self._random.choice(self.cluster.running) if self.cluster.running else None

    def _kill(self) -> None:
        running = self._any()
        if running is not None:
            self.cluster.kill(running)
            if self._random.random() < 0.8:
                self.scheduler.later(self._random.uniform(0.2, 5), None, self._add)

    def _stop(self) -> None:
        running = self._any()
        if running is not None:
            self.cluster.stop(running, self._random.choice((0.5, 5.0, 15.0, 60.0)) * self._random.uniform(0.5, 1.5))

    def _term(self) -> None:
        running = self._any()
        if running is not None:
            self.cluster.terminate(running)

    def _rolling_restart(self) -> None:
        for number, running in enumerate(list(self.cluster.running)):
            at = number * self._random.uniform(0.5, 6)
            self.scheduler.later(at, None, self._replace, running)

    def _scale_to_zero(self) -> None:
        """Nobody works for some seconds; who comes then finds what was asked for meanwhile on the topics alone."""
        random = Random(self.plan.seed + 8_000_003)
        for running in list(self.cluster.running):
            self.cluster.terminate(running)
        seconds = random.uniform(1, 15)
        self.scheduler.later(seconds, None, self._cancel_some, random)
        self.scheduler.later(seconds + random.random(), None, self._add)

    def _cancel_some(self, random: Random) -> None:
        waiting = self.oracle.waiting_ids()
        for request_id in random.sample(waiting, min(len(waiting), random.choice((0, 3, 10)))):
            self._control(ControlAction.CANCEL, request_id, None)

    def _replace(self, running: Any) -> None:
        if not running.has_ended:
            self.cluster.terminate(running)
        self._add()

    def _add(self) -> None:
        if len(self.cluster.running) < WORKERS_MAX:
            self.cluster.start()

    def _cut(self) -> None:
        running = self._any()
        if running is not None:
            self.cluster.cut_off(running, self._random.choice((1.0, 8.0, 20.0, 60.0)) * self._random.uniform(0.5, 1.5))

    def _brokers_leave(self) -> None:
        seconds = self._random.choice((1.0, 6.0, 20.0))
        self.oracle.executions.causes.away("", seconds)
        self.oracle.ledger.note(f"brokers leave for {seconds:.0f} s")
        self.broker.down_until = self.scheduler.now + seconds

    def _backend_breaks(self) -> None:
        modes: list[Mode] = [mode for mode in Mode if mode is not Mode.UP and mode not in ANSWERS_TO_ALL]
        mode = self._random.choice(modes)
        # From a generator of its own, as with controls.
        if self._answers_random.random() < 0.4:
            mode = self._answers_random.choice(ANSWERS_TO_ALL)
        seconds = self._random.choice((0.5, 5.0, 20.0))
        self.oracle.ledger.note(f"the backend: {mode.value} for {seconds:.1f} s")
        self.backend.mode = mode
        self.scheduler.later(seconds, None, self._backend_returns)

    def _backend_returns(self) -> None:
        self.oracle.ledger.note("the backend is back")
        self.backend.mode = Mode.UP

    def _refuse_topic(self) -> None:
        tier = self._random.choice(self.plan.tiers)
        topic = self._random.choice((POOL.results, POOL.dead_letter, POOL.retry(tier, 1), POOL.coordination))
        self.oracle.ledger.note(f"{topic} is refused")
        self.broker.refused_topics[topic] = self.scheduler.now + self._random.uniform(1, 15)

    def _grow(self) -> None:
        tier = self._random.choice(self.plan.tiers)
        self.oracle.ledger.note(f"{tier} gets a partition")
        self.broker.grow_topic(POOL.requests(tier))
        group = self.broker.groups[POOL.group(tier)]
        self.scheduler.later(self._random.uniform(0.1, 5), None, group.topic_grew)

    def _truncate(self) -> None:
        tier = self._random.choice(self.plan.tiers)
        key = (POOL.requests(tier), self._random.randrange(self.plan.partitions))
        self.oracle.ledger.note(f"retention takes records of {key}")
        self.broker.truncate(key, self._random.random())


def _settings(plan: Plan) -> WorkerSettings:
    return WorkerSettings(
        pool=POOL.name,
        backend_url="http://127.0.0.1:1",
        pacing_policy="fixed",
        limit_max=plan.limit,
        gpu="none",
        max_retries=plan.max_retries,
        drain_seconds=plan.drain_seconds,
        buffer_bytes_max=1024 * 1024,
        in_flight_bytes_max=MEMORY_BYTES_MAX,
        ops_port=0,
    )


def run_seed(seed: int, *, patches: list[Patch] | None = None, trace: bool = False) -> Report:
    """Runs the history of a seed."""
    return History(draw_plan(seed), trace=trace).run(patches)
