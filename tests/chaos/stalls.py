"""How long a partition with work stood still while its brokers were up. Pure."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from chaos.facts import Facts, PartitionKey, RequestRecord, Turn

STALL_MS_MIN = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """Nothing of the partition started or ended from then to then, and something of it was due."""

    seconds: float
    topic: str
    partition: int
    start_ms: int
    end_ms: int


@dataclass(slots=True)
class _Moment:
    at_ms: int
    waiting: int
    """By how much the number of requests that are due and not ended changes."""


def find_stalls(facts: Facts, down: list[tuple[int, int]]) -> list[Stall]:
    """All of a second or more, longest first. ``down``: when brokers were out of reach for all; it does not count."""
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
        of_partition += [_Moment(record.due_ms, 1), _Moment(end, -1)]
        of_partition += [_Moment(start, 0) for start in starts[turn, attempt]]
    stalls = []
    for (topic, partition), of_partition in moments.items():
        of_partition.sort(key=lambda moment: moment.at_ms)
        waiting, since = 0, 0
        for moment in of_partition:
            is_progress = moment.waiting <= 0
            if waiting > 0 and is_progress:
                still_ms = moment.at_ms - since - sum(_overlap(since, moment.at_ms, *each) for each in down)
                if still_ms >= STALL_MS_MIN:
                    stall = Stall(
                        seconds=still_ms / 1000, topic=topic, partition=partition, start_ms=since, end_ms=moment.at_ms
                    )
                    stalls.append(stall)
            if is_progress or waiting == 0:
                since = moment.at_ms
            waiting += moment.waiting
    return sorted(stalls, key=lambda stall: stall.seconds, reverse=True)


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


def _overlap(start: int, end: int, other_start: int, other_end: int) -> int:
    return max(0, min(end, other_end) - max(start, other_start))
