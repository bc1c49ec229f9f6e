"""The executor: runs on the event loop what dispatch hands out, and cancels what is overdue."""

from __future__ import annotations

import asyncio
from typing import Any

import structlog

from forebay_schemas.contract.reasons import Reason
from forebay_schemas.runtime.log import spoken_of
from forebay_worker.dispatch.dispatcher import Dispatcher
from forebay_worker.request.backend import Backend, BackendFailed
from forebay_worker.request.work import Failure, Work

RUNS_BETWEEN_YIELDS = 16
"""A handler that never waits would keep the event loop to itself."""

STARTS_PER_TURN = 8
"""So few runners serve a handler that never waits; one that waits gets its 256 within 32 turns of the loop."""

GIVE_BACK_SECONDS_MAX = 5.0

log = structlog.get_logger("forebay.executor")


class _Spoken:
    """What lines about a running request go by. What is left of it in other contexts keeps the trace, not the body.

    asyncio copies the context for each timer and connection, and timers that were cancelled lie in its heap until there
    are a hundred: with the request in them, 40 bodies of 5 MiB that had their answers were 200 MB (measured).
    """

    __slots__ = ("_traceparent", "_work")

    def __init__(self, work: Work) -> None:
        self._work: Work | None = work
        self._traceparent: str | None = None

    @property
    def traceparent(self) -> str | None:
        """The trace of the request, also after its end: what it began may go on."""
        return self._traceparent if self._work is None else self._work.traceparent

    def end(self) -> None:
        """Lets go of the request."""
        if self._work is not None:
            self._traceparent, self._work = self._work.traceparent, None


class Executor:
    """A runner is a task that runs one request after another while dispatch has any: a new task for each costs 3.5
    microseconds more (measured)."""

    def __init__(self, *, dispatcher: Dispatcher, backend: Backend) -> None:
        self._dispatcher = dispatcher
        self._backend = backend
        self._tasks: set[asyncio.Task[None]] = set()
        self._running: dict[int, asyncio.Task[None]] = {}
        self._overdue: set[int] = set()
        self._giving_back = False
        self._starting = False

    def start_runnable(self) -> None:
        """Starts what may start now, a few in each turn of the loop. Call it whenever that may have changed."""
        if self._starting:
            return
        for _ in range(STARTS_PER_TURN):
            work = self._dispatcher.take()
            if work is None:
                return
            task = asyncio.create_task(self._run(work))
            self._tasks.add(task)
            task.add_done_callback(self._ended)
        # A runner that need not wait takes the next request itself: only what these leave is for new ones.
        self._starting = True
        asyncio.get_running_loop().call_soon(self._start_more)

    def _start_more(self) -> None:
        self._starting = False
        self.start_runnable()

    def cancel_overdue(self) -> None:
        """Gives up the executions whose deadline has passed; each is reported as expired."""
        for work in self._dispatcher.overdue():
            task = self._running.get(id(work))
            if task is not None and id(work) not in self._overdue:
                self._overdue.add(id(work))
                task.cancel()

    @property
    def runner_count(self) -> int:
        """How many runners there are; after `give_back`, those whose handler does not let go."""
        return len(self._tasks)

    def request_of(self, task: asyncio.Task[Any]) -> str | None:
        """Which request a task runs; None for a task that is no runner. From any thread."""
        for key, running in list(self._running.items()):
            if running is task:
                work = self._dispatcher.running.get(key)
                return None if work is None else work.request_id
        return None

    async def give_back(self) -> None:
        """Cancels what still runs; those requests stay unfinished, for another worker."""
        self._giving_back = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            # A handler that swallows its cancellation must not keep the worker from delivering and committing.
            await asyncio.wait(tasks, timeout=GIVE_BACK_SECONDS_MAX)

    async def _run(self, first: Work) -> None:
        task = asyncio.current_task()
        assert task is not None
        dispatcher, running = self._dispatcher, self._running
        work: Work | None = first
        del first  # or a runner would hold its body as long as it has others to run
        runs = 0
        while work is not None:
            running[id(work)] = task
            spoken = _Spoken(work)
            spoken_of.set(spoken)
            try:
                answer = await self._backend.run(work)
            except BackendFailed as error:
                dispatcher.failed(work, error.failure)
            except asyncio.CancelledError:
                if self._giving_back:
                    dispatcher.gave_up(work, deadline_passed=False)
                    raise
                if id(work) in self._overdue:
                    dispatcher.gave_up(work, deadline_passed=True)
                else:
                    problem = "the handler cancelled itself"
                    dispatcher.failed(work, Failure(reason=Reason.HANDLER_FAILED, error=problem))
            except Exception as error:
                log.exception("backend failed in an unforeseen way", request_id=work.request_id)
                problem = f"{type(error).__name__}: {error}"
                dispatcher.failed(work, Failure(reason=Reason.BACKEND_BAD_RESPONSE, error=problem))
            else:
                dispatcher.answered(work, answer)
                del answer
            finally:
                spoken_of.set(None)
                spoken.end()
                del running[id(work)]
                self._overdue.discard(id(work))
            if task.cancelling():
                # A cancellation that was swallowed, or has still to come, must not hit the next request.
                self.start_runnable()
                return
            runs += 1
            if runs % RUNS_BETWEEN_YIELDS == 0:
                await asyncio.sleep(0)
            work = dispatcher.take()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a runner died", exc_info=error)
