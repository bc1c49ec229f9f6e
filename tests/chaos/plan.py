"""The faults of a run, their times and lengths: drawn from a seed before anything starts. Pure.

At most two things are wrong at once, never two brokers, and one worker is always left alone.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from forebay_sandbox.testing.proxy import Link, Mode

SLOTS = 4
"""A slot is a worker's place with a link of its own to each broker; it may be empty."""

BROKERS = 3

_FIRST_SECONDS = 2.0
_GAP_SECONDS = (3.0, 8.5)
_LAST_BEFORE_END_SECONDS = 3.0
_AT_ONCE_MAX = 2

# A worker that falls silent holds its partitions for a session of 10 s, and while one does, each further one holds up
# the rebalance of all for another: without a pause in between a partition would stand still for as long as they go on.
_SILENCES_MAX = 2
_SILENCES_WITHIN_SECONDS = 25.0

# A group whose coordinator moves begins the session of a dead member anew, so a broker is alone in that.
_BROKER_AFTER_SILENCE_SECONDS = 12.0
_SILENCE_AFTER_BROKER_SECONDS = 15.0
_STARTING_SECONDS = 8.0
"""Time in which a new worker is not counted on."""


class FaultKind(StrEnum):
    """The kinds of faults."""

    KILL_WORKER = "kill_worker"
    STOP_WORKER = "stop_worker"
    TERMINATE_WORKER = "terminate_worker"
    ADD_WORKER = "add_worker"
    RESTART_BROKER = "restart_broker"
    KILL_BROKER = "kill_broker"
    LINK = "link"
    BACKEND = "backend"


_WEIGHTS = {
    FaultKind.KILL_WORKER: 4,
    FaultKind.STOP_WORKER: 3,
    FaultKind.TERMINATE_WORKER: 4,
    FaultKind.ADD_WORKER: 3,
    FaultKind.RESTART_BROKER: 1,
    FaultKind.KILL_BROKER: 2,
    FaultKind.LINK: 4,
    FaultKind.BACKEND: 4,
}


