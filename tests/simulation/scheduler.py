"""Virtual time for whole processes in one thread: event loops, threads (greenlets), SIGSTOP and kill -9. No I/O, no
real clock."""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from itertools import count
from types import SimpleNamespace
from typing import Any, cast

from greenlet import GreenletExit, getcurrent, greenlet  # type: ignore[import-untyped] # has no types of its own

WALL_START_MS = 1_760_000_000_000
MONOTONIC_START = 1_000.0
TICK_SECONDS = 0.02


class Handle:
    """A call that is due at some time; the same to asyncio as its own handles."""

    __slots__ = ("args", "callback", "cancelled", "context", "process")

    def __init__(
        self, process: Process | None, callback: Callable[..., object], args: tuple[Any, ...], context: Context | None
    ) -> None:
        self.process = process
        self.callback = callback
        self.args = args
        self.context = context
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Scheduler:
    """Runs what is due in order of virtual time; ``now`` is in seconds from 0."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events = 0
        self.current_thread: Thread | None = None
        self.current_process: Process | None = None
        self.broken: BaseException | None = None
        self._heap: list[tuple[float, int, Handle]] = []
        self._ready: deque[Handle] = deque()
        self._sequence = count()
        self._hub = getcurrent()

    def soon(self, process: Process | None, callback: Callable[..., object], *args: Any) -> Handle:
        """Runs a call next; not while its process is stopped, never after it died."""
        handle = Handle(process, callback, args, None)
        self._ready.append(handle)
        return handle

    def later(self, seconds: float, process: Process | None, callback: Callable[..., object], *args: Any) -> Handle:
        """Runs a call after a time."""
        handle = Handle(process, callback, args, None)
        self.push(self.now + seconds, handle)
        return handle

    def at(self, when: float, process: Process | None, callback: Callable[..., object], *args: Any) -> Handle:
        """Runs a call at a time, or now if that is past."""
        handle = Handle(process, callback, args, None)
        self.push(max(self.now, when), handle)
        return handle

    def push(self, when: float, handle: Handle) -> None:
        heapq.heappush(self._heap, (when, next(self._sequence), handle))

    def ready(self, handle: Handle) -> None:
        self._ready.append(handle)

    def run_until(self, when: float) -> None:
        """Lets time go on to ``when``. Whatever any call raises comes out of here."""
        heap, ready, set_loop = self._heap, self._ready, cast(Callable[[object], None], asyncio._set_running_loop)
        try:
            while True:
                if ready:
                    handle = ready.popleft()
                elif heap and heap[0][0] <= when:
                    self.now, _, handle = heapq.heappop(heap)
                else:
                    self.now = when
                    return
                if handle.cancelled:
                    continue
                process = self.current_process = handle.process
                if process is not None:
                    if not process.alive:
                        continue
                    if process.stopped:
                        process.backlog.append(handle)
                        continue
                    set_loop(process.loop)
                self.events += 1
                if handle.context is None:
                    handle.callback(*handle.args)
                else:
                    handle.context.run(handle.callback, *handle.args)
                if self.broken is not None:
                    # Raised in a worker's code, which may have caught it.
                    raise self.broken
        finally:
            self.current_process = None
            set_loop(None)

    def require(self, condition: bool, what: str) -> None:
        """An assertion of the simulation itself: it ends the history even if a worker's code catches it."""
        if not condition:
            self.broken = self.broken or AssertionError(what)
            raise self.broken

    def switch_to_hub(self) -> None:
        self._hub.switch()

    def sleep(self, seconds: float) -> None:
        """Blocks the calling thread of a process."""
        thread = self.current_thread
        assert thread is not None, "only a thread may block"
        thread.wait(seconds)


class Process:
    """One operating-system process: all that it runs stops and dies together."""

    def __init__(self, scheduler: Scheduler, name: str) -> None:
        self.scheduler = scheduler
        self.name = name
        self.alive = True
        self.stopped = False
        self.cut_until = 0.0
        self.backlog: list[Handle] = []
        self.loop = Loop(self)
        self.threads: list[Thread] = []
        self.unreachable_since: float | None = None
        self.idle_tick_seconds = 0.25
        self.poll_stretch = 3.0

    def stop(self) -> None:
        """SIGSTOP."""
        self.stopped = True
        if self.unreachable_since is None:
            self.unreachable_since = self.scheduler.now

    def resume(self) -> None:
        """SIGCONT: what came due meanwhile runs now, in order."""
        self.stopped = False
        if self.cut_until <= self.scheduler.now:
            self.unreachable_since = None
        backlog, self.backlog = self.backlog, []
        for handle in backlog:
            self.scheduler.ready(handle)

    def die(self) -> None:
        """kill -9, or the end of the process."""
        self.alive = False
        self.backlog.clear()
        if self.unreachable_since is None:
            self.unreachable_since = self.scheduler.now

    def dispose(self) -> None:
        """Frees what a dead process left behind; the history is over."""
        self.alive = False
        for thread in self.threads:
            thread.dispose()
        self.loop.dispose()


