"""The input of a plan: each tier's load over a day, one engine's capacity, and numbers that the user fixed. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from forebay_producer.planning.waits import DAY_SECONDS, Flow
from forebay_schemas.contract.tiers import WAIT_SHARE, Tier
from forebay_schemas.errors import UsageError

ALLOWED_SHARE: Final = WAIT_SHARE
"""Share of its deadline that a request may wait: of the defaults 3 s in high, 18 s in mid, 14 h in low."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A tier's requests. ``per_second``: the day's mean; ``peak_factor`` times that for ``peak_seconds`` a day.
    ``tolerated_seconds``: the tolerated wait; by default `ALLOWED_SHARE` of the deadline."""

    per_second: float
    peak_factor: float = 1.0
    peak_seconds: float = 0.0
    deadline_seconds: float
    tolerated_seconds: float | None = None

    @property
    def allowed_wait_seconds(self) -> float:
        shared = ALLOWED_SHARE * self.deadline_seconds
        return shared if self.tolerated_seconds is None else self.tolerated_seconds

    @property
    def peak_per_second(self) -> float:
        return self.per_second * (self.peak_factor if self.peak_seconds else 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """One engine: ``limit_requests`` at once, each in ``seconds`` (mean; ``cv``: deviation over mean)."""

    seconds: float
    limit_requests: int
    cv: float = 1.0

    @property
    def per_second(self) -> float:
        return self.limit_requests / self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """All input of a plan. ``engines``, ``partitions``: given numbers; None: as many as needed."""

    loads: Mapping[Tier, Load]
    service: Service
    engines: int | None = None
    partitions: int | None = None
    drain_seconds: float | None = None
    request_bytes: int = 4_000
    result_bytes: int = 2_000
    replication: int = 3


def flow_of(tier: Tier, load: Load) -> Flow:
    """A tier's day. Raises ``UsageError`` for a peak with more requests than the day has."""
    peak, seconds = load.peak_per_second, min(load.peak_seconds, DAY_SECONDS)
    rest = load.per_second * DAY_SECONDS - peak * seconds
    if rest < -1e-9 * load.per_second * DAY_SECONDS:
        raise UsageError(
            "--peak",
            f"{tier}: {load.peak_factor:g} times the mean for {seconds / 3600:.1f} h is more than the whole day has",
            fix="give the mean of a whole day with --rate, the peak included",
        )
    rest_seconds = DAY_SECONDS - seconds
    return Flow(
        peak_per_second=peak,
        peak_seconds=seconds,
        rest_per_second=max(0.0, rest) / rest_seconds if rest_seconds else peak,
    )
