"""Acts of people while things break: replays and discards of dead letters, cancels, expedites. Drawn from a seed. Pure.

The operator on call does one thing at a time. A replay or discard may be killed (-9) once or twice, and is run again
each time; a replay may be stopped for a while, and another such run is started meanwhile. Cancels and expedites come
from the services: they name a request by the time since it was accepted, so that some wait, some are about to start,
some run and some have ended.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from chaos.plan import Fault, FaultKind
from forebay_schemas.contract.tiers import TIERS, Tier

_FIRST_SECONDS = 8.0
_GAP_SECONDS = (6.0, 16.0)
_LAST_BEFORE_END_SECONDS = 20.0
"""Upper bound on a command that is killed or stopped and run again."""

_KILLED_SHARE = 0.5
_KILLED_TWICE_SHARE = 0.3
_KILL_SECONDS = ((0.0, 3.0), (0.0, 3.0), (9.0, 13.0))
"""At work; or, behind another that was killed, when its turn comes: 10 s later."""

_FIRST_KILL_SECONDS = (1.0,)
"""Kills of a run's first replay, also in a short run."""

_STOPPED_SHARE = 0.15
_STOPPED_SECONDS = (2.0, 14.0)

_REASONS = {
    "backend_error": 6,  # most of them pass at a replay
    "backend_timeout": 2,
    "backend_rejected": 2,  # never passes
    "unknown_biz_type": 1,  # never passes
}
_DISCARDED = ("backend_rejected", "unknown_biz_type", "undecodable")

_ORDERS_PER_SECOND = 0.8
_ORDERS_PER_FAULT = 3
_BY_COMMAND_SHARE = 0.03
_AGAIN_SHARE = 0.08
_AGES_SECONDS = {
    (0.0, 0.05): 4,  # about to start
    (0.05, 1.5): 4,  # runs, most often
    (1.5, 60.0): 3,  # waits for a backend or a retry, or has ended
}
_HOLDS_UP = frozenset({FaultKind.BACKEND, FaultKind.LINK, FaultKind.STOP_WORKER, FaultKind.KILL_WORKER})


class Handling(StrEnum):
    """A way to handle dead letters."""

    REPLAY = "replay"
    DISCARD = "discard"


class Ask(StrEnum):
    """A control action on one request."""

    CANCEL = "cancel"
    EXPEDITE = "expedite"


@dataclass(frozen=True, slots=True, kw_only=True)
class Handle:
    """One command on dead letters of a reason, and a tier if given, ``at_seconds`` after the start or at the end of the
    one before.

    ``kills_after_seconds``: it is killed this long after it has begun, and run again, once for each.
    ``stopped_seconds``: a SIGSTOP, ``stop_after_seconds`` after it has begun, halts it for this time, and another such
    command is started meanwhile.
    """

    at_seconds: float
    handling: Handling
    reason: str
    tier: Tier | None = None
    limit: int | None = None
    rate_per_second: int | None = None
    canary: int | None = None
    kills_after_seconds: tuple[float, ...] = ()
    stop_after_seconds: float | None = None
    stopped_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One cancel or expedite. ``age_seconds``: time since the meant request was accepted. ``again``: the request of the
    order before is meant instead. ``wait_seconds``: time for a worker's answer. ``by_command``: by `forebay cancel`,
    else by the client."""

    at_seconds: float
    ask: Ask
    age_seconds: float
    again: bool
    wait_seconds: float
    by_command: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Acts:
    """Each in order of time."""

    handles: tuple[Handle, ...]
    orders: tuple[Order, ...]


def make_acts(*, seed: int, seconds: float, faults: Sequence[Fault]) -> Acts:
    """The acts of a seed, a length and faults. They do not change the faults."""
    draw = random.Random(f"acts of {seed}")
    return Acts(handles=tuple(_handles(draw, seconds)), orders=tuple(_orders(draw, seconds, faults)))


def _handles(draw: random.Random, seconds: float) -> list[Handle]:
    handles: list[Handle] = []
    now = _FIRST_SECONDS
    while now <= seconds - _LAST_BEFORE_END_SECONDS:
        at_seconds = round(now, 2)
        if not handles:
            handle = replace(_replay(draw, at_seconds), reason="backend_error", kills_after_seconds=_FIRST_KILL_SECONDS)
        elif draw.random() < 0.2:
            handle = Handle(
                at_seconds=at_seconds,
                handling=Handling.DISCARD,
                reason=draw.choice(_DISCARDED),
                tier=draw.choice(TIERS),
                kills_after_seconds=_kills(draw) if draw.random() < _KILLED_SHARE else (),
            )
        else:
            handle = _replay(draw, at_seconds)
        handles.append(handle)
        now += draw.uniform(*_GAP_SECONDS)
    return handles


def _replay(draw: random.Random, at_seconds: float) -> Handle:
    [reason] = draw.choices(list(_REASONS), list(_REASONS.values()))
    kills: tuple[float, ...] = ()
    stop_after_seconds = None
    chance = draw.random()
    if chance < _KILLED_SHARE:
        kills = _kills(draw)
    elif chance < _KILLED_SHARE + _STOPPED_SHARE:
        stop_after_seconds = round(draw.uniform(*_KILL_SECONDS[0]), 2)
    return Handle(
        at_seconds=at_seconds,
        handling=Handling.REPLAY,
        reason=reason,
        limit=draw.choice((5, 20, 60)),
        # Slow enough that a kill meets it at work.
        rate_per_second=draw.choice((2, 5, 10)),
        canary=2 if draw.random() < 0.2 else None,
        kills_after_seconds=kills,
        stop_after_seconds=stop_after_seconds,
        stopped_seconds=round(draw.uniform(*_STOPPED_SECONDS), 2),
    )


def _kills(draw: random.Random) -> tuple[float, ...]:
    times = 2 if draw.random() < _KILLED_TWICE_SHARE else 1
    return tuple(round(draw.uniform(*draw.choice(_KILL_SECONDS)), 2) for _ in range(times))


def _orders(draw: random.Random, seconds: float, faults: Sequence[Fault]) -> list[Order]:
    times = []
    now = _FIRST_SECONDS / 2
    while now < seconds:
        times.append(now)
        now += draw.expovariate(_ORDERS_PER_SECOND)
    for fault in faults:
        if fault.kind in _HOLDS_UP:
            end = min(seconds, fault.at_seconds + (fault.seconds or 2.0))
            times += [draw.uniform(fault.at_seconds, end) for _ in range(_ORDERS_PER_FAULT)]
    return [_order(draw, round(at, 3)) for at in sorted(times)]


def _order(draw: random.Random, at_seconds: float) -> Order:
    [(least, most)] = draw.choices(list(_AGES_SECONDS), list(_AGES_SECONDS.values()))
    age_seconds = math.exp(draw.uniform(math.log(least), math.log(most))) if least else draw.uniform(least, most)
    return Order(
        at_seconds=at_seconds,
        ask=draw.choice(tuple(Ask)),
        age_seconds=round(age_seconds, 3),
        again=draw.random() < _AGAIN_SHARE,
        wait_seconds=draw.choice((0.0, 0.0, 3.0)),
        by_command=draw.random() < _BY_COMMAND_SHARE,
    )
