"""Carries a plan out on running parts: breaks, mends, notes when. Signals processes, stops brokers, sets proxies."""

from __future__ import annotations

import heapq
import itertools
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from chaos.cluster import Cluster
from chaos.facts import Life, Trouble, Window
from chaos.load import FLAWS_OF_ENGINE
from chaos.plan import SLOTS, Fault, FaultKind, Plan
from chaos.workers import Workers, now_ms
from forebay_sandbox.engine.process import EngineProcess
from forebay_sandbox.testing.proxy import PASS, Mode

_EVERY_SLOT = frozenset(range(1, SLOTS + 1))
_LOOK_SECONDS = 0.1
_MEMORY_SECONDS = 1.0


class Conductor:
    """``windows`` is what was wrong and when; ``carried_out`` counts the faults."""

    def __init__(self, *, cluster: Cluster, engine: EngineProcess, workers: Workers) -> None:
        self.windows: list[Window] = []
        self.carried_out: dict[FaultKind, int] = {}
        self._cluster = cluster
        self._engine = engine
        self._workers = workers
        self._started = time.monotonic()
        self._later: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = itertools.count()
        # Brokers take seconds to stop and start; one thread, so never two at once.
        self._brokers = ThreadPoolExecutor(1, thread_name_prefix="brokers")
        self._broker_work: list[Future[None]] = []
        self._look_at = 0.0

    def play(self, plan: Plan) -> None:
        """Returns when the plan's time is over and all is mended."""
        self._started = time.monotonic()
        for fault in plan.faults:
            self._at(fault.at_seconds, partial(self._break, fault))
        self.wait(lambda: self._passed() >= plan.seconds, seconds=plan.seconds + 1)
        while self._later:
            self._turn()
        for future in self._broker_work:
            self.wait(future.done, seconds=300)
            future.result()
        self._brokers.shutdown()

    def wait(self, done: Callable[[], bool], *, seconds: float) -> bool:
        """Watches the workers until something is so; whether it came to be in time."""
        deadline = time.monotonic() + seconds
        while not done():
            if time.monotonic() >= deadline:
                return False
            self._turn()
        return True

    def start_worker(self, slot: int) -> Life:
        """Starts one in an empty slot."""
        return self._workers.start(slot, bootstrap_servers=self._cluster.servers_of(slot))

    def say(self, text: str) -> None:
        """Progress goes to stderr."""
        print(f"{self._passed():7.1f} s  {text}", file=sys.stderr, flush=True)  # noqa: T201 - the command's progress

    def _turn(self) -> None:
        now = self._passed()
        while self._later and self._later[0][0] <= now:
            heapq.heappop(self._later)[2]()
        if now >= self._look_at:
            self._look_at = now + _MEMORY_SECONDS
            for life in self._workers.look():
                self.say(f"{life.worker} ended by itself with exit code {life.exit_code}")
                self.start_worker(life.slot)
        time.sleep(_LOOK_SECONDS)

    def _passed(self) -> float:
        return time.monotonic() - self._started

    def _at(self, seconds: float, action: Callable[[], object]) -> None:
        heapq.heappush(self._later, (seconds, next(self._numbers), action))

    def _after(self, seconds: float, action: Callable[[], object]) -> None:
        self._at(self._passed() + seconds, action)

    def _break(self, fault: Fault) -> None:
        self.say(str(fault))
        self.carried_out[fault.kind] = self.carried_out.get(fault.kind, 0) + 1
        match fault.kind:
            case FaultKind.KILL_WORKER | FaultKind.TERMINATE_WORKER:
                self._end_worker(fault)
            case FaultKind.STOP_WORKER:
                self._stop_worker(fault)
            case FaultKind.ADD_WORKER:
                assert fault.slot is not None
                self.start_worker(fault.slot)
            case FaultKind.RESTART_BROKER | FaultKind.KILL_BROKER:
                self._broker_work.append(self._brokers.submit(self._restart_broker, fault))
            case FaultKind.LINK:
                self._break_link(fault)
            case FaultKind.BACKEND:
                self._break_backend(fault)

    def _end_worker(self, fault: Fault) -> None:
        life = self._life(fault)
        if fault.kind is FaultKind.KILL_WORKER:
            self._workers.kill(life)
        else:
            self._workers.terminate(life)
        if fault.seconds is not None:
            self._after(fault.seconds, partial(self.start_worker, life.slot))

    def _stop_worker(self, fault: Fault) -> None:
        assert fault.seconds is not None
        life = self._life(fault)
        window = self._open(Trouble.STOPPED, frozenset({life.slot}))
        self._workers.stop(life)

        def mend() -> None:
            self._workers.go_on(life)
            window.end_ms = now_ms()

        self._after(fault.seconds, mend)

    def _restart_broker(self, fault: Fault) -> None:
        """In the brokers' thread."""
        assert fault.broker is not None
        assert fault.seconds is not None
        broker = self._cluster.kafka.brokers[fault.broker - 1]
        window = self._open(Trouble.BROKER, _EVERY_SLOT)
        if fault.kind is FaultKind.KILL_BROKER:
            broker.kill()
        else:
            broker.stop()
        time.sleep(fault.seconds)
        broker.start()
        window.end_ms = now_ms()
        self.say(f"broker {fault.broker} is back")
        # Until then another one must not go: of three replicas two would be missing.
        self._cluster.wait_in_sync()

    def _break_link(self, fault: Fault) -> None:
        assert fault.seconds is not None
        assert fault.link is not None
        slots = _EVERY_SLOT if fault.slot is None else frozenset({fault.slot})
        window = self._open(Trouble.LINK, slots)
        window.cuts_all = fault.broker is None and fault.link.mode is not Mode.PASS and slots == _EVERY_SLOT
        self._cluster.set_link(fault.link, slot=fault.slot, broker=fault.broker)

        def mend() -> None:
            self._cluster.set_link(PASS, slot=fault.slot, broker=fault.broker)
            window.end_ms = now_ms()

        self._after(fault.seconds, mend)

    def _break_backend(self, fault: Fault) -> None:
        assert fault.seconds is not None
        assert fault.backend is not None
        window = self._open(Trouble.BACKEND, _EVERY_SLOT)
        window.serves_nobody = fault.backend["kind"] != "slow" and "probability" not in fault.backend
        self._engine.faults(*FLAWS_OF_ENGINE, fault.backend)

        def mend() -> None:
            self._engine.faults(*FLAWS_OF_ENGINE)
            window.end_ms = now_ms()

        self._after(fault.seconds, mend)

    def _open(self, trouble: Trouble, slots: frozenset[int]) -> Window:
        window = Window(trouble=trouble, slots=slots, start_ms=now_ms())
        self.windows.append(window)
        return window

    def _life(self, fault: Fault) -> Life:
        assert fault.slot is not None
        life = self._workers.of_slot(fault.slot)
        # One that crashed is being replaced: then there is nothing to break.
        return life if life is not None else self.start_worker(fault.slot)
