"""A simulated inference backend: latencies, refusals, outages, and requests that kill the worker that runs them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import TYPE_CHECKING
from zlib import crc32

import msgspec

from forebay_schemas.clock import Clock
from forebay_schemas.contract.reasons import Reason
from forebay_worker.request.backend import BackendFailed
from forebay_worker.request.work import Answer, Failure, FailureScope, Work
from simulation.scheduler import Process, Scheduler

if TYPE_CHECKING:
    from simulation.executions import Execution
    from simulation.oracle import Oracle

BACKEND_TIMEOUT_SECONDS = 40.0
POISON_SECONDS = (0.0, 0.1, 0.3, 3.0)
"""Delays until a poison kills its worker: at once, before the next commit in the ordinary course, and long after it."""

UNREADABLE_KILLS_MAX = 4


class Mode(Enum):
    """The backend's behaviour for everyone."""

    UP = "up"
    REFUSED = "refused"
    HANGING = "hanging"
    UNAVAILABLE = "503"
    OVERLOADED = "429"
    ERRORS = "500"
    LOCKED = "401"


ANSWERS_TO_ALL: tuple[Mode, ...] = (Mode.ERRORS, Mode.LOCKED)
"""Outages of a backend that answers."""


class Kind(Enum):
    """Effect of a request on its worker."""

    PLAIN = "plain"
    FLAKY = "flaky"
    WRONG = "wrong"
    BROKEN = "broken"
    HANGS_ONCE = "hangs_once"
    LARGE = "large"
    POISON = "poison"
    UNREADABLE = "unreadable"
    """Kills whoever decodes it, a few times in a history."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Seconds: mostly short, some long."""

    typical: float
    long: float
    long_share: float

    def draw(self, random: Random) -> float:
        if random.random() < self.long_share:
            return 0.05 + random.random() * self.long
        return 0.05 + random.expovariate(1 / self.typical)


class Backend:
    """The engine that all workers share."""

    def __init__(self, *, scheduler: Scheduler, random: Random, latency: Latency, large_bytes: int) -> None:
        self.mode = Mode.UP
        self.kinds: dict[str, Kind] = {}
        self.latency = latency
        self._large_bytes = large_bytes
        self._scheduler = scheduler
        self._random = random
        self._tries: dict[str, int] = {}
        self._readers_killed = 0

    def kills_reader(self, request_id: str) -> bool:
        """Whether a worker dies of decoding a request, now."""
        if self.kinds.get(request_id) is not Kind.UNREADABLE:
            return False
        self._readers_killed += 1
        return self._readers_killed <= UNREADABLE_KILLS_MAX

    def plan(self, work: Work) -> tuple[float, Answer | Failure | None]:
        """Length and end of an execution; None: the worker dies of it."""
        assert work.request is not None
        request_id = work.request.request_id
        random = self._random
        if self.mode is Mode.REFUSED:
            failure = Failure(
                reason=Reason.BACKEND_UNAVAILABLE, error="connection refused", scope=FailureScope.CONNECTION
            )
            return 0.001, failure
        if self.mode is Mode.HANGING:
            return BACKEND_TIMEOUT_SECONDS, Failure(reason=Reason.BACKEND_TIMEOUT, error="no answer")
        if self.mode is Mode.UNAVAILABLE:
            return 0.01, _refusal(Reason.BACKEND_UNAVAILABLE, scope=FailureScope.BACKEND)
        if self.mode is Mode.OVERLOADED:
            return 0.01, _refusal(
                Reason.BACKEND_OVERLOADED,
                scope=FailureScope.BACKEND,
                retry_after_seconds=random.choice((None, 1.0, 7.0)),
            )
        if self.mode is Mode.ERRORS:
            return 0.01, _refusal(Reason.BACKEND_ERROR, status=500)
        if self.mode is Mode.LOCKED:
            return 0.01, _refusal(Reason.BACKEND_REJECTED, status=401)
        seconds = self.latency.draw(random)
        tries = self._tries[request_id] = self._tries.get(request_id, 0) + 1
        kind = self.kinds.get(request_id, Kind.PLAIN)
        if kind is Kind.POISON:
            return POISON_SECONDS[crc32(request_id.encode()) % len(POISON_SECONDS)], None
        if kind is Kind.WRONG:
            return 0.02, _refusal(Reason.BACKEND_REJECTED, status=400)
        if kind is Kind.BROKEN or (kind is Kind.FLAKY and tries <= 1 + len(request_id) % 2):
            reason = random.choice((Reason.BACKEND_ERROR, Reason.BACKEND_ERROR, Reason.BACKEND_TIMEOUT))
            return seconds, _refusal(reason, status=500 if reason is Reason.BACKEND_ERROR else None)
        if kind is Kind.HANGS_ONCE and tries == 1:
            return BACKEND_TIMEOUT_SECONDS, Failure(reason=Reason.BACKEND_TIMEOUT, error="no answer")
        if kind is Kind.LARGE:
            return seconds, Answer(body=msgspec.Raw(b'"%s"' % (b"x" * self._large_bytes)))
        return seconds, Answer(body=msgspec.Raw(b"{}"), prompt_tokens=1, output_tokens=1)


def _refusal(
    reason: Reason,
    *,
    status: int | None = None,
    scope: FailureScope = FailureScope.REQUEST,
    retry_after_seconds: float | None = None,
) -> Failure:
    return Failure(
        reason=reason,
        error="no",
        http_status=status,
        given_status=status,
        scope=scope,
        retry_after_seconds=retry_after_seconds,
    )


class BackendClient:
    """The `Backend` of one worker."""

    def __init__(
        self,
        *,
        backend: Backend,
        process: Process,
        clock: Clock,
        oracle: Oracle,
        die: Callable[[Execution], None],
    ) -> None:
        self._backend = backend
        self._clock = clock
        self._process = process
        self._oracle = oracle
        self._die = die

    async def run(self, work: Work) -> Answer:
        process = self._process
        execution = self._oracle.started(process.name, work, now_ms=self._clock.wall_ms())
        try:
            seconds, end = self._backend.plan(work)
        except Exception as error:
            process.scheduler.broken = error  # the worker would take it for a failure of the backend
            raise
        future = process.loop.create_future()
        timer = process.scheduler.later(seconds, process, _finish, future)
        try:
            await future
        except asyncio.CancelledError:
            timer.cancel()
            self._oracle.executions.cancelled(execution)
            raise
        if end is None:
            self._die(execution)
            await process.loop.create_future()
        if isinstance(end, Failure):
            self._oracle.executions.failed(execution, end)
            raise BackendFailed(end)
        assert isinstance(end, Answer)
        self._oracle.executions.answered(execution)
        return end

    async def close(self) -> None:
        """Holds nothing."""


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
