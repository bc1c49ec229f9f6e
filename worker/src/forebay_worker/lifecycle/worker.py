"""The worker from start to end; stops its parts in the right order.

The event loop's thread owns dispatch, execution and outcomes. Each tier's consumer has a thread of its own.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import signal

import structlog

from forebay_schemas.errors import ExitCode
from forebay_worker.lifecycle.startup import find_cluster, learn_broker_time
from forebay_worker.lifecycle.threads import Threads
from forebay_worker.lifecycle.turns import TICK_SECONDS, Turns
from forebay_worker.settings import WorkerSettings
from forebay_worker.wiring.parts import Parts, build
from forebay_worker.wiring.world import World, machine

STOP_SECONDS_MAX = 15.0
"""After the drain: for deliveries, last commits and hand-overs together."""

PIECES_SECONDS_MAX = 1.0
"""At the end, for pieces of streamed answers in flight."""

DENIED_AGAIN_SECONDS = 5.0

EMPTY_SHARE_SECONDS = 10.0
"""With ``group.protocol=consumer`` a member that gets no partition is never called back (librdkafka 2.16, seen)."""

log = structlog.get_logger("forebay.worker")


def run_worker(settings: WorkerSettings) -> None:
    """Runs a worker on this machine until SIGTERM or SIGINT. Raises ``ForebayError`` if it cannot start."""
    # Before the event loop: the handler's module may run a loop of its own when imported.
    world = machine(settings)
    asyncio.run(_run(settings, world))


async def _run(settings: WorkerSettings, world: World) -> None:
    await Worker(build(settings, world)).run()


class Worker:
    """One worker process. `run` returns when it has drained."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self._threads = Threads(parts.start_thread)
        self._turns = Turns(parts)

    def stop(self) -> None:
        """Begins the drain. In the event loop's thread."""
        self.parts.state.drain.set()

    async def run(self) -> None:
        """Works until SIGTERM or SIGINT, then drains. Raises ``ForebayError`` if it cannot start."""
        loop, parts = asyncio.get_running_loop(), self.parts
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        try:
            ops_port = await parts.ops.start(host=parts.terms.ops_host, port=parts.terms.ops_port)
            if (partitions := await find_cluster(parts, ops_port=ops_port)) is not None:
                await parts.signals.start()
                await learn_broker_time(parts)
                self._start_threads(partitions)
                log.info("working", pool=parts.terms.pool.name, worker=parts.terms.worker_id, ops_port=ops_port)
                following = asyncio.create_task(self._follow_denials())
                await self._turns.until(parts.state.drain.is_set)
                following.cancel()
                await self._drain()
        finally:
            faulthandler.cancel_dump_traceback_later()
            self._threads.close()
            await asyncio.to_thread(parts.foreign.close)
            await parts.signals.stop()
            await asyncio.to_thread(parts.streams.close, PIECES_SECONDS_MAX)
            await parts.backend.close()
            await parts.ops.stop()
            await asyncio.to_thread(parts.tracing.close)
        if parts.executor.runner_count:
            # asyncio would wait for it for ever, although all outcomes are delivered, committed or handed over.
            log.error("a handler ignores its cancellation; ending without it", handlers=parts.executor.runner_count)
            logging.shutdown()
            os._exit(ExitCode.OK)
        log.info("drained")

    def _start_threads(self, partitions: dict[str, int]) -> None:
        if self.parts.terms.joins_by_consumer_protocol:
            self.parts.state.assigned_by = self.parts.clock.monotonic() + EMPTY_SHARE_SECONDS
        self._threads.start(self.parts.readers.open(partitions))

    async def _follow_denials(self) -> None:
        """Asks for permissions while something is denied: for an idle topic no client notices the end of a denial."""
        intakes = self.parts.readers.intakes
        while True:
            await asyncio.sleep(DENIED_AGAIN_SECONDS)
            if not any(intake.was_denied for intake in intakes.values()):
                continue
            asked_at = self.parts.clock.monotonic()
            lacking = await asyncio.to_thread(self.parts.cluster.lacking)
            if lacking is not None:
                for intake in intakes.values():
                    intake.forget_denials(lacking, before=asked_at)

    async def _drain(self) -> None:
        """Releases all partitions within a second, lets running requests finish, delivers their outcomes and publishes
        them.

        The new owners withhold these requests until a notice tells how each ended.
        """
        parts, turns = self.parts, self._turns
        clock, dispatcher, hand_overs = parts.clock, parts.dispatcher, parts.hand_overs
        delivery = parts.reporter.delivery
        log.info("draining", running=len(dispatcher.running), drain_seconds=parts.terms.drain_seconds)
        dispatcher.stopping = True
        self._threads.close()
        await turns.until_or(parts.terms.drain_seconds, lambda: not dispatcher.running)
        if dispatcher.running:
            log.warning("drain time is over; giving back what still runs", running=len(dispatcher.running))
            await parts.executor.give_back()
        end = clock.monotonic() + STOP_SECONDS_MAX
        await turns.until_or(STOP_SECONDS_MAX, lambda: delivery.undelivered_records == 0)
        if delivery.undelivered_records:
            log.error("outcomes not delivered; their requests run again", records=delivery.undelivered_records)
        await turns.until_or(end - clock.monotonic(), lambda: self._threads.have_ended)
        await asyncio.sleep(TICK_SECONDS)  # for a hand-over that the last of them has just made
        hand_overs.step(clock.monotonic())
        await turns.until_or(end - clock.monotonic(), lambda: hand_overs.is_all_published)
        if not hand_overs.is_all_published:
            log.error("hand-overs not published; their requests may run again")
        parts.sharer.leave()
        await asyncio.to_thread(parts.producer.flush, max(1.0, end - clock.monotonic()))