_BROKER_FAULTS = frozenset({FaultKind.RESTART_BROKER, FaultKind.KILL_BROKER})
_LOSES_BROKERS = _BROKER_FAULTS | {FaultKind.LINK}
_SILENCING = _LOSES_BROKERS | {FaultKind.KILL_WORKER, FaultKind.STOP_WORKER}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault, ``at_seconds`` after the start.

    ``seconds``: how long it lasts; for a worker that is killed or terminated, how long its slot stays empty, None for
    until one is added. ``slot`` and ``broker`` count from 1; None in a link fault: all of them.
    """

    at_seconds: float
    kind: FaultKind
    seconds: float | None = None
    slot: int | None = None
    broker: int | None = None
    link: Link | None = None
    backend: dict[str, Any] | None = None

    def __str__(self) -> str:
        parts = [self.kind.value]
        parts += [f"slot {self.slot}"] if self.slot is not None else []
        parts += [f"broker {self.broker}"] if self.broker is not None else []
        if self.link is not None:
            parts.append(self.link.mode.value if self.link.mode is not Mode.PASS else _slowness(self.link))
            parts += ["all slots"] if self.slot is None else []
            parts += ["all brokers"] if self.broker is None else []
        parts += [str(self.backend)] if self.backend is not None else []
        parts += [f"{self.seconds:.1f} s"] if self.seconds is not None else []
        return ", ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """``slots_at_start``: those with a worker from the start."""

    seed: int
    seconds: float
    slots_at_start: tuple[int, ...]
    faults: tuple[Fault, ...]


def make_plan(*, seed: int, seconds: float) -> Plan:
    """The plan of a seed and a length."""
    return _Planner(seed, seconds).plan()


def _slowness(link: Link) -> str:
    return f"delay {link.delay_seconds:.2f} s" if link.bytes_per_second is None else f"{link.bytes_per_second:.0f} B/s"


@dataclass(slots=True)
class _Slot:
    number: int
    occupied: bool
    sound_from: float = 0.0
    """From then on it is counted on to work; infinity while it is empty."""


@dataclass(slots=True)
class _Active:
    kind: FaultKind
    until: float


@dataclass(slots=True)
class _Planner:
    seed: int
    seconds: float
    _random: random.Random = field(init=False)
    _slots: list[_Slot] = field(init=False)
    _active: list[_Active] = field(default_factory=list)
    _silences: list[float] = field(default_factory=list)
    _broker_back: float = float("-inf")

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        workers = self._random.choice((2, 3))
        self._slots = [_Slot(number, occupied=number <= workers) for number in range(1, SLOTS + 1)]

    def plan(self) -> Plan:
        start = tuple(slot.number for slot in self._slots if slot.occupied)
        faults = []
        now = _FIRST_SECONDS
        while now <= self.seconds - _LAST_BEFORE_END_SECONDS:
            fault = self._draw(now)
            if fault is not None:
                faults.append(fault)
                now += self._random.uniform(*_GAP_SECONDS)
            else:
                now += 0.5
        return Plan(seed=self.seed, seconds=self.seconds, slots_at_start=start, faults=tuple(faults))

    def _draw(self, now: float) -> Fault | None:
        self._active = [active for active in self._active if active.until > now]
        if len(self._active) >= _AT_ONCE_MAX:
            return None
        kinds = [kind for kind in FaultKind if self._may(kind, now)]
        if not kinds:
            return None
        [kind] = self._random.choices(kinds, [_WEIGHTS[kind] for kind in kinds])
        if kind in _SILENCING:
            self._silences.append(now)
        return self._make(kind, round(now, 2))

    def _may(self, kind: FaultKind, now: float) -> bool:
        if kind in _SILENCING and not self._may_silence(kind, now):
            return False
        busy = {active.kind for active in self._active}
        if kind in _LOSES_BROKERS:
            return not busy & _LOSES_BROKERS
        if kind is FaultKind.BACKEND:
            return kind not in busy
        if kind is FaultKind.ADD_WORKER:
            return any(not slot.occupied for slot in self._slots)
        # One that works is hit, and another one stays.
        return len(self._sound(now)) >= 2

    def _may_silence(self, kind: FaultKind, now: float) -> bool:
        recent = [at for at in self._silences if now - at < _SILENCES_WITHIN_SECONDS]
        if kind in _BROKER_FAULTS:
            return not recent or now - recent[-1] >= _BROKER_AFTER_SILENCE_SECONDS
        return len(recent) < _SILENCES_MAX and now >= self._broker_back + _SILENCE_AFTER_BROKER_SECONDS

    def _sound(self, now: float) -> list[_Slot]:
        return [slot for slot in self._slots if slot.occupied and slot.sound_from <= now]

    def _make(self, kind: FaultKind, now: float) -> Fault:
        draw = self._random
        match kind:
            case FaultKind.KILL_WORKER | FaultKind.TERMINATE_WORKER:
                slot = draw.choice(self._sound(now))
                stays_away = draw.random() < 0.25
                seconds = None if stays_away else round(draw.uniform(0.3, 5.0), 2)
                slot.occupied = not stays_away
                slot.sound_from = now + (seconds or 0.0) + _STARTING_SECONDS
                self._begin(kind, now + 6.0)
                return Fault(at_seconds=now, kind=kind, slot=slot.number, seconds=seconds)
            case FaultKind.STOP_WORKER:
                slot = draw.choice(self._sound(now))
                seconds = round(draw.uniform(1.0, 15.0), 2)
                slot.sound_from = now + seconds + 3.0
                self._begin(kind, now + seconds)
                return Fault(at_seconds=now, kind=kind, slot=slot.number, seconds=seconds)
            case FaultKind.ADD_WORKER:
                slot = draw.choice([slot for slot in self._slots if not slot.occupied])
                slot.occupied, slot.sound_from = True, now + _STARTING_SECONDS
                return Fault(at_seconds=now, kind=kind, slot=slot.number)
            case FaultKind.RESTART_BROKER | FaultKind.KILL_BROKER:
                seconds = round(draw.uniform(0.5, 8.0), 2)
                self._begin(kind, now + seconds + 8.0)
                self._broker_back = now + seconds
                return Fault(at_seconds=now, kind=kind, broker=draw.randint(1, BROKERS), seconds=seconds)
            case FaultKind.LINK:
                return self._link(now)
            case FaultKind.BACKEND:
                seconds = round(draw.uniform(1.0, 8.0), 2)
                self._begin(kind, now + seconds + 2.0)
                return Fault(at_seconds=now, kind=kind, seconds=seconds, backend=draw.choice(_BACKEND_FAULTS))

    def _link(self, now: float) -> Fault:
        draw = self._random
        link = draw.choice(
            [
                Link(mode=Mode.CUT),
                Link(mode=Mode.BLACK_HOLE),
                Link(delay_seconds=round(draw.uniform(0.05, 1.0), 2)),
                Link(bytes_per_second=float(draw.randint(4, 40) * 1024)),
            ]
        )
        sound = self._sound(now)
        one_slot = len(sound) >= 2 and draw.random() < 0.7
        slot = draw.choice(sound) if one_slot else None
        broker = draw.randint(1, BROKERS) if draw.random() < 0.5 else None
        # All workers away from all brokers is no fault of theirs: long enough to hurt, short enough to go on.
        seconds = round(draw.uniform(1.0, 15.0 if one_slot else 8.0), 2)
        for each in [slot] if slot is not None else self._slots:
            each.sound_from = max(each.sound_from, now + seconds + 3.0)
        self._begin(FaultKind.LINK, now + seconds + 2.0)
        number = None if slot is None else slot.number
        return Fault(at_seconds=now, kind=FaultKind.LINK, slot=number, broker=broker, link=link, seconds=seconds)

    def _begin(self, kind: FaultKind, until: float) -> None:
        self._active.append(_Active(kind, until))


_BACKEND_FAULTS: tuple[dict[str, Any], ...] = (
    {"kind": "status", "status": 503},
    {"kind": "status", "status": 503, "probability": 0.5},
    {"kind": "status", "status": 500, "probability": 0.3},
    {"kind": "status", "status": 429, "retry_after_seconds": 1},
    {"kind": "status", "status": 429, "probability": 0.5, "retry_after_seconds": 2},
    {"kind": "refuse"},
    {"kind": "cut", "where": "before"},
    {"kind": "cut", "where": "before", "probability": 0.4},
    {"kind": "cut", "where": "middle", "probability": 0.4},
    {"kind": "hang", "probability": 0.3},
    {"kind": "hang"},
    {"kind": "slow", "factor": 4},
)
