"""The exporter's figures of a pool, computed from readings: backlog, capacity, and how close each tier is to its
deadlines. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from forebay_producer.cluster.backlog import PartitionState
from forebay_schemas.contract.coordination import Capacity
from forebay_schemas.contract.tier_agreement import Agreement, agreement_of
from forebay_schemas.contract.tiers import TIERS, Tier, TierTimes
from forebay_schemas.estimate.pool import TierRecords, load_of_pool, serving_rate
from forebay_schemas.estimate.waits import Wait

RISK_MAX: Final = 100.0
"""Bound for autoscalers, which cannot use infinity, and never need a hundred times what runs."""


RATIO_MAX: Final = 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Age:
    """The age of a partition's oldest unfinished request.

    ``seconds``: since its record was written; ``lived_seconds``: since its first enqueue; ``ttl_seconds``: from there
    to its own deadline, None without one: then the default of ``expedited_tier`` applies, or of its tier.
    """

    seconds: float
    lived_seconds: float
    ttl_seconds: float | None
    expedited_tier: Tier | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TierReading:
    """A tier's partitions. ``ages``: of those with unfinished requests of known age. ``retry_delays_seconds``: of each
    entry of ``retries``; without any, all are due. ``arriving_per_second``: new requests, the mean of ten seconds; None
    while unknown."""

    requests: tuple[PartitionState, ...]
    retries: tuple[PartitionState, ...]
    ages: tuple[Age, ...]
    retry_delays_seconds: tuple[float, ...] = ()
    arriving_per_second: float | None = None

    @property
    def records(self) -> TierRecords:
        """The input of the estimate."""
        retries: dict[float, int] = {}
        delays = self.retry_delays_seconds or (0.0,) * len(self.retries)
        for state, delay in zip(self.retries, delays, strict=True):
            retries[delay] = retries.get(delay, 0) + max(0, state.waiting - state.running)
        return TierRecords(
            unfinished=sum(state.waiting for state in self.requests),
            running=sum(min(state.waiting, state.running) for state in self.requests),
            retries=retries,
            arriving_per_second=self.arriving_per_second,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TierFigures:
    """``wait_seconds``: until a new request would start; None while unknown, infinite without a worker. ``risk``: that
    wait divided by the allowed one, 0 to `RISK_MAX`. ``oldest_age_ratio``: the age of an unfinished request divided by
    the time that its own deadline allows, the largest of the partitions' oldest, 0 to `RATIO_MAX`."""

    backlog_records: int
    retry_backlog_records: int
    oldest_age_seconds: float
    oldest_age_ratio: float
    enqueued: int
    dequeued: int
    partitions: int
    wait_seconds: float | None
    risk: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolFigures:
    """``rate``: requests a second that the workers can serve at their limits; None while unknown. ``times``: the pool's
    deadlines and waits. ``agreement``: as its workers announce them, None without any."""

    tiers: Mapping[Tier, TierFigures]
    dead_lettered: int
    workers: int
    limit_requests: int
    rate: float | None
    times: TierTimes
    agreement: Agreement | None


def figures_of(
    tiers: Mapping[Tier, TierReading],
    *,
    dead_lettered: int,
    workers: Collection[Capacity],
    heard_all: bool,
    before: PoolFigures | None,
    times: TierTimes,
) -> PoolFigures:
    """All figures of a pool. ``workers``: the last announcement of each. ``heard_all``: whether there is no other
    worker.

    ``before``: the last figures. Counters never decrease, although a commit may name fewer finished offsets beyond it
    than the one before: Prometheus would take a small decrease for a restart from 0, and the rest for growth.
    ``times``: the deadlines and waits until a worker announces its own.
    """
    agreement = agreement_of(workers)
    if agreement is not None:
        times = agreement.times
    elif before is not None:
        times = before.times
    rate = serving_rate(workers) if workers or heard_all else None
    load = load_of_pool(workers, {tier: reading.records for tier, reading in tiers.items()})
    waits = load.waits()
    figures: dict[Tier, TierFigures] = {}
    waiting = 0.0
    for tier in TIERS:
        reading, old = tiers[tier], None if before is None else before.tiers[tier]
        enqueued = sum(state.end for state in reading.requests)
        dequeued = sum(state.done for state in reading.requests)
        # An end decreases a little when a broker without all records becomes the leader.
        made_anew = old is not None and 2 * enqueued < old.enqueued
        # A running request does not wait.
        waiting += load.tiers[tier].waiting_requests + len(load.tiers[tier].retries)
        backlog = sum(state.waiting for state in reading.requests)
        ages = reading.ages if backlog else ()
        age_seconds = max((age.seconds for age in ages), default=0.0)
        wait_seconds = _wait_seconds(waits.get(tier), waiting, rate)
        figures[tier] = TierFigures(
            backlog_records=backlog,
            retry_backlog_records=sum(state.waiting for state in reading.retries),
            oldest_age_seconds=age_seconds,
            oldest_age_ratio=max((_age_ratio(age, tier, times) for age in ages), default=0.0),
            enqueued=grown(enqueued, None if old is None else old.enqueued, made_anew=made_anew),
            dequeued=grown(dequeued, None if old is None else old.dequeued, made_anew=made_anew),
            partitions=len(reading.requests),
            wait_seconds=wait_seconds,
            # Unknown while the first requests run: the wait is at least this long.
            risk=_risk(age_seconds if wait_seconds is None else wait_seconds, times.wait_seconds(tier)),
        )
    return PoolFigures(
        tiers=figures,
        dead_lettered=grown(
            dead_lettered,
            None if before is None else before.dead_lettered,
            made_anew=before is not None and 2 * dead_lettered < before.dead_lettered,
        ),
        workers=len(workers),
        limit_requests=sum(each.share_requests for each in workers if not each.draining),
        rate=rate,
        times=times,
        agreement=agreement,
    )


def grown(now: int, before: int | None, *, made_anew: bool) -> int:
    """A counter's next value: never smaller, except for recreated topics."""
    return now if before is None or made_anew else max(now, before)


def _wait_seconds(wait: Wait | None, waiting: float, rate: float | None) -> float | None:
    if wait is not None:
        return wait.p50_seconds
    if not waiting:
        return 0.0
    return None if rate is None else math.inf


def _risk(wait_seconds: float, allowed_seconds: float) -> float:
    return min(RISK_MAX, wait_seconds / allowed_seconds)


def _age_ratio(age: Age, tier: Tier, times: TierTimes) -> float:
    ttl_seconds = age.ttl_seconds
    if ttl_seconds is None:
        ttl_seconds = times.ttl_seconds(age.expedited_tier or tier)
    return min(RATIO_MAX, age.lived_seconds / ttl_seconds) if ttl_seconds > 0 else RATIO_MAX
