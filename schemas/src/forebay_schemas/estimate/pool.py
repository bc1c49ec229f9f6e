"""A pool's load and rate, from its workers' capacity records and, where they are known, its topics' offsets. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from forebay_schemas.contract.coordination import Capacity
from forebay_schemas.contract.tiers import TIERS, Tier
from forebay_schemas.contract.worker_load import WorkerLoad, load_of
from forebay_schemas.estimate.accuracy import FACTOR_MAX, FACTOR_MIN
from forebay_schemas.estimate.waits import MINIMUM_SHARES, UNCORRECTED, Correction, TierLoad, Wait, corrected, raw_waits

_SERVING: Final = "closed"
LANE_PRIOR: Final = 10
"""One large request that waits alone does not make all that arrive large."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TierRecords:
    """A tier's records by their offsets. ``unfinished``: in the request topic. ``running``: those of all its topics
    that commits list as running. ``retries``: unfinished records of the retry topics by delay in seconds.
    ``arriving_per_second``: new requests, the mean of ten seconds; None while not known."""

    unfinished: int = 0
    running: int = 0
    retries: Mapping[float, int] = field(default_factory=dict)
    arriving_per_second: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolLoad:
    """What the pool has to do and can do.

    ``rate``: requests a second at the workers' limits; 0 without a worker, None before the first answer.
    ``cost_seconds``: pool seconds of one request of each tier. ``service_seconds``: from start to end, by tier.
    """

    workers: int
    serving_workers: int
    rate: float | None
    tiers: Mapping[Tier, TierLoad]
    cost_seconds: Mapping[Tier, float]
    service_seconds: Mapping[Tier, float]
    corrections: Mapping[Tier, Correction]
    guaranteed_shares: Mapping[Tier, float]

    def waits(self) -> dict[Tier, Wait]:
        """The wait of a new request of each tier; empty while the rate is not known, or nobody serves."""
        if not self.rate:
            return {}
        raw = raw_waits(self.tiers, minimum_shares=self.guaranteed_shares)
        return {tier: corrected(raw[tier], self.corrections.get(tier, UNCORRECTED)) for tier in TIERS}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Worker:
    """``per_second``: requests that it can serve in a second; 0 while unknown or draining."""

    capacity: Capacity
    load: WorkerLoad
    per_second: float


def serving_rate(workers: Iterable[Capacity]) -> float | None:
    """Requests a second that the workers can serve at their limits; 0 without workers, None before the first answer.

    By Little's law: a worker's share divided by its service time. A worker without an answer counts as fast as the
    others.
    """
    working = [each for each in workers if not each.draining]
    times = [each.service_seconds for each in working if each.service_seconds]
    if not working:
        return 0.0
    if not times:
        return None
    mean_seconds = sum(times) / len(times)
    return sum(each.share_requests / (each.service_seconds or mean_seconds) for each in working)


def load_of_pool(workers: Collection[Capacity], records: Mapping[Tier, TierRecords] | None) -> PoolLoad:
    """The load of a pool. ``records``: None where offsets were not read; then unread records do not count."""
    rate = serving_rate(workers)
    of_workers = _workers(workers)
    # Before the first answer one request is one second of a pool that serves one a second: only sums of requests.
    all_per_second = rate or 1.0
    mean_service = _mean([(each.capacity.service_seconds, each.per_second) for each in of_workers])
    tiers: dict[Tier, TierLoad] = {}
    costs: dict[Tier, float] = {}
    services: dict[Tier, float] = {}
    for tier in TIERS:
        service = _mean([(each.load.service_seconds.get(tier), each.per_second) for each in of_workers])
        if service is None:
            service = mean_service
        if service is not None:
            services[tier] = service
        in_lanes = sum(each.load.waiting_requests.get(tier, 0) for each in of_workers)
        # A worker's second is as much of a pool's second as its rate is of the pool's.
        work = sum(each.load.work_seconds.get(tier, 0.0) * each.per_second for each in of_workers) / all_per_second
        cost = _cost_seconds(in_lanes, work, service, mean_service, all_per_second)
        costs[tier] = cost
        if in_lanes and not work:
            work = in_lanes * cost
        arriving = sum(each.load.arriving.get(tier, 0.0) * each.per_second for each in of_workers) / all_per_second
        open_slots = sum(
            each.load.open_slots.get(tier, 0)
            for each in of_workers
            if not each.capacity.draining and each.load.breaker.state == _SERVING
        )
        unread = 0
        retries: tuple[tuple[float, float], ...] = ()
        if records is not None:
            known = records.get(tier, TierRecords())
            running = max(known.running, sum(each.load.running_requests.get(tier, 0) for each in of_workers))
            unread, retries = _unread(known, held=in_lanes + running, cost_seconds=cost)
            if known.arriving_per_second is not None:
                arriving = known.arriving_per_second * cost
        tiers[tier] = TierLoad(
            waiting_requests=in_lanes + unread,
            work_seconds=work + unread * cost,
            request_seconds=cost,
            arriving=arriving,
            retries=retries,
            open_slots=open_slots,
        )
    return PoolLoad(
        workers=len(workers),
        serving_workers=sum(not each.capacity.draining and each.load.breaker.state == _SERVING for each in of_workers),
        rate=rate,
        tiers=tiers,
        cost_seconds=costs,
        service_seconds=services,
        corrections=_corrections(of_workers),
        # The least that any worker guarantees: a wait is rather told too long.
        guaranteed_shares={
            tier: min((each.load.guaranteed_share.get(tier, share) for each in of_workers), default=share)
            for tier, share in MINIMUM_SHARES.items()
        },
    )


