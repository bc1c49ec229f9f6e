"""Time for which a partition with work stood still while its brokers were up, and the unexplained part of it. Pure."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from dataclasses import dataclass

from chaos.facts import Facts, PartitionKey, Rank, RequestRecord, Turn
from chaos.owners import FaultsOnPartitions, Span, Tenure, clipped, covered_ms

STALL_MS_MIN = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """Nothing of the partition started or ended from then to then, and something of it was due.

    ``seconds``: without the time in which brokers were out of reach for all. ``unexplained_seconds``: also without the
    time in which a fault held the partition, and in which its owner ran what goes before. That is what the system
    itself takes.
    """

    seconds: float
    unexplained_seconds: float
    topic: str
    partition: int
    start_ms: int
    end_ms: int


@dataclass(slots=True)
class _Moment:
    at_ms: int
    rank: Rank
    waiting: int
    """By how much the number of requests that are due and not ended changes."""


def find_stalls(facts: Facts, down: list[Span], *, session_ms: int) -> list[Stall]:
    """All of a second or more, longest first. ``down``: when brokers were out of reach for all; it does not count.
    ``session_ms``: of the workers' groups."""
    faults = FaultsOnPartitions(facts, session_ms)
    started = _starts_by_worker(facts)
    stalls = []
    for (topic, partition), of_partition in _moments(facts).items():
        of_partition.sort(key=lambda moment: moment.at_ms)
        held = [*down, *faults.spans((topic, partition))]
        tenures = faults.tenures((topic, partition))
        waiting: Counter[Rank] = Counter()
        since = 0
        for moment in of_partition:
            is_progress = moment.waiting <= 0
            is_waiting = waiting.total() > 0
            if is_waiting and is_progress:
                span = (since, moment.at_ms)
                still_ms = moment.at_ms - since - covered_ms(span, down)
                if still_ms >= STALL_MS_MIN:
                    first = min(rank for rank, count in waiting.items() if count > 0)
                    busy = _ran_what_goes_before(span, first, tenures, started)
                    stall = Stall(
                        seconds=still_ms / 1000,
                        unexplained_seconds=(moment.at_ms - since - covered_ms(span, [*held, *busy])) / 1000,
                        topic=topic,
                        partition=partition,
                        start_ms=since,
                        end_ms=moment.at_ms,
                    )
                    stalls.append(stall)
            if is_progress or not is_waiting:
                since = moment.at_ms
            waiting[moment.rank] += moment.waiting
    return sorted(stalls, key=lambda stall: stall.seconds, reverse=True)


def _moments(facts: Facts) -> dict[PartitionKey, list[_Moment]]:
    """Times at which something of a partition became due, started and ended; in any order."""
    outcome_at: dict[Turn, int] = {}
    for outcome in facts.outcomes:
        known = outcome_at.get(outcome.turn, outcome.at_ms)
        outcome_at[outcome.turn] = min(known, outcome.at_ms)
    first_due: dict[tuple[Turn, int, bool], RequestRecord] = {}
    for record in facts.records:
        key = (record.turn, record.attempt, record.is_copy)
        if key not in first_due or record.due_ms < first_due[key].due_ms:
            first_due[key] = record
    starts: dict[tuple[Turn, int], list[int]] = defaultdict(list)
    for execution in facts.executions:
        starts[execution.turn, execution.attempt].append(execution.started_ms)
    moments: dict[PartitionKey, list[_Moment]] = defaultdict(list)
    for (turn, attempt, is_copy), record in first_due.items():
        ends = [outcome_at[turn]] if turn in outcome_at else []
        # A retry, or the copy of what was expedited, is where it goes on.
        further = [(turn, attempt + 1, copied) for copied in (False, True)]
        further += [] if is_copy else [(turn, attempt, True)]
        ends += [first_due[each].written_ms for each in further if each in first_due]
        end = max(record.due_ms, min(ends, default=facts.end_ms))
        of_partition = moments[record.topic, record.partition]
        of_partition += [_Moment(record.due_ms, record.rank, 1), _Moment(end, record.rank, -1)]
        of_partition += [_Moment(start, record.rank, 0) for start in starts[turn, attempt]]
    return moments


def _starts_by_worker(facts: Facts) -> dict[str, list[tuple[int, Rank]]]:
    """Starts of each worker, in order."""
    ranks: dict[tuple[Turn, int], Rank] = {}
    for record in facts.records:
        # Of a request and its copy nobody knows which one ran; the less urgent one explains less.
        ranks[record.turn, record.attempt] = max(record.rank, ranks.get((record.turn, record.attempt), record.rank))
    started: dict[str, list[tuple[int, Rank]]] = defaultdict(list)
    for execution in sorted(facts.executions, key=lambda each: each.started_ms):
        rank = ranks.get((execution.turn, execution.attempt))
        if rank is not None:
            started[execution.worker].append((execution.started_ms, rank))
    return started


def _ran_what_goes_before(
    span: Span, rank: Rank, tenures: list[Tenure], started: dict[str, list[tuple[int, Rank]]]
) -> list[Span]:
    """Times at which the partition's owner started requests more urgent than the rank, one within a second after
    another."""
    found = []
    for tenure in tenures:
        start_ms, end_ms = clipped(span, (tenure.start_ms, tenure.end_ms))
        of_owner = () if tenure.worker is None else started.get(tenure.worker, ())
        before = [at_ms for at_ms, each in of_owner if start_ms <= at_ms <= end_ms and each < rank]
        found += [(one, other) for one, other in itertools.pairwise(before) if other - one < STALL_MS_MIN]
    return found


def longest_stillness(due_ms: list[int], started_ms: list[int]) -> float:
    """The longest time in seconds in which requests were due and none was started; pairs in any order."""
    moments = sorted([(at, 1) for at in due_ms] + [(at, -1) for at in started_ms])
    waiting, since, longest = 0, 0, 0
    for at, change in moments:
        if waiting > 0:
            longest = max(longest, at - since)
        if change < 0 or waiting == 0:
            since = at
        waiting += change
    return longest / 1000
