"""Polls each source of signals once a second and keeps its last reading with the age. On the event loop, which it never
blocks; sources do not wait for each other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Final, Generic, Literal, Protocol, TypeVar

import aiohttp
import structlog
from yarl import URL

from forebay_schemas.clock import Clock
from forebay_worker.signals.engine_metrics import read_engine_metrics
from forebay_worker.signals.fetch import PERIOD_SECONDS, fetch
from forebay_worker.signals.readings import EngineReading, GpuReading, SignalAbsentError, SignalError

STALE_SECONDS: Final = 5.0
"""Older readings do not count: the operating point moves within seconds."""

State = Literal["ok", "missing", "stale", "off"]
"""missing: it fails, or has never given a reading; stale: its readings have stopped; off: it is not wanted, or cannot
exist here."""

log = structlog.get_logger("forebay.signals")

_Reading = TypeVar("_Reading", bound=EngineReading | GpuReading)
_Said = TypeVar("_Said", covariant=True)


class Source(Protocol[_Said]):
    """A source of readings: `EngineMetrics`, `GpuProcess`, `PrometheusGpu`."""

    @property
    def name(self) -> str:
        """For the log and /status."""
        ...

    async def follow(self, *, received: Callable[[_Said, str | None], None], failed: Callable[[str], None]) -> None:
        """Runs until it is cancelled, and then frees its resources.

        ``received`` gets each reading and the errors in it; ``failed`` gets the reason for a missing reading. Neither
        may raise. Raises ``SignalAbsentError`` if there is nothing to follow, now or later.
        """
        ...


class EngineMetrics:
    """The engine's metrics page. ``url``: complete, such as http://127.0.0.1:8000/metrics. ``prefix``: of its names."""

    def __init__(self, *, url: str, prefix: str, clock: Clock) -> None:
        self._url = URL(url)
        self._prefix = prefix
        self._clock = clock
        self.name = str(self._url.with_user(None).with_query(None))

    async def follow(
        self, *, received: Callable[[EngineReading, str | None], None], failed: Callable[[str], None]
    ) -> None:
        """See `Source`."""
        async with aiohttp.ClientSession() as session:
            while True:
                started = self._clock.monotonic()
                try:
                    reply = await fetch(session, self._url)
                    page = reply.body.decode(errors="replace")
                    received(read_engine_metrics(page, at=started, prefix=self._prefix), None)
                except SignalError as error:
                    failed(str(error))
                await asyncio.sleep(max(0.0, PERIOD_SECONDS - (self._clock.monotonic() - started)))


class _Kept(Generic[_Reading]):
    """A source's last reading, and its last state in the log."""

    def __init__(self, *, signal: str, source: Source[_Reading] | None, since: float) -> None:
        self._signal = signal
        self._source = source
        self.since = since
        self._reading: _Reading | None = None
        self._error: str | None = None
        self._called_missing = False
        self._is_absent = source is None

    async def follow(self) -> None:
        """Runs until it is cancelled."""
        while self._source is not None and not self._is_absent:
            try:
                await self._source.follow(received=self._received, failed=self._failed)
            except SignalAbsentError as error:
                self._is_absent, self._error = True, str(error)
                log.info("signal is not here", signal=self._signal, source=self._source.name, error=self._error)
                return
            except Exception as error:  # noqa: BLE001 - no bug of a source's may take more than its own signal
                self._failed(f"{type(error).__name__}: {error}")
            await asyncio.sleep(PERIOD_SECONDS)

    def latest(self, now: float) -> _Reading | None:
        reading = self._reading
        return reading if reading is not None and now - reading.at <= STALE_SECONDS else None

    def note(self, now: float) -> None:
        """Logs once when the source goes missing and once when it is back."""
        if self._source is None or self._is_absent:
            return
        present = self.latest(now) is not None
        if present and self._called_missing:
            self._called_missing = False
            log.info("signal is back", signal=self._signal, source=self._source.name)
        elif not present and not self._called_missing and (self._error or now - self.since > STALE_SECONDS):
            self._called_missing = True
            log.warning(
                "signal is missing; pacing goes on without it",
                signal=self._signal,
                source=self._source.name,
                error=self._error or "it says nothing",
            )

    def describe(self, now: float) -> dict[str, Any]:
        values = {} if self._reading is None else asdict(self._reading)
        at = values.pop("at", None)
        return {
            "state": self._state(now),
            "source": None if self._source is None else self._source.name,
            "age_seconds": None if at is None else round(now - at, 3),
            "error": self._error,
            "values": values,
        }

    def _state(self, now: float) -> State:
        if self._is_absent:
            return "off"
        if self.latest(now) is not None:
            return "ok"
        return "missing" if self._reading is None or self._error is not None else "stale"

    def _received(self, reading: _Reading, problem: str | None) -> None:
        self._reading, self._error = reading, problem

    def _failed(self, error: str) -> None:
        self._error = error


class Signals(Protocol):
    """Readings of engine and GPU. All but `start` and `stop`: at any time, in the event loop's thread."""

    async def start(self) -> None:
        """Starts to poll; waits for nothing. Called once."""

    async def stop(self) -> None:
        """Ends connections and processes; takes 2 s at most. Called once, also without `start`."""

    def latest_engine(self, now: float) -> EngineReading | None:
        """The last reading, unless it is older than STALE_SECONDS. ``now``: monotonic seconds."""

    def latest_gpu(self, now: float) -> GpuReading | None:
        """The last reading, unless it is older than STALE_SECONDS. ``now``: monotonic seconds."""

    def sources(self, now: float) -> dict[str, dict[str, Any]]:
        """For /status, by signal (engine, gpu): ``state`` (see `State`), ``source``, ``age_seconds`` of the last
        reading, ``error`` since then or in it, and its ``values``, even if they are too old to be used."""
        ...


class SignalPoller:
    """`Signals` from sources. ``engine`` and ``gpu``: the sources of their readings; None: off."""

    def __init__(self, *, engine: Source[EngineReading] | None, gpu: Source[GpuReading] | None, clock: Clock) -> None:
        now = clock.monotonic()
        self._clock = clock
        self._engine = _Kept(signal="engine", source=engine, since=now)
        self._gpu = _Kept(signal="gpu", source=gpu, since=now)
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        self._engine.since = self._gpu.since = self._clock.monotonic()
        self._tasks = [
            asyncio.create_task(self._engine.follow(), name="signals-engine"),
            asyncio.create_task(self._gpu.follow(), name="signals-gpu"),
            asyncio.create_task(self._note(), name="signals-note"),
        ]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def latest_engine(self, now: float) -> EngineReading | None:
        return self._engine.latest(now)

    def latest_gpu(self, now: float) -> GpuReading | None:
        return self._gpu.latest(now)

    def sources(self, now: float) -> dict[str, dict[str, Any]]:
        return {"engine": self._engine.describe(now), "gpu": self._gpu.describe(now)}

    async def _note(self) -> None:
        while True:
            now = self._clock.monotonic()
            self._engine.note(now)
            self._gpu.note(now)
            await asyncio.sleep(PERIOD_SECONDS / 4)