def advanced(load: PoolLoad, *, seconds: float, added: Mapping[Tier, int]) -> PoolLoad:
    """The load some seconds later: the pool worked on it, and requests came.

    ``added``: requests known to have come since. Where the mean rate promises more, that counts: others send too.
    """
    done = seconds
    tiers = {}
    for tier in TIERS:
        old = load.tiers.get(tier, TierLoad())
        cost = load.cost_seconds.get(tier, 0.0)
        came = max(added.get(tier, 0) * cost, old.arriving * seconds)
        work = old.work_seconds + came
        requests = max(float(added.get(tier, 0)), came / cost if cost else 0.0) + old.waiting_requests
        taken = min(done, work)
        done -= taken
        left = (work - taken) / work if work else 1.0
        tiers[tier] = replace(old, waiting_requests=requests * left, work_seconds=work - taken)
    return replace(load, tiers=tiers)


def mixed_cost(requests: float, work_seconds: float, ended_seconds: float) -> float:
    """The mean cost of a request by those that wait and, as if ten of them waited too, by those that ended."""
    return (work_seconds + LANE_PRIOR * ended_seconds) / (requests + LANE_PRIOR)


def _workers(workers: Collection[Capacity]) -> list[_Worker]:
    times = [each.service_seconds for each in workers if each.service_seconds and not each.draining]
    mean_seconds = sum(times) / len(times) if times else None
    found = []
    for each in workers:
        seconds = each.service_seconds or mean_seconds
        serves = seconds is not None and not each.draining
        found.append(
            _Worker(
                capacity=each,
                load=load_of(each) or WorkerLoad(),
                per_second=each.share_requests / seconds if serves and seconds is not None else 0.0,
            )
        )
    return found


def _cost_seconds(
    in_lanes: int, work: float, service: float | None, mean_service: float | None, per_second: float
) -> float:
    """Pool seconds of one request of a tier: as those that ended, and as those in the lanes where these are many."""
    ended = service / mean_service / per_second if service is not None and mean_service else 1 / per_second
    if not in_lanes or not work:
        return ended
    return mixed_cost(in_lanes, work, ended)


def _unread(known: TierRecords, *, held: int, cost_seconds: float) -> tuple[int, tuple[tuple[float, float], ...]]:
    """Requests that no worker has read, and the work of retries that are not due.

    What workers hold counts first against the request topic. A retry that a worker holds is due and in a lane.
    """
    held_retries = max(0, held - known.unfinished)
    retries = []
    for delay, number in sorted(known.retries.items()):
        left = max(0, number - held_retries)
        held_retries -= number - left
        if left:
            retries.append((delay, left * cost_seconds))
    return max(0, known.unfinished - held), tuple(retries)


def _corrections(workers: list[_Worker]) -> dict[Tier, Correction]:
    """The workers' corrections, each weighted by its starts."""
    found = {}
    for tier in TIERS:
        said = [each.load.wait_correction[tier] for each in workers if tier in each.load.wait_correction]
        starts = sum(each[0] for each in said)
        if starts:
            found[tier] = Correction(
                starts=starts,
                p50=_bounded(sum(each[0] * each[1] for each in said) / starts),
                p90=_bounded(sum(each[0] * each[2] for each in said) / starts),
            )
    return found


def _bounded(factor: float) -> float:
    return min(FACTOR_MAX, max(FACTOR_MIN, factor))


def _mean(pairs: Iterable[tuple[float | None, float]]) -> float | None:
    """The weighted mean of the known values."""
    known = [(value, weight) for value, weight in pairs if value is not None and weight > 0]
    total = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / total if total else None
