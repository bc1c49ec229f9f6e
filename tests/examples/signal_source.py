"""A signal source of one's own, as ARCHITECTURE.md explains it: a file that an engine writes its figures to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec

from forebay_schemas.clock import Clock
from forebay_worker.signals.readings import EngineReading

PERIOD_SECONDS = 0.01


class _Figures(msgspec.Struct):
    running: float
    waiting: float


class FigureFile:
    """Reads ``{"running": 8, "waiting": 2}`` again and again. Implements `Source[EngineReading]`."""

    def __init__(self, path: Path, *, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self.name = str(path)

    async def follow(
        self, *, received: Callable[[EngineReading, str | None], None], failed: Callable[[str], None]
    ) -> None:
        """Runs until it is cancelled."""
        while True:
            try:
                figures = msgspec.json.decode(await asyncio.to_thread(self._path.read_bytes), type=_Figures)
            except (OSError, msgspec.MsgspecError) as error:
                failed(str(error))
            else:
                at = self._clock.monotonic()
                received(EngineReading(at=at, running_requests=figures.running, waiting_requests=figures.waiting), None)
            await asyncio.sleep(PERIOD_SECONDS)
