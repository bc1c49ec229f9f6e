"""The executor on a real event loop: cancellations that are obeyed, swallowed, or the handler's own."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from itertools import pairwise
from typing import Any

import pytest
from structlog.testing import capture_logs

from forebay_schemas.runtime.log import spoken_of
from forebay_worker import HandlerRequest
from forebay_worker.execution import executor as executor_module
from forebay_worker.execution.executor import RUNS_BETWEEN_YIELDS, Executor
from forebay_worker.execution.handler_backend import HandlerBackend
from simulated.dispatch import Stage
from simulated.ports import MemoryRecord
from simulated.works import make_assignment, make_work

Handler = Callable[[HandlerRequest], Awaitable[Any]]


class Floor:
    """An executor over a handler; time is moved by hand, the event loop is real."""

    def __init__(self, handler: Handler, *, limit: int = 2) -> None:
        self.stage = Stage(limit=limit)
        self.clock, self.reporter, self.dispatcher = self.stage.clock, self.stage.reporter, self.stage.dispatcher
        self.executor = Executor(dispatcher=self.dispatcher, backend=HandlerBackend(handler))
        self.assignment = make_assignment()

    def accept(self, count: int, *, ttl_ms: int = 60_000) -> None:
        self.dispatcher.accept([make_work(self.assignment, offset=offset, ttl_ms=ttl_ms) for offset in range(count)])
        self.executor.start_runnable()

    def overdue(self) -> None:
        """All deadlines pass, and the executor looks."""
        self.clock.advance(60.0)
        self.reporter.delivery.poll()
        self.executor.cancel_overdue()

    async def idle(self) -> None:
        """Waits until nothing runs and nothing could."""
        for _ in range(1_000):
            if not self.dispatcher.running and (self.dispatcher.stopping or not self.dispatcher.lanes):
                return
            await asyncio.sleep(0.001)
        raise AssertionError("it still runs")

    def outcomes(self) -> dict[str, str]:
        outcomes = self.stage.outcomes()
        assert len(dict(outcomes)) == len(outcomes), "one outcome each"
        return dict(outcomes)


def run(scenario: Coroutine[Any, Any, None]) -> None:
    with capture_logs():
        asyncio.run(asyncio.wait_for(scenario, 20))


def test_every_request_runs_and_never_more_at_once_than_the_limit() -> None:
    running = most = 0

    async def handler(request: HandlerRequest) -> Any:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0 if int(request.request_id[2:]) % 3 else 0.001)
        running -= 1
        return {"for": request.request_id}

    async def scenario() -> None:
        floor = Floor(handler, limit=3)
        floor.accept(50)
        await floor.idle()
        assert floor.outcomes() == {f"r-{number}": "completed" for number in range(50)}
        assert most == 3

    run(scenario())


class _Watched(MemoryRecord):
    """A record whose last reference can be noticed."""


def test_what_outlives_a_request_does_not_hold_its_body() -> None:
    timers: list[asyncio.TimerHandle] = []
    last_runs = asyncio.Event()
    seen: list[str | None] = []

    async def handler(request: HandlerRequest) -> Any:
        if request.request_id == "r-9":
            last_runs.set()
        timers.append(asyncio.get_running_loop().call_later(600, print))
        timers.append(asyncio.get_running_loop().call_later(0.001, lambda: seen.append(_traceparent())))
        await asyncio.sleep(0 if request.request_id != "r-9" else 0.1)
        return {}

    async def scenario() -> None:
        floor = Floor(handler, limit=1)
        traceparent = f"00-{'a' * 32}-{'b' * 16}-01"
        works = [
            make_work(floor.assignment, offset=offset, headers=[("traceparent", traceparent.encode())])
            for offset in range(10)
        ]
        records = []
        for work in works:
            work.record = _Watched(value_bytes=work.record.value(), offset_number=work.offset)
            records.append(weakref.ref(work.record))
        floor.dispatcher.accept(works)
        del work, works
        floor.executor.start_runnable()
        await last_runs.wait()
        floor.reporter.delivery.poll()
        assert sum(record() is not None for record in records) == 1, "the one that runs, though its runner had others"
        await floor.idle()
        floor.reporter.delivery.poll()
        assert sum(record() is not None for record in records) == 0
        assert set(seen) == {traceparent}, "what a request began goes on under its trace"

    run(scenario())


def _traceparent() -> str | None:
    subject = spoken_of.get()
    return None if subject is None else subject.traceparent


def test_a_handler_that_never_waits_lets_the_loop_turn() -> None:
    turns: list[int] = []
    done = 0

    async def handler(_: HandlerRequest) -> Any:
        nonlocal done
        done += 1

    async def scenario() -> None:
        floor = Floor(handler, limit=1)
        floor.accept(10 * RUNS_BETWEEN_YIELDS)
        while floor.dispatcher.running or floor.dispatcher.lanes:
            turns.append(done)
            await asyncio.sleep(0)
        assert len(turns) >= 10
        assert max(after - before for before, after in pairwise(turns)) <= RUNS_BETWEEN_YIELDS

    run(scenario())


def test_an_execution_past_its_deadline_is_given_up_and_the_next_one_runs() -> None:
    async def handler(request: HandlerRequest) -> Any:
        if request.request_id == "r-0":
            await asyncio.sleep(1_000)

    async def scenario() -> None:
        floor = Floor(handler, limit=1)
        floor.dispatcher.accept([make_work(floor.assignment, offset=0, ttl_ms=1_000), make_work(offset=1)])
        floor.executor.start_runnable()
        await asyncio.sleep(0)
        floor.clock.advance(1.0)
        floor.executor.cancel_overdue()
        floor.executor.cancel_overdue()
        await floor.idle()
        assert floor.outcomes() == {"r-0": "deadline_passed_running", "r-1": "completed"}

    run(scenario())


def test_before_the_deadline_nothing_is_cancelled() -> None:
    release = asyncio.Event()

    async def handler(_: HandlerRequest) -> Any:
        await release.wait()

    async def scenario() -> None:
        floor = Floor(handler)
        floor.accept(1)
        await asyncio.sleep(0)
        floor.clock.advance(59.9)
        floor.executor.cancel_overdue()
        release.set()
        await floor.idle()
        assert floor.outcomes() == {"r-0": "completed"}

    run(scenario())


def test_an_answer_that_comes_in_spite_of_the_cancellation_counts_and_harms_no_later_request() -> None:
    async def handler(request: HandlerRequest) -> Any:
        if request.request_id == "r-0":
            try:
                await asyncio.sleep(1_000)
            except asyncio.CancelledError:
                return {"late": True}
        await asyncio.sleep(0.001)
        return {}

    async def scenario() -> None:
        floor = Floor(handler, limit=1)
        floor.dispatcher.accept([make_work(floor.assignment, offset=0, ttl_ms=1_000)])
        floor.dispatcher.accept([make_work(floor.assignment, offset=offset, ttl_ms=10**6) for offset in range(1, 4)])
        floor.executor.start_runnable()
        await asyncio.sleep(0)
        floor.overdue()
        await floor.idle()
        assert floor.outcomes() == {f"r-{number}": "completed" for number in range(4)}
        assert floor.assignment.claims.running() == (0, 1, 2, 3), "claims end when intake takes note"

    run(scenario())


def test_a_cancellation_turned_into_an_error_fails_the_request() -> None:
    async def handler(_: HandlerRequest) -> Any:
        try:
            await asyncio.sleep(1_000)
        except asyncio.CancelledError:
            raise RuntimeError("cleaned up") from None

    async def scenario() -> None:
        floor = Floor(handler, limit=1)
        floor.accept(1)
        await asyncio.sleep(0)
        floor.overdue()
        await floor.idle()
        assert floor.outcomes() == {"r-0": "handler_failed"}

    run(scenario())


@pytest.mark.parametrize("error", [asyncio.CancelledError(), SystemExit(3), KeyboardInterrupt(), ValueError("no")])
def test_whatever_a_handler_raises_ends_its_request_alone(error: BaseException) -> None:
    async def handler(request: HandlerRequest) -> Any:
        if request.request_id == "r-1":
            raise error

    async def scenario() -> None:
        floor = Floor(handler, limit=1)
        floor.accept(4)
        await floor.idle()
        outcomes = floor.outcomes()
        assert outcomes.pop("r-1") == "handler_failed"
        assert set(outcomes.values()) == {"completed"}
        assert len(outcomes) == 3

    run(scenario())


def test_what_is_given_back_is_cancelled_unreported_and_unclaimed() -> None:
    cancelled = 0

    async def handler(_: HandlerRequest) -> Any:
        nonlocal cancelled
        try:
            await asyncio.sleep(1_000)
        except asyncio.CancelledError:
            cancelled += 1
            raise

    async def scenario() -> None:
        floor = Floor(handler, limit=3)
        floor.accept(5)
        await asyncio.sleep(0)
        floor.dispatcher.stopping = True
        await floor.executor.give_back()
        assert cancelled == 3
        assert floor.outcomes() == {}
        assert floor.assignment.claims.running() == ()
        assert not floor.dispatcher.running

    run(scenario())


def test_giving_back_does_not_wait_for_ever_for_a_handler_that_swallows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor_module, "GIVE_BACK_SECONDS_MAX", 0.05)
    release = asyncio.Event()

    async def handler(_: HandlerRequest) -> Any:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    async def scenario() -> None:
        floor = Floor(handler, limit=2)
        floor.accept(3)
        await asyncio.sleep(0)
        floor.dispatcher.stopping = True
        await floor.executor.give_back()
        assert len(floor.dispatcher.running) == 2
        release.set()
        await floor.idle()
        assert floor.outcomes() == {"r-0": "completed", "r-1": "completed"}

    run(scenario())


def test_with_nothing_running_there_is_nothing_to_give_back() -> None:
    async def handler(_: HandlerRequest) -> Any:
        return None

    run(Floor(handler).executor.give_back())
