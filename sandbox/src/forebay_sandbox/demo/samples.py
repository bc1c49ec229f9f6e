"""Samples of workers and engine, twice a second during the demo. `ask` talks HTTP on the caller's event loop.

There is no GPU: the share of time that the simulated engine spends in its steps stands for its utilisation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from forebay_schemas.contract.tiers import TIERS, Tier

_BUSY: Final = "sandbox:busy_seconds_total"
_ANSWER_SECONDS_MAX: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """All workers together, and the engine they share, at a moment since the traffic's start."""

    at_seconds: float
    limit_requests: int
    in_flight: dict[Tier, int]
    engine_busy_share: float
    """Since the sample before, 0 to 1."""

    @property
    def in_flight_requests(self) -> int:
        return sum(self.in_flight.values())


NOTHING_YET: Final = Sample(at_seconds=0.0, limit_requests=0, in_flight=dict.fromkeys(TIERS, 0), engine_busy_share=0.0)


class Sampler:
    """Asks each worker's /status and the engine's /metrics; what does not answer counts as nothing."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        *,
        worker_urls: Sequence[str],
        engine_url: str,
        now: Callable[[], float],
    ) -> None:
        """``now`` gives seconds since the traffic's start."""
        self._session = session
        self._worker_urls = worker_urls
        self._engine_url = engine_url
        self._now = now
        self._busy: tuple[float, float] | None = None

    async def ask(self) -> Sample:
        limit, in_flight = 0, dict.fromkeys(TIERS, 0)
        for url in self._worker_urls:
            status = await self._json(f"{url}/status")
            if status is None:
                continue
            limit += status["limit_requests"]
            for tier in TIERS:
                in_flight[tier] += status["tiers"][tier]["running"]
        return Sample(
            at_seconds=self._now(),
            limit_requests=limit,
            in_flight=in_flight,
            engine_busy_share=await self._busy_share(),
        )

    async def _busy_share(self) -> float:
        text = await self._text(f"{self._engine_url}/metrics")
        if text is None:
            return 0.0
        seconds = next(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == _BUSY
        )
        before, self._busy = self._busy, (self._now(), seconds)
        if before is None:
            return 0.0
        passed = self._busy[0] - before[0]
        # A step counts when it ends, so that a short time may hold more than itself.
        return min(1.0, (seconds - before[1]) / passed) if passed > 0 else 0.0

    async def _json(self, url: str) -> dict[str, Any] | None:
        try:
            async with self._session.get(url, timeout=_PATIENCE) as response:
                document: dict[str, Any] = await response.json()
                return document
        except (aiohttp.ClientError, TimeoutError):
            return None

    async def _text(self, url: str) -> str | None:
        try:
            async with self._session.get(url, timeout=_PATIENCE) as response:
                return await response.text()
        except (aiohttp.ClientError, TimeoutError):
            return None


_PATIENCE: Final = aiohttp.ClientTimeout(total=_ANSWER_SECONDS_MAX)
