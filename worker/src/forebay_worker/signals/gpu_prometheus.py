"""GPU utilisation by a PromQL query, for example from DCGM's exporter. I/O: two HTTP requests a second, on the event
loop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from typing import Any, Final

import aiohttp
from yarl import URL

from forebay_schemas.clock import Clock
from forebay_worker.signals.fetch import PERIOD_SECONDS, Reply, fetch
from forebay_worker.signals.gpu_check import check_percent
from forebay_worker.signals.readings import GpuReading, SignalError

SAMPLE_SECONDS_MAX: Final = 60.0
"""An older sample is refused: exporters are scraped every 15 to 30 s. By itself Prometheus looks back 5 minutes."""


class PrometheusGpu:
    """A Prometheus, or a server with its API. ``url``: without /api/v1, may have a path. ``query``: PromQL whose result
    is in percent, 0 to 100: a scalar, or a vector with an element for each device, which are averaged."""

    name = "prometheus"

    def __init__(self, *, url: str, query: str, clock: Clock) -> None:
        self._api = URL(url.rstrip("/")) / "api/v1/query"
        self._query = query
        self._clock = clock

    async def follow(
        self, *, received: Callable[[GpuReading, str | None], None], failed: Callable[[str], None]
    ) -> None:
        """Runs until it is cancelled. ``received`` gets each reading and the errors in it; ``failed`` gets the reason
        for a missing reading. Neither may raise."""
        async with aiohttp.ClientSession() as session:
            while True:
                started = self._clock.monotonic()
                try:
                    received(*await self._read(session, at=started))
                except SignalError as error:
                    failed(str(error))
                await asyncio.sleep(max(0.0, PERIOD_SECONDS - (self._clock.monotonic() - started)))

    async def _read(self, session: aiohttp.ClientSession, *, at: float) -> tuple[GpuReading, str | None]:
        reply, age_seconds = await asyncio.gather(
            self._ask(session, self._query), self._sample_age_seconds(session), return_exceptions=True
        )
        if isinstance(reply, BaseException):
            raise reply
        if isinstance(age_seconds, float) and age_seconds > SAMPLE_SECONDS_MAX:
            raise SignalError(f"FOREBAY_GPU_PROMETHEUS_QUERY: the oldest sample is {age_seconds:.0f} s old and refused")
        return read_query_result(reply.body, at=at, wall_ms=_server_ms(reply.date) or self._clock.wall_ms())

    async def _sample_age_seconds(self, session: aiohttp.ClientSession) -> float | None:
        """Age of the oldest sample by Prometheus' clock: a result has the time of the query, not of the sample.

        Known if the query is a plain selector; 0 for an expression; None for a scalar or without an answer.
        """
        try:
            reply = await self._ask(session, f"max(time() - timestamp({self._query}))")
            ages = [float(value) for _, value in _samples(reply.body)]
        except (SignalError, TypeError, ValueError):
            return None
        return max(ages, default=None)

    async def _ask(self, session: aiohttp.ClientSession, query: str) -> Reply:
        # lookback_delta is the same bound inside an expression; Prometheus 2.42 ignores it.
        return await fetch(session, self._api.with_query(query=query, lookback_delta=f"{SAMPLE_SECONDS_MAX:.0f}s"))


def read_query_result(body: bytes, *, at: float, wall_ms: int) -> tuple[GpuReading, str | None]:
    """The reading in an instant query's answer, and the refused values. Pure.

    ``at``: monotonic seconds. ``wall_ms``: epoch milliseconds by the server's clock, to detect an old answer. Raises
    ``SignalError`` if no value can be used.
    """
    samples = _samples(body)
    shares: list[float] = []
    problems: list[str] = []
    for sample in samples:
        try:
            stamp, text = sample
            age_seconds = wall_ms / 1000 - float(stamp)
            share = check_percent(float(text))
        except (TypeError, ValueError):
            problems.append(f"unreadable sample {sample!r:.80}")
            continue
        if not abs(age_seconds) <= SAMPLE_SECONDS_MAX:
            problems.append(f"a sample that is {age_seconds:.0f} s old is refused")
        elif share is None:
            problems.append(f"{text!r:.40} is no percentage and refused")
        else:
            shares.append(share)
    if not shares:
        raise SignalError("FOREBAY_GPU_PROMETHEUS_QUERY: " + ("; ".join(problems) or "the query's result is empty"))
    return GpuReading(at=at, utilisation=sum(shares) / len(shares)), "; ".join(problems) or None


def _samples(body: bytes) -> list[Any]:
    """The [time, value] pairs of the answer."""
    try:
        answer = json.loads(body)
        if answer["status"] != "success":
            raise SignalError(f"FOREBAY_GPU_PROMETHEUS_QUERY: Prometheus says: {answer.get('error')!s:.200}")
        kind, result = answer["data"]["resultType"], answer["data"]["result"]
        if kind == "scalar":
            return [result]
        if kind == "vector":
            return [element["value"] for element in result]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise SignalError("FOREBAY_GPU_PROMETHEUS_URL: the answer is none of Prometheus' query API") from None
    raise SignalError(
        f"FOREBAY_GPU_PROMETHEUS_QUERY: the result is a {kind!s:.20}; let it be an instant vector or a scalar"
    )


def _server_ms(date: str | None) -> int | None:
    """The server's time, since this machine's clock may be wrong."""
    try:
        return int(parsedate_to_datetime(date).timestamp() * 1000) if date else None
    except ValueError:
        return None