class Thread:
    """A thread of a process: a greenlet that blocks in virtual time."""

    def __init__(self, process: Process, run: Callable[[], None]) -> None:
        self._process = process
        self._run = run
        self._greenlet = greenlet(self._main)
        self._resume: Handle | None = None
        self._woken = False
        process.threads.append(self)
        process.scheduler.soon(process, self._switch)

    def is_alive(self) -> bool:
        return not self._greenlet.dead

    def wait(self, seconds: float) -> bool:
        """Blocks for a time, or until `wake`; True when woken."""
        self._woken = False
        self._resume = self._process.scheduler.later(seconds, self._process, self._switch)
        self._process.scheduler.switch_to_hub()
        return self._woken

    def wake(self, seconds: float = 0.0) -> None:
        """Ends a `wait` before its time, a little later."""
        handle = self._resume
        if handle is None or self._woken:
            return
        handle.cancel()
        self._woken = True
        self._resume = self._process.scheduler.later(seconds, self._process, self._switch)

    def dispose(self) -> None:
        if self._greenlet and not self._greenlet.dead:
            self._greenlet.throw(GreenletExit)

    def _main(self) -> None:
        self._run()

    def _switch(self) -> None:
        scheduler = self._process.scheduler
        self._resume = None
        scheduler.current_thread = self
        try:
            self._greenlet.switch()
        finally:
            scheduler.current_thread = None


class Loop:
    """A process's event loop. The worker's tick of 20 ms is stretched while nothing stirs, as on a machine that is busy
    with other things: most of a history would be spent on ticks that find nothing."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._scheduler = process.scheduler
        self._tick: Handle | None = None
        self._tick_at = 0.0
        self._tasks: list[asyncio.Task[Any]] = []

    def time(self) -> float:
        return self._scheduler.now

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=cast(Any, self))

    def create_task(self, coro: Any, *, name: str | None = None, context: Context | None = None) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=cast(Any, self), name=name, context=context)
        self._tasks.append(task)
        if len(self._tasks) > 500:
            self._tasks = [task for task in self._tasks if not task.done()]
        return task

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> Any:
        handle = Handle(self._process, callback, args, context)
        self._scheduler.ready(handle)
        return handle

    def call_later(self, delay: float, callback: Any, *args: Any, context: Context | None = None) -> Any:
        handle = Handle(self._process, callback, args, context)
        when = self._scheduler.now + delay
        if delay <= TICK_SECONDS:
            when = self._scheduler.now + max(delay, self._process.idle_tick_seconds)
            self._tick, self._tick_at = handle, when
        self._scheduler.push(when, handle)
        return handle

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Context | None = None) -> Any:
        handle = Handle(self._process, callback, args, context)
        self._scheduler.push(self._scheduler.now + 0.0005, handle)
        self.stir()
        return handle

    def stir(self) -> None:
        """Something happened that the next tick should see soon."""
        tick, soon = self._tick, self._scheduler.now + TICK_SECONDS
        if tick is None or tick.cancelled or self._tick_at <= soon:
            return
        again = Handle(tick.process, tick.callback, tick.args, tick.context)
        tick.cancel()
        self._tick, self._tick_at = again, soon
        self._scheduler.push(soon, again)

    def run_in_executor(self, _executor: Any, func: Any, *args: Any) -> Any:
        future = self.create_future()

        def run() -> None:
            result = func(*args)
            if not future.cancelled():
                self.call_soon(future.set_result, result)

        Thread(self._process, run)
        return future

    def add_signal_handler(self, sig: int, callback: Any, *args: Any) -> None:
        """Signals come from the history, by the worker's own event."""

    def call_exception_handler(self, context: Any) -> None:
        raise AssertionError(f"the event loop reports: {context}") from context.get("exception")

    def dispose(self) -> None:
        for task in self._tasks:
            if not task.done():
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                # Now, and not when its memory is freed: what it would await on its way out has no loop to run in.
                with suppress(RuntimeError):
                    task.get_coro().close()
        self._tasks.clear()


class Clock:
    """A process's clocks; its wall clock goes ``ahead_ms`` before the broker's."""

    def __init__(self, scheduler: Scheduler, *, ahead_ms: int = 0) -> None:
        self._scheduler = scheduler
        self._ahead_ms = ahead_ms

    def monotonic(self) -> float:
        return MONOTONIC_START + self._scheduler.now

    def wall_ms(self) -> int:
        return WALL_START_MS + self._ahead_ms + int(self._scheduler.now * 1000)

    def sleep(self, seconds: float) -> None:
        self._scheduler.sleep(seconds)


def threading_in(scheduler: Scheduler) -> SimpleNamespace:
    """Events and threads in virtual time."""

    class Event:
        def __init__(self) -> None:
            self._set = False
            self._waiting: Thread | None = None

        def is_set(self) -> bool:
            return self._set

        def set(self) -> None:
            self._set = True
            if self._waiting is not None:
                self._waiting.wake()

        def clear(self) -> None:
            self._set = False

        def wait(self, timeout: float) -> bool:
            if not self._set:
                self._waiting = scheduler.current_thread
                assert self._waiting is not None
                self._waiting.wait(timeout)
                self._waiting = None
            return self._set

    def start(_name: str, run: Callable[[], None]) -> Thread:
        assert scheduler.current_process is not None
        return Thread(scheduler.current_process, run)

    return SimpleNamespace(Event=Event, start=start)
