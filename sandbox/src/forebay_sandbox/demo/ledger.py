"""The ledger of the demo: every request sent, through Forebay and directly to an engine, and its outcome. Pure.

Times are seconds since the traffic's start. End-to-end times run from the moment a request was due, not from its send,
so that a slow sender hides nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from forebay_sandbox.demo.samples import NOTHING_YET, Sample
from forebay_sandbox.demo.traffic import Arrival
from forebay_schemas.contract.reasons import Status
from forebay_schemas.contract.results import Result
from forebay_schemas.contract.tiers import TIERS, Tier


class Due(Protocol):
    """A planned request: its time and tier."""

    @property
    def at_seconds(self) -> float: ...

    @property
    def tier(self) -> Tier: ...


class DirectOutcome(StrEnum):
    """The end of a direct request, without a retry."""

    COMPLETED = "completed"
    REFUSED = "refused"
    TIMED_OUT = "timed_out"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectCall:
    """One direct request, from its due time to its end."""

    arrival: Arrival
    outcome: DirectOutcome
    ended_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """The way of one accepted request through Forebay. Without a result, ``result`` and the fields after it are
    None."""

    arrival: Due
    accepted_seconds: float
    result: Result | None = None
    ended_seconds: float | None = None
    dispatched_seconds: float | None = None
    """Also None if it ended without a dispatch."""

    @property
    def left_queue_seconds(self) -> float | None:
        """The end of its wait: the dispatch, or its end without one."""
        return self.dispatched_seconds if self.dispatched_seconds is not None else self.ended_seconds


class Ledger:
    """The accepted requests by id, and the first result of each."""

    def __init__(self, *, started_wall_ms: int) -> None:
        self._started_wall_ms = started_wall_ms
        self._passages: dict[str, Passage] = {}
        self._early: dict[str, tuple[Result, float]] = {}  # results that overtook their delivery report
        self._counts: Counter[tuple[Tier, Status | None]] = Counter()  # None: accepted

    def accept(self, request_id: str, arrival: Due, *, at_seconds: float) -> None:
        """The broker has accepted it: it must end in exactly one outcome."""
        assert request_id not in self._passages, f"{request_id} was accepted twice"
        self._passages[request_id] = Passage(arrival=arrival, accepted_seconds=at_seconds)
        self._counts[arrival.tier, None] += 1
        if request_id in self._early:
            result, ended_seconds = self._early.pop(request_id)
            self.end(result, at_seconds=ended_seconds)

    def end(self, result: Result, *, at_seconds: float) -> None:
        """Adds a result. Only the first per id counts; those of foreign requests never do."""
        passage = self._passages.get(result.request_id)
        if passage is None:
            self._early.setdefault(result.request_id, (result, at_seconds))
            return
        if passage.result is not None:
            return
        dispatched = None
        if result.service_seconds is not None:
            dispatched = (result.finished_at - self._started_wall_ms) / 1000 - result.service_seconds
        self._passages[result.request_id] = Passage(
            arrival=passage.arrival,
            accepted_seconds=passage.accepted_seconds,
            result=result,
            ended_seconds=at_seconds,
            dispatched_seconds=dispatched,
        )
        self._counts[passage.arrival.tier, result.status] += 1

    def passages(self) -> list[Passage]:
        """All accepted requests."""
        return list(self._passages.values())

    def ids(self) -> set[str]:
        """The ids of all accepted requests."""
        return set(self._passages)

    def accepted(self, tier: Tier) -> int:
        return self._counts[tier, None]

    def ended(self, tier: Tier, status: Status) -> int:
        return self._counts[tier, status]

    def open(self, tier: Tier) -> int:
        """Accepted requests of the tier without an outcome."""
        return self.accepted(tier) - sum(self._counts[tier, status] for status in Status)

    def open_in_all(self) -> int:
        return sum(self.open(tier) for tier in TIERS)


def executed_more_than_once(executed_ids: Iterable[str], *, among: set[str]) -> int:
    """How many of our requests an engine ran more than once, by its own log."""
    return sum(1 for count in Counter(one for one in executed_ids if one in among).values() if count > 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """The run second by second: item n is about the time from n to n + 1, a backlog that at its end."""

    arrivals: tuple[int, ...]
    dispatches: tuple[int, ...]
    backlog: dict[Tier, tuple[int, ...]]
    limit: tuple[int, ...]
    """Requests that all workers together allowed in flight, at the second's end."""
    in_flight: tuple[int, ...]
    engine_busy: tuple[float, ...]
    """The share of the time, 0 to 1."""
    direct_completed: tuple[int, ...]
    """Requests by the second they were due in, as their direct call ended."""
    direct_refused: tuple[int, ...]
    direct_timed_out: tuple[int, ...]
    """Timed out, or failed otherwise."""

    @property
    def seconds(self) -> int:
        return len(self.arrivals)


def series_of(passages: Sequence[Passage], direct: Sequence[DirectCall], samples: Sequence[Sample]) -> Series:
    """The run second by second, until the last outcome."""
    moments = [passage.arrival.at_seconds for passage in passages]
    moments += [passage.ended_seconds for passage in passages if passage.ended_seconds is not None]
    seconds = int(max(moments, default=0.0)) + 1
    waiting = {
        tier: tuple(
            sum(
                1
                for passage in passages
                if passage.arrival.tier is tier
                and passage.accepted_seconds <= second
                and (passage.left_queue_seconds is None or passage.left_queue_seconds > second)
            )
            for second in range(1, seconds + 1)
        )
        for tier in TIERS
    }
    due = {
        outcome: _per_second([call.arrival.at_seconds for call in direct if call.outcome is outcome], seconds)
        for outcome in DirectOutcome
    }
    sampled = [_at_the_end_of(second, samples) for second in range(seconds)]
    return Series(
        arrivals=_per_second([passage.arrival.at_seconds for passage in passages], seconds),
        dispatches=_per_second(
            [passage.dispatched_seconds for passage in passages if passage.dispatched_seconds is not None], seconds
        ),
        backlog=waiting,
        limit=tuple(sample.limit_requests for sample in sampled),
        in_flight=tuple(sample.in_flight_requests for sample in sampled),
        engine_busy=tuple(sample.engine_busy_share for sample in sampled),
        direct_completed=due[DirectOutcome.COMPLETED],
        direct_refused=due[DirectOutcome.REFUSED],
        direct_timed_out=tuple(
            timed_out + failed
            for timed_out, failed in zip(due[DirectOutcome.TIMED_OUT], due[DirectOutcome.FAILED], strict=True)
        ),
    )


def _at_the_end_of(second: int, samples: Sequence[Sample]) -> Sample:
    """The last sample by then."""
    return next((sample for sample in reversed(samples) if sample.at_seconds <= second + 1), NOTHING_YET)


def _per_second(moments: Iterable[float], seconds: int) -> tuple[int, ...]:
    counts = [0] * seconds
    for moment in moments:
        counts[min(max(int(moment), 0), seconds - 1)] += 1
    return tuple(counts)
