"""How long requests wait for a place at the engines: by chance while there is room, else as a flood. Pure.

*By chance.* Requests come at random (Poisson) to k places, each of which takes s seconds for one. That all places are
taken has the probability C (Erlang's second formula). Then places come free k / s times a second, and while a request
of tier i waits, those before it and those of higher tiers that come meanwhile go first, so it waits on the average

    W(i) = C * s / k * (1 + cv^2) / 2 / ((1 - load of the tiers above) * (1 - load of these and its own))

exact for exponential service times (cv 1), where the last factor is 1; for others the factor is the one that is exact
with one place (Pollaczek and Khinchine) and taken for several. Loads are shares of what all places can do. Who waits at
all waits about exponentially long, hence the P95.

*As a flood.* Where more comes than can be done, chance matters little: requests are a liquid that flows in by the rates
of the day, and out by what the engines do, highest tier first.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from forebay_schemas.contract.tiers import TIERS, Tier

DAY_SECONDS: Final = 86_400.0
PIECES: Final = 150
"""Pieces of each part of the day with constant rates."""

_LATE_SHARE: Final = 0.05
_FORGOTTEN_DEVIATIONS: Final = 12.0
_NEVER: Final = 1e18


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """A tier's rate over a day: the peak comes first, and all tiers' at once."""

    peak_per_second: float
    peak_seconds: float
    rest_per_second: float

    def per_second(self, at_seconds: float) -> float:
        return self.peak_per_second if at_seconds < self.peak_seconds else self.rest_per_second


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Waits for a place at an engine, in seconds."""

    mean_seconds: float
    p95_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Flood:
    """``wait_seconds``: the longest wait; ``drained_seconds``: time after the tier's peak until nothing waits, None
    when the day is too short; ``backlog_requests``: the most that wait."""

    wait_seconds: float
    drained_seconds: float | None
    backlog_requests: float


def all_busy(places: int, erlangs: float) -> float:
    """Erlang's second formula: the probability that all places are taken; 1 when the load is at least the places."""
    if erlangs >= places:
        return 1.0
    if erlangs <= 0:
        return 0.0
    # Erlang's first formula by its recursion, upside down: no factorial can overflow. What it begins with is forgotten
    # over twelve deviations (to exp(-72)), so that a hundred million places take no longer than ten thousand.
    begin = max(0, math.floor(erlangs - _FORGOTTEN_DEVIATIONS * math.sqrt(erlangs)))
    inverse = 1 / (1 - begin / erlangs)
    for taken in range(begin + 1, places + 1):
        inverse = 1 + inverse * taken / erlangs
        if inverse > _NEVER:
            return 0.0
    lost = 1 / inverse
    return lost / (1 - erlangs / places * (1 - lost))


def waits(
    *, places: int, service_seconds: float, service_cv: float, per_second: Sequence[float], is_flooded: bool = False
) -> list[Wait | None]:
    """The wait of each tier, most urgent first; None where its load and that of the tiers above exceed the capacity.

    ``is_flooded``: requests of a lower tier always wait, so that no place is ever free.
    """
    total = sum(per_second) * service_seconds
    busy = 1.0 if is_flooded else all_busy(places, total)
    spread = (1 + service_cv**2) / 2
    found: list[Wait | None] = []
    above = 0.0
    for rate in per_second:
        own = above + rate * service_seconds / places
        if own >= 1:
            found.append(None)
        else:
            of_those_who_wait = service_seconds / places * spread / ((1 - above) * (1 - own))
            late = of_those_who_wait * math.log(busy / _LATE_SHARE) if busy > _LATE_SHARE else 0.0
            found.append(Wait(mean_seconds=busy * of_those_who_wait, p95_seconds=late))
        above = own
    return found


def floods(flows: Mapping[Tier, Flow], *, done_per_second: float) -> dict[Tier, Flood]:
    """The floods of a day that begins with the peaks, with empty queues."""
    times = _times(flows)
    arrived: dict[Tier, list[float]] = {tier: [0.0] for tier in flows}
    served: dict[Tier, list[float]] = {tier: [0.0] for tier in flows}
    for begin, end in itertools.pairwise(times):
        left = done_per_second * (end - begin)
        for tier in TIERS:
            if tier not in flows:
                continue
            came = arrived[tier][-1] + flows[tier].per_second(begin) * (end - begin)
            takes = min(left, came - served[tier][-1])
            left -= takes
            arrived[tier].append(came)
            served[tier].append(served[tier][-1] + takes)
    return {tier: _flood(times, arrived[tier], served[tier], peak_seconds=flows[tier].peak_seconds) for tier in flows}


def _times(flows: Mapping[Tier, Flow]) -> list[float]:
    ends = sorted({min(DAY_SECONDS, flow.peak_seconds) for flow in flows.values()} | {DAY_SECONDS})
    times = [0.0]
    for end in ends:
        begin = times[-1]
        if end > begin:
            # Finer at first: a short peak drains soon after its end.
            times += [begin + (end - begin) * (piece / PIECES) ** 2 for piece in range(1, PIECES + 1)]
    return times


def _flood(times: Sequence[float], arrived: Sequence[float], served: Sequence[float], *, peak_seconds: float) -> Flood:
    tiny = 1e-6 * max(1.0, arrived[-1])
    longest = 0.0
    at = 0
    for begin, count in zip(times, arrived, strict=True):
        while at < len(served) - 1 and served[at] < count - tiny:
            at += 1
        if served[at] < count - tiny:
            longest = math.inf
            break
        # The moment of its service lies within a piece.
        moment = times[at]
        if at and served[at] > served[at - 1]:
            part = (count - served[at - 1]) / (served[at] - served[at - 1])
            moment = times[at - 1] + min(1.0, max(0.0, part)) * (times[at] - times[at - 1])
        longest = max(longest, moment - begin)
    backlogs = [came - done for came, done in zip(arrived, served, strict=True)]
    last = max((index for index, backlog in enumerate(backlogs) if backlog > tiny), default=None)
    drained: float | None = 0.0
    if last == len(backlogs) - 1:
        drained = None
    elif last is not None:
        # It drains within the next piece, as fast as in the one before if it fell there already.
        falls = (backlogs[last - 1] - backlogs[last]) / (times[last] - times[last - 1]) if last else 0.0
        moment = times[last] + backlogs[last] / falls if falls > 0 else times[last + 1]
        drained = max(0.0, min(moment, times[last + 1]) - peak_seconds)
    return Flood(wait_seconds=longest, drained_seconds=drained, backlog_requests=max(backlogs))
