"""The start: waits until brokers answer, and asks them for their time. The event loop."""

from __future__ import annotations

import asyncio
import contextlib
import math

import structlog

from forebay_schemas.errors import BrokerUnreachableError
from forebay_worker.ops.probes import HEARTBEAT_SECONDS_MAX
from forebay_worker.wiring.parts import Parts

BROKER_TIME_POLL_SECONDS = 0.005
BROKER_TIME_SECONDS_MAX = 2.0
"""The longest wait for the brokers' time before anything starts."""

UNREACHABLE_AGAIN_SECONDS = 1.0
UNREACHABLE_SAID_SECONDS = 60.0
"""Interval between log lines, and between requests to the brokers, while none answers at the start."""

log = structlog.get_logger("forebay.worker")


async def find_cluster(parts: Parts, *, ops_port: int) -> dict[str, int] | None:
    """Number of partitions of each topic, once brokers answer; None if the worker is to end before that.

    Kafka may be away for a while, now as later. Raises errors that waiting cannot mend, and ``BrokerUnreachableError``
    when the time to wait is over.
    """
    clock, state, patience_seconds = parts.clock, parts.state, parts.terms.kafka_wait_seconds
    give_up_at = math.inf if patience_seconds is None else clock.monotonic() + patience_seconds
    say_at = -math.inf
    while True:
        asked = asyncio.create_task(asyncio.to_thread(parts.cluster.require_usable))
        while not asked.done():
            state.heartbeat = clock.monotonic()
            await asyncio.wait({asked}, timeout=HEARTBEAT_SECONDS_MAX / 10)
        try:
            partitions = asked.result()
        except BrokerUnreachableError as error:
            now = clock.monotonic()
            if now >= give_up_at:
                raise
            state.waits_for = f"waiting for Kafka: {error}"
            if now >= say_at:
                say_at = now + UNREACHABLE_SAID_SECONDS
                log.warning("waiting for Kafka", error=str(error), ops_port=ops_port)
        else:
            state.waits_for = None
            return partitions
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(state.drain.wait(), UNREACHABLE_AGAIN_SECONDS)
            return None


async def learn_broker_time(parts: Parts) -> None:
    """Asks twice, since the first answer also includes the time to connect. Gives up after two seconds."""
    clock, reporter = parts.clock, parts.reporter
    end = clock.monotonic() + BROKER_TIME_SECONDS_MAX
    for _ in range(2):
        answers: list[bool] = []
        reporter.announcer.probe_clock(answers.append)
        while not answers and clock.monotonic() < end and not parts.state.drain.is_set():
            await asyncio.sleep(BROKER_TIME_POLL_SECONDS)
            reporter.delivery.poll()
    if not clock.is_known:
        log.warning(
            "the brokers' time is not known; deadlines go by this machine's clock until a result is written",
            fix=f"{parts.terms.pool.coordination} should have message.timestamp.type=LogAppendTime",
        )
