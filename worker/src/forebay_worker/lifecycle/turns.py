"""The turns of the event loop while the worker runs and drains: each turn does whatever is due, once."""

from __future__ import annotations

import asyncio
import faulthandler
from collections.abc import Callable

from forebay_schemas.errors import KafkaFailedError
from forebay_worker.wiring.parts import Parts

TICK_SECONDS = 0.02

FROZEN_SECONDS = 50.0
"""Longer than /livez waits: its readers act sooner, and may look at the process first."""


class Turns:
    """Turns until a condition holds."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._watch_again_at = 0.0

    async def until(self, done: Callable[[], bool]) -> None:
        """Returns when ``done`` returns True. Raises ``KafkaFailedError`` if outcomes can never be delivered again."""
        while not done():
            self._turn()
            await asyncio.sleep(TICK_SECONDS)

    async def until_or(self, seconds: float, done: Callable[[], bool]) -> None:
        """Returns when ``done`` returns True, or after some seconds."""
        clock = self._parts.clock
        end = clock.monotonic() + seconds
        await self.until(lambda: done() or clock.monotonic() >= end)

    def _turn(self) -> None:
        parts = self._parts
        now = parts.state.heartbeat = parts.clock.monotonic()
        self._watch_for_freezing(now)
        delivery = parts.reporter.delivery
        delivery.poll()
        if delivery.fatal is not None:
            # Only a new producer can go on. A new process starts from the commits, and nothing is lost.
            raise KafkaFailedError(f"outcomes can no longer be delivered: {delivery.fatal}; restart the worker")
        parts.streams.poll()
        parts.clock.look(now)
        if parts.clock.wants_probe(now):
            parts.reporter.announcer.probe_clock()
        parts.dispatcher.tick()
        parts.sharer.step(now)
        parts.hand_overs.step(now)
        parts.executor.cancel_overdue()
        parts.executor.start_runnable()

    def _watch_for_freezing(self, now: float) -> None:
        """Ends the process, with every thread's stack on stderr, if the event loop does not turn for `FROZEN_SECONDS`.

        The watch is a thread in C, because some calls of the Kafka client (pause, resume, incremental_assign) hold
        Python's lock while they wait. The client's heartbeats would keep the partitions of a frozen worker for minutes.
        """
        if now >= self._watch_again_at:
            self._watch_again_at = now + FROZEN_SECONDS / 10
            faulthandler.dump_traceback_later(FROZEN_SECONDS, exit=True)
