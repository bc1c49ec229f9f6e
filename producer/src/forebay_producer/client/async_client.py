"""The client library for asyncio: submit requests, cancel and expedite them, wait for outcomes, read streamed answers.

Talks to the brokers on threads of its own. Each hands what it has read to the event loop with one wake-up a batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import structlog

from forebay_producer.admission.admission import Admission
from forebay_producer.client.control_client import ControlAnswer, target_of
from forebay_producer.client.core import SYSTEM_CLOCK, Core, settings_of
from forebay_producer.client.follow import id_of, no_outcome
from forebay_producer.client.handle import CONTROL_WAIT_SECONDS
from forebay_producer.client.metrics import ProducerMetrics
from forebay_producer.client.prepare import Prepared
from forebay_producer.client.reply_stream import ReplyStream
from forebay_producer.client.sender import Pending, ReportServer, Sender, Submitted
from forebay_producer.errors import OutcomeTimeoutError, QueueFullError
from forebay_producer.replies.loop_post import LoopPost, Posted
from forebay_producer.settings import ProducerSettings
from forebay_schemas.clock import Clock
from forebay_schemas.contract.control import ControlAction
from forebay_schemas.contract.envelope import Request
from forebay_schemas.contract.pieces import Piece
from forebay_schemas.contract.results import Result, decode_result
from forebay_schemas.contract.tiers import Tier
from forebay_schemas.errors import ForebayError, TopicMissingError

_CALLS_MAX: Final = 4
_FULL_QUEUE_SECONDS: Final = 0.005
_BATCH_SLICE: Final = 200
"""Requests of a batch between two turns of the event loop: each takes some 20 microseconds."""

_LATER_SECONDS: Final = 3600.0  # the single waits of `outcomes` do not end before it does

_T = TypeVar("_T")
_log = structlog.get_logger("forebay.producer")


class AsyncHandle(Submitted, frozen=True, gc=False, kw_only=True):
    """A submitted request: its position in Kafka, and methods to cancel it, expedite it or wait for its outcome."""

    producer: AsyncProducer

    async def cancel(self, *, wait_seconds: float = CONTROL_WAIT_SECONDS) -> ControlAnswer:
        """As `AsyncProducer.cancel`."""
        return await self.producer.cancel(self, wait_seconds=wait_seconds)

    async def expedite(self, *, wait_seconds: float = CONTROL_WAIT_SECONDS) -> ControlAnswer:
        """As `AsyncProducer.expedite`."""
        return await self.producer.expedite(self, wait_seconds=wait_seconds)

    async def outcome(self, *, timeout_seconds: float) -> Result:
        """As `AsyncProducer.outcome`."""
        return await self.producer.outcome(self, timeout_seconds=timeout_seconds)


class AsyncProducer:
    """Submits requests to a pool and waits for their outcomes. Belongs to one event loop; use it as an async context
    manager.

    Settings, ``metrics`` and errors as of `Producer`. With a front (FOREBAY_FRONT) the results of its requests come by
    one partition, which no other live replica of the front follows; without one it reads all results of the pool.
    """

    def __init__(
        self,
        *,
        settings: ProducerSettings | None = None,
        bootstrap_servers: str | None = None,
        pool: str | None = None,
        kafka_properties: Path | None = None,
        metrics: ProducerMetrics | None = None,
        admission: Admission | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        given = settings_of(settings, servers=bootstrap_servers, pool=pool, kafka_properties=kafka_properties)
        self._core = Core(given, metrics=metrics, admission=admission, clock=clock)
        self._post: LoopPost | None = None
        self._starting: asyncio.Lock | None = None
        self._calls = ThreadPoolExecutor(_CALLS_MAX, thread_name_prefix="forebay-producer-calls")
        self._bulk_reports: ReportServer | None = None
        self._has_no_streams = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def require_topics(self) -> None:
        """As `Producer.require_topics`."""
        await self._start()
        await self._call(self._core.bulk_sender().require_topics)

    async def submit(
        self,
        request: Request | Mapping[str, Any],
        *,
        tier: Tier | str | None = None,
        traceparent: str | None = None,
        timeout_seconds: float | None = None,
        do_not_queue: bool = False,
    ) -> AsyncHandle:
        """As `Producer.submit`: returns once the broker has the request on all in-sync replicas."""
        reply = await self._start()
        try:
            prepared = self._core.prepare(
                request, tier=tier, traceparent=traceparent, reply=reply, do_not_queue=do_not_queue
            )
        except ForebayError as error:
            self._core.count_failure(error)
            raise
        return await self._submit_prepared(prepared, timeout_seconds=timeout_seconds)

    async def submit_batch(
        self, requests: Iterable[Request | Mapping[str, Any]], *, tier: Tier | str | None = None
    ) -> list[AsyncHandle | ForebayError]:
        """As `Producer.submit_batch`: sends many requests, pipelined; what became of each, in order."""
        reply = await self._start()
        sender = self._core.bulk_sender()
        if self._bulk_reports is None:
            self._bulk_reports = ReportServer(sender)
        await self._call(sender.require_topics)
        give_up_at = sender.give_up_at(None)
        sent: list[tuple[Pending, asyncio.Future[None]] | ForebayError] = []
        for number, request in enumerate(requests, start=1):
            try:
                prepared = self._core.prepare(request, tier=tier, reply=reply)
                sent.append(await self._send(sender, prepared, give_up_at))
            except ForebayError as error:
                self._core.count_failure(error)
                sent.append(error)
            if number % _BATCH_SLICE == 0:
                self._bulk_reports.wake()
                await asyncio.sleep(0)
        self._bulk_reports.wake()
        return [each if isinstance(each, ForebayError) else await self._ended(*each) for each in sent]

    async def cancel(self, request: Submitted | str, *, wait_seconds: float = CONTROL_WAIT_SECONDS) -> ControlAnswer:
        """As `Producer.cancel`."""
        return (await self.control_batch(ControlAction.CANCEL, [request], wait_seconds=wait_seconds))[0]

    async def expedite(self, request: Submitted | str, *, wait_seconds: float = CONTROL_WAIT_SECONDS) -> ControlAnswer:
        """As `Producer.expedite`."""
        return (await self.control_batch(ControlAction.EXPEDITE, [request], wait_seconds=wait_seconds))[0]

    async def control_batch(
        self,
        action: ControlAction,
        requests: Iterable[Submitted | str],
        *,
        wait_seconds: float = CONTROL_WAIT_SECONDS,
    ) -> list[ControlAnswer]:
        """As `Producer.control_batch`."""
        targets = [target_of(request) for request in requests]
        await self._start()
        control = self._core.control()
        if wait_seconds <= 0:
            return await self._call(partial(control.ask, action, targets, wait_seconds=0))
        changed = asyncio.Event()
        post = self._posting(changed.set)
        expected = await self._call(partial(control.begin, action, targets, wait_seconds=wait_seconds, changed=post))
        try:
            while (left := expected.left_seconds(self._core.clock.monotonic())) > 0:
                with suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), left)
                changed.clear()
        finally:
            control.leave(expected)
        return control.end(action, targets, expected)

    async def outcome(
        self, request: Submitted | str, *, timeout_seconds: float, since_ms: int | None = None, replay_count: int = 0
    ) -> Result:
        """As `Producer.outcome`: waits for the first outcome of a request."""
        await self._start()
        core, request_id = self._core, id_of(request)
        begins_ms = core.since([request], since_ms)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with core.metrics.awaiting(core.pool.name):
            awaited = core.watch.begin(
                (request_id, replay_count),
                since_ms=begins_ms,
                look_back=since_ms is not None,
                on_done=self._posting(partial(_finish, done)),
            )
            try:
                if awaited.wait is not None:
                    await _within(done, timeout_seconds)
            except asyncio.CancelledError:
                with suppress(ForebayError):  # no failure to read may hide that the task is cancelled
                    core.watch.end(awaited)
                raise
            value = core.watch.end(awaited)
        if value is None:
            core.metrics.timed_out(core.pool.name)
            await self._call(core.check_reading)
            raise no_outcome([request_id], timeout_seconds)
        result = decode_result(value)
        core.gate.ended(request_id)
        core.metrics.outcome(core.pool.name, result.status)
        return result

    async def outcomes(
        self, requests: Collection[Submitted | str], *, timeout_seconds: float, since_ms: int | None = None
    ) -> AsyncIterator[Result]:
        """Yields the first outcome of each request as it comes, until all have come.

        Raises ``OutcomeTimeoutError`` when one did not come in time, and what `outcome` raises.
        """
        give_up_at = asyncio.get_running_loop().time() + timeout_seconds
        missing = {id_of(each): each for each in requests}
        # A queue instead of asyncio.wait, which looks at all that are left for each that has come.
        came: asyncio.Queue[asyncio.Task[Result]] = asyncio.Queue()
        waits: list[asyncio.Task[Result]] = []
        for each in missing.values():
            later = self.outcome(each, timeout_seconds=timeout_seconds + _LATER_SECONDS, since_ms=since_ms)
            waits.append(asyncio.create_task(later))
            waits[-1].add_done_callback(came.put_nowait)
        try:
            while missing:
                try:
                    async with asyncio.timeout_at(give_up_at):
                        ended = await came.get()
                except TimeoutError:
                    with suppress(OutcomeTimeoutError):  # raises what keeps results from being read
                        await self.outcome(next(iter(missing.values())), timeout_seconds=0, since_ms=since_ms)
                    raise no_outcome(sorted(missing), timeout_seconds) from None
                result = await ended
                del missing[result.request_id]
                yield result
        finally:
            for wait in waits:
                wait.cancel()

    async def stream(
        self,
        request: Request | Mapping[str, Any],
        *,
        timeout_seconds: float,
        tier: Tier | str | None = None,
        traceparent: str | None = None,
    ) -> ReplyStream:
        """Submits a request whose payload asks the engine for a stream, and returns its answer as it comes.

        ``timeout_seconds`` bounds the wait for the outcome. Without a streams topic the events come at the end, filled
        from the result. Raises what `submit` raises.
        """
        reply = {**(await self._start() or {}), "stream": True}
        core = self._core
        prepared = core.prepare(request, tier=tier, traceparent=traceparent, reply=reply)
        pieces: asyncio.Queue[Piece | None] = asyncio.Queue()
        await self._follow_pieces(prepared.request_id, pieces)
        try:
            handle = await self._submit_prepared(prepared, timeout_seconds=None)
        except BaseException:
            core.streams().leave(prepared.request_id)
            raise
        return ReplyStream(
            pieces=pieces,
            outcome=partial(self.outcome, handle, timeout_seconds=timeout_seconds),
            leave=partial(core.streams().leave, prepared.request_id),
        )

    async def close(self, *, timeout_seconds: float | None = None) -> list[str]:
        """As `Producer.close`."""
        loop = asyncio.get_running_loop()
        if self._bulk_reports is not None:
            await loop.run_in_executor(None, self._bulk_reports.stop)
        undelivered = await loop.run_in_executor(None, partial(self._core.close, timeout_seconds=timeout_seconds))
        self._calls.shutdown(wait=False, cancel_futures=True)
        return undelivered

    async def _start(self) -> dict[str, Any] | None:
        """Opens what the first call needs. The fields of the envelope's reply; None without a front."""
        self._core.check_usable()
        if self._post is None:
            self._post = LoopPost(asyncio.get_running_loop())
            self._starting = asyncio.Lock()
        if not self._core.is_ready:
            assert self._starting is not None
            async with self._starting:
                if not self._core.is_ready:
                    await self._call(self._core.make_ready)
        return self._core.reply

    async def _submit_prepared(self, prepared: Prepared, *, timeout_seconds: float | None) -> AsyncHandle:
        core, sender = self._core, self._core.single
        seconds = core.delivery_seconds if timeout_seconds is None else min(timeout_seconds, core.delivery_seconds)
        give_up_at = sender.give_up_at(seconds)
        try:
            if not sender.topics_exist:
                await self._call(partial(sender.require_topics, give_up_at=give_up_at))
            pending, done = await self._send(sender, prepared, give_up_at)
        except ForebayError as error:
            core.count_failure(error)
            raise
        core.reports.wake()
        await _within(done, max(0.0, give_up_at - core.clock.monotonic()))
        if pending.outcome is None:
            raise await self._call(partial(sender.no_answer, seconds))
        handle = await self._ended(pending, done)
        if isinstance(handle, ForebayError):
            raise handle
        return handle

    async def _send(
        self, sender: Sender, prepared: Prepared, give_up_at: float
    ) -> tuple[Pending, asyncio.Future[None]]:
        """Queues a record; waits for room without holding the loop. Raises as `Sender.send`."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        event = Posted(self._posting(partial(_finish, done)))
        self._core.watch.submitting(prepared.request_id)
        while True:
            try:
                return sender.send(prepared, done=event, give_up_at=0.0), done
            except QueueFullError:
                if self._core.clock.monotonic() >= give_up_at:
                    raise
                await asyncio.sleep(_FULL_QUEUE_SECONDS)

    async def _ended(self, pending: Pending, done: asyncio.Future[None]) -> AsyncHandle | ForebayError:
        await done
        outcome = pending.outcome
        assert outcome is not None
        if isinstance(outcome, ForebayError):
            return outcome
        self._core.acknowledged(outcome)
        return AsyncHandle(
            request_id=outcome.request_id,
            topic=outcome.topic,
            partition=outcome.partition,
            offset=outcome.offset,
            enqueued_at=outcome.enqueued_at,
            producer=self,
        )

    async def _follow_pieces(self, request_id: str, pieces: asyncio.Queue[Piece | None]) -> None:
        assert self._post is not None
        post = self._post.post
        streams = self._core.streams()
        follow = partial(
            streams.follow,
            request_id,
            lambda piece: post(partial(pieces.put_nowait, piece)),
            lambda _: post(partial(pieces.put_nowait, None)),
            timeout_seconds=self._core.delivery_seconds,
        )
        try:
            if streams.is_open:
                follow()
            else:
                await self._call(follow)
        except TopicMissingError as error:
            pieces.put_nowait(None)
            if not self._has_no_streams:
                self._has_no_streams = True
                _log.warning("answers come whole: there is no streams topic", problem=str(error))

    def _posting(self, call: Callable[[], None]) -> Callable[[], None]:
        """A function for other threads that has the loop make the call."""
        assert self._post is not None
        return partial(self._post.post, call)

    async def _call(self, call: Callable[[], _T]) -> _T:
        """Makes a call that may block."""
        return await asyncio.get_running_loop().run_in_executor(self._calls, call)


async def _within(done: asyncio.Future[None], seconds: float) -> None:
    """Waits until it is done, for ``seconds`` at most. A tenth of the cost of `asyncio.wait`."""
    timer = asyncio.get_running_loop().call_later(seconds, _finish, done)
    try:
        await done
    finally:
        timer.cancel()


def _finish(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)
