"""The exporter: a thread that reads the pools every few seconds and keeps the last readings.

An unreachable broker, a missing topic or a denial never ends the process: the pool is not up, and named in /readyz.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import structlog
from confluent_kafka import KafkaException

from forebay_producer.exporter.figures import PoolFigures, figures_of
from forebay_producer.exporter.reader import Brokers, PoolReader
from forebay_schemas.clock import Clock
from forebay_schemas.contract.coordination import GONE_SECONDS
from forebay_schemas.contract.tier_agreement import Agreement, difference
from forebay_schemas.contract.tiers import TierTimes
from forebay_schemas.contract.topics import Pool
from forebay_schemas.errors import BrokerUnreachableError, ForebayError
from forebay_schemas.kafka.certificates import certificate_ends
from forebay_schemas.kafka.connection import KafkaConnection

REFRESH_SECONDS: Final = 3.0
LISTEN_SECONDS: Final = 3.0
"""Workers announce themselves once a second: a first reading before this time would miss some."""

OLD_SECONDS: Final = 30.0
"""A pool whose last reading is older is not up: the reading thread has ended, or is stuck."""

STUCK_SECONDS: Final = 120.0
"""Silence of the reading thread after which /livez fails: an unreachable broker costs each pool at most ten seconds."""

_POLL_SECONDS: Final = 0.2
_JOIN_SECONDS: Final = 12.0

log = structlog.get_logger("forebay.exporter")


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolState:
    """The state of a pool. ``trouble``: why the last reading failed, or why there is none yet; None when it is up.

    ``figures`` and ``read_at`` (monotonic seconds): of the last successful reading.
    """

    trouble: str | None
    figures: PoolFigures | None = None
    read_at: float | None = None


class Exporter:
    """Reads the pools in its own thread, until `stop`."""

    def __init__(self, connection: KafkaConnection, *, pools: Mapping[Pool, TierTimes], clock: Clock) -> None:
        """Raises ``UsageError`` for invalid client properties. Connects lazily.

        ``pools``: with the deadlines and waits that apply until a worker announces its own.
        """
        self._tier_times = dict(pools)
        self._clock = clock
        self.certificate_ends: Final = certificate_ends(connection.properties)
        self._brokers = Brokers(connection, clock=clock)
        self._readers = [PoolReader(self._brokers, pool=pool) for pool in pools]
        self._states = {pool.name: PoolState(trouble="not read yet") for pool in pools}
        self._heartbeat = clock.monotonic()
        self._has_told_of_failure = False
        self._differing: dict[str, frozenset[str]] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="exporter", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stops the thread and closes the clients; abandons a thread that is blocked for too long."""
        self._stopping.set()
        self._thread.join(_JOIN_SECONDS)
        if not self._thread.is_alive():
            for reader in self._readers:
                reader.close()
            self._brokers.close()

    def states(self) -> Mapping[str, PoolState]:
        """The state of each pool, by name. From any thread."""
        now = self._clock.monotonic()
        return {name: _as_of(state, now) for name, state in self._states.copy().items()}

    def not_alive(self) -> list[str]:
        """What is wrong with this process. From any thread."""
        silent_seconds = self._clock.monotonic() - self._heartbeat
        return [f"nothing was read for {silent_seconds:.0f} s"] if silent_seconds > STUCK_SECONDS else []

    def not_ready(self) -> list[str]:
        """What is wrong with the pools. From any thread."""
        return [f"pool {name}: {state.trouble}" for name, state in self.states().items() if state.trouble is not None]

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._heartbeat = self._clock.monotonic()
            self._refresh()
            again_at = self._clock.monotonic() + REFRESH_SECONDS
            while self._clock.monotonic() < again_at and not self._stopping.is_set():
                self._listen()

    def _listen(self) -> None:
        try:
            self._brokers.followed.poll(_POLL_SECONDS)
        except Exception as error:  # whatever it was, the next record is another one
            if not self._has_told_of_failure:
                self._has_told_of_failure = True
                log.error("listening failed; going on", error=str(error), exc_info=error)
            self._stopping.wait(_POLL_SECONDS)

    def _refresh(self) -> None:
        unreachable: str | None = None
        for reader in self._readers:
            if self._stopping.is_set():
                return
            if unreachable is None:
                unreachable = self._read(reader)
            else:
                # It would wait as long for the same brokers.
                self._failed(reader.pool, unreachable)

    def _read(self, reader: PoolReader) -> str | None:
        """Reads a pool. Returns the error when the brokers are unreachable."""
        pool, before = reader.pool, self._states[reader.pool.name]
        try:
            state = self._state(reader, before)
        except BrokerUnreachableError as error:
            self._failed(pool, str(error))
            return str(error)
        except (ForebayError, KafkaException) as error:
            self._failed(pool, str(error))
            return None
        except Exception as error:  # whatever it was, the other pools are to be read, and this one again
            log.error("reading failed", pool=pool.name, error=str(error), exc_info=error)
            self._failed(pool, f"reading failed: {error!r}")
            return None
        self._states[pool.name] = state
        if before.trouble is not None and state.trouble is None:
            log.info("pool is read", pool=pool.name)
        return None

    def _state(self, reader: PoolReader, before: PoolState) -> PoolState:
        """Reads the pool's state; raises what `PoolReader.read` raises."""
        pool, followed = reader.pool, self._brokers.followed
        tiers, dead_lettered = reader.read()
        listened_seconds = followed.listened_seconds(pool)
        if listened_seconds < LISTEN_SECONDS:
            return replace(before, trouble="listening for the workers")
        figures = figures_of(
            tiers,
            dead_lettered=dead_lettered,
            workers=followed.workers(pool),
            heard_all=listened_seconds >= GONE_SECONDS,
            before=before.figures,
            times=self._tier_times[pool],
        )
        self._tell_who_differs(pool, figures.agreement)
        return PoolState(trouble=None, figures=figures, read_at=self._clock.monotonic())

    def _tell_who_differs(self, pool: Pool, agreement: Agreement | None) -> None:
        differing = {} if agreement is None else agreement.differing
        if agreement is not None and differing.keys() - self._differing.get(pool.name, frozenset()):
            log.warning(
                "workers of a pool have different deadlines or waits; those of the one that started last count",
                pool=pool.name,
                counts=agreement.worker,
                differs={worker: difference(times, agreement.times) for worker, times in differing.items()},
                fix="give all workers of the pool the same FOREBAY_TIER_TTL_MS and FOREBAY_TIER_WAIT_MS",
            )
        self._differing[pool.name] = frozenset(differing)

    def _failed(self, pool: Pool, trouble: str) -> None:
        before = self._states[pool.name]
        if before.trouble != trouble:
            log.warning("pool cannot be read", pool=pool.name, error=trouble)
        self._states[pool.name] = replace(before, trouble=trouble)
        self._brokers.followed.start_over(pool)


def _as_of(state: PoolState, now: float) -> PoolState:
    """The state at ``now``, with an error if its reading is too old."""
    if state.trouble is None and state.read_at is not None and now - state.read_at > OLD_SECONDS:
        return replace(
            state, trouble=f"was last read {now - state.read_at:.0f} s ago; the reading has ended or is stuck"
        )
    return state
