"""Compares a client's tier deadlines with those of the pool's workers: reads the coordination topic on its own thread,
after the first request that got a tier's default. Never blocks a submit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

import structlog
from confluent_kafka import KafkaException

from forebay_schemas.clock import Clock
from forebay_schemas.contract.coordination import Capacity
from forebay_schemas.contract.tier_agreement import agreement_of, difference
from forebay_schemas.contract.tiers import TierTimes
from forebay_schemas.contract.topics import Pool
from forebay_schemas.errors import ForebayError
from forebay_schemas.kafka.announcements import read_announcements
from forebay_schemas.kafka.connection import KafkaConnection

AGAIN_SECONDS: Final = 600.0
LOOK_SECONDS: Final = 5.0
CLOSE_SECONDS: Final = 1.0

_log = structlog.get_logger("forebay.producer")


class TierWatch:
    """Compares at most every ten minutes. Logs each difference once."""

    def __init__(
        self, look: Callable[[Callable[[], bool]], list[Capacity]], *, pool: str, times: TierTimes, clock: Clock
    ) -> None:
        """``look(stopped)`` returns the workers' latest capacities. It may block until ``stopped()``, and may raise
        ``KafkaException`` and ``ForebayError``."""
        self._look = look
        self._pool = pool
        self._times = times
        self._clock = clock
        self._again_at = float("-inf")
        self._told = ""
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def stamped(self) -> None:
        """Notes an acknowledged request that has the tier's default deadline. From any thread; returns at once."""
        if self._clock.monotonic() < self._again_at:
            return
        with self._lock:
            if self._clock.monotonic() < self._again_at:
                return
            self._again_at = self._clock.monotonic() + AGAIN_SECONDS
            self._thread = threading.Thread(target=self.compare, name="forebay-tiers", daemon=True)
            self._thread.start()

    def compare(self) -> None:
        """Compares once and logs a new difference. Never raises."""
        try:
            agreement = agreement_of(self._look(self._stopping.is_set))
        except (KafkaException, ForebayError) as error:
            # Without permission to read the topic only this comparison is lost.
            _log.debug("what the workers' deadlines are cannot be told", pool=self._pool, error=str(error))
            return
        said = "" if agreement is None else difference(self._times, agreement.times)
        if agreement is not None and said and said != self._told:
            _log.warning(
                "this client has other deadlines or waits than the pool's workers",
                pool=self._pool,
                worker=agreement.worker,
                differs=said,
                fix="give the client the workers' FOREBAY_TIER_TTL_MS and FOREBAY_TIER_WAIT_MS, or requests a ttl_ms",
            )
        self._told = said

    def close(self, *, timeout_seconds: float | None = None) -> None:
        """Waits up to a second, or ``timeout_seconds``, for a comparison in progress; then ends it."""
        patience = CLOSE_SECONDS if timeout_seconds is None else min(timeout_seconds, CLOSE_SECONDS)
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(patience)
        self._stopping.set()


def watch_tiers(connection: KafkaConnection, *, pool: Pool, times: TierTimes, clock: Clock) -> TierWatch:
    """A watch that compares ``times`` with the pool's workers. Connects when it looks."""

    def look(stopped: Callable[[], bool]) -> list[Capacity]:
        return read_announcements(
            connection,
            topic=pool.coordination,
            client_id="forebay-producer-tiers",
            seconds=LOOK_SECONDS,
            stopped=stopped,
        )

    return TierWatch(look, pool=pool.name, times=times, clock=clock)
