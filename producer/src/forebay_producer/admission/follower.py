"""Keeps an `Admission`'s reading up to date: one background thread reads the workers' announcements and the backlog,
about once a second. Joins no group, commits nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, Protocol

import structlog
from confluent_kafka import KafkaException

from forebay_producer.admission.admission import Reading
from forebay_producer.cluster.announcement_reader import AnnouncementReader
from forebay_producer.cluster.backlog import BacklogReader, Sample
from forebay_schemas.clock import Clock
from forebay_schemas.contract.tier_agreement import agreement_of
from forebay_schemas.contract.tiers import TIERS, Tier, TierTimes
from forebay_schemas.contract.topics import Pool
from forebay_schemas.errors import ForebayError
from forebay_schemas.estimate.accuracy import CounterRate
from forebay_schemas.estimate.pool import TierRecords, load_of_pool
from forebay_schemas.kafka.clients import make_admin
from forebay_schemas.kafka.connection import KafkaConnection
from forebay_schemas.kafka.metadata import require_topics
from forebay_schemas.kafka.permissions import Operation

REFRESH_SECONDS: Final = 1.0
LISTEN_SECONDS: Final = 1.5
"""Workers publish once a second: before this time the first reading would miss some."""

AGAIN_SECONDS_MAX: Final = 10.0
CLOSE_SECONDS: Final = 5.0
_POLL_SECONDS: Final = 0.1
_CLIENT_ID: Final = "forebay-admission"

_log = structlog.get_logger("forebay.producer")


class LoadSource(Protocol):
    """Reads a pool's load. One thread."""

    def listen(self, seconds: float) -> None:
        """Processes the next announcement, or waits for one."""
        ...

    def read(self) -> Reading | None:
        """The load now; None until all workers had the time to announce themselves. Raises ``KafkaException`` and
        ``ForebayError``."""
        ...

    def close(self) -> None:
        """Closes the clients."""
        ...


class KafkaLoadSource:
    """Reads the load from the brokers. Connects in the constructor, which raises ``ForebayError``; must be closed."""

    def __init__(self, connection: KafkaConnection, *, pool: Pool, times: TierTimes, clock: Clock) -> None:
        self._pool = pool
        self._times = times
        self._clock = clock
        admin = make_admin(connection, client_id=_CLIENT_ID)
        topic = pool.coordination
        counts = require_topics(admin, [topic], connection=connection, pool=pool.name, operation=Operation.READ)
        self._backlog = BacklogReader(connection, pool=pool, clock=clock)
        self._announcements = AnnouncementReader(connection, clock=clock, client_id=_CLIENT_ID)
        self._announcements.follow(pool, [(topic, number) for number in range(counts[topic])])
        self._arrivals = {tier: CounterRate() for tier in TIERS}

    def listen(self, seconds: float) -> None:
        self._announcements.poll(seconds)

    def read(self) -> Reading | None:
        sample = self._backlog.sample()
        records = self._records(sample)
        if self._announcements.listened_seconds(self._pool) < LISTEN_SECONDS:
            return None
        workers = self._announcements.workers(self._pool)
        agreement = agreement_of(workers)
        return Reading(
            at=self._clock.monotonic(),
            load=load_of_pool(workers, records),
            times=self._times if agreement is None else agreement.times,
        )

    def close(self) -> None:
        self._announcements.close()
        self._backlog.close()

    def _records(self, sample: Sample) -> dict[Tier, TierRecords]:
        """Due retries are in the workers' lanes; those that are not due do not delay a new request yet."""
        return {
            tier: TierRecords(
                unfinished=sum(state.waiting for state in sample.tiers[tier]),
                running=sum(min(state.waiting, state.running) for state in sample.tiers[tier]),
                arriving_per_second=self._arrivals[tier].per_second(
                    sample.at_seconds, sum(state.end for state in sample.tiers[tier])
                ),
            )
            for tier in TIERS
        }


class LoadFollower:
    """The thread. ``make_source`` is called in it, again after each failure."""

    def __init__(
        self, make_source: Callable[[], LoadSource], *, update: Callable[[Reading], None], clock: Clock, pool: str
    ) -> None:
        self._make_source = make_source
        self._update = update
        self._clock = clock
        self._pool = pool
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="forebay-admission", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def close(self) -> None:
        """Ends the thread; abandons one that is blocked for too long."""
        self._stopping.set()
        self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        again_seconds = REFRESH_SECONDS
        has_told = False
        while not self._stopping.is_set():
            try:
                self._follow()
                return
            except (KafkaException, ForebayError) as error:
                if not has_told:
                    has_told = True
                    _log.warning(
                        "admission cannot read the pool's load; until it can, it decides as without workers",
                        pool=self._pool,
                        error=str(error),
                    )
            except Exception as error:  # noqa: BLE001 - whatever it was, submits go on, and the next reading may succeed
                _log.error("admission: reading the pool's load failed", pool=self._pool, exc_info=error)
            self._stopping.wait(again_seconds)
            again_seconds = min(AGAIN_SECONDS_MAX, 2 * again_seconds)

    def _follow(self) -> None:
        source = self._make_source()
        try:
            read_at = float("-inf")
            while not self._stopping.is_set():
                source.listen(_POLL_SECONDS)
                if self._clock.monotonic() - read_at >= REFRESH_SECONDS:
                    read_at = self._clock.monotonic()
                    reading = source.read()
                    if reading is not None:
                        self._update(reading)
        finally:
            source.close()
