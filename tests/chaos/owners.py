"""The owners of each partition, and the faults that held it: by the workers' own logs, their lives and the plan. Pure.

A fault holds a partition while its owner is stopped or dead and the group has not found that out (a session), while the
owner's link to a broker is cut or slow, and while the backend serves nobody. Between two owners a partition waits for
every member of its group, so there a fault of any of them holds it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from chaos.facts import End, Facts, Life, OwnerChange, PartitionKey, Trouble, Window

Span = tuple[int, int]
"""From then to then, epoch milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenure:
    """A worker owned a partition from then to then; None: nobody did."""

    worker: str | None
    start_ms: int
    end_ms: int


def tenures_of(changes: Iterable[OwnerChange], *, start_ms: int, end_ms: int) -> dict[PartitionKey, list[Tenure]]:
    """By partition, without gaps from ``start_ms`` to ``end_ms``.

    Who was given a partition owns it, whether or not its owner before has said that it gave it up: one that is dead
    never does, and one that was stopped does when it goes on.
    """
    by_partition: dict[PartitionKey, list[OwnerChange]] = defaultdict(list)
    for change in sorted(changes, key=lambda each: each.at_ms):
        by_partition[change.key].append(change)
    tenures = {}
    for key, of_partition in by_partition.items():
        owner, since = None, start_ms
        found = []
        for change in of_partition:
            if not change.is_gain and change.worker != owner:
                continue
            found.append(Tenure(worker=owner, start_ms=since, end_ms=change.at_ms))
            owner, since = (change.worker if change.is_gain else None), change.at_ms
        found.append(Tenure(worker=owner, start_ms=since, end_ms=max(since, end_ms)))
        tenures[key] = [tenure for tenure in found if tenure.end_ms > tenure.start_ms]
    return tenures


@dataclass(slots=True)
class FaultsOnPartitions:
    """``session_ms``: silence after which a group gives a member's partitions away."""

    facts: Facts
    session_ms: int
    _tenures: dict[PartitionKey, list[Tenure]] = field(init=False)
    _of_worker: dict[str, list[Span]] = field(init=False)
    _of_all: list[Span] = field(init=False)
    _of_backend: list[Span] = field(init=False)

    def __post_init__(self) -> None:
        start_ms = min((life.started_ms for life in self.facts.lives), default=0)
        self._tenures = tenures_of(self.facts.owner_changes, start_ms=start_ms, end_ms=self.facts.end_ms)
        self._of_worker = {life.worker: merged(self._spans_of(life)) for life in self.facts.lives}
        self._of_all = merged(span for spans in self._of_worker.values() for span in spans)
        self._of_backend = [self._span_of(window) for window in self.facts.windows if window.serves_nobody]

    def tenures(self, key: PartitionKey) -> list[Tenure]:
        """Its owners, one after the other; empty when no worker ever logged that it had it."""
        return self._tenures.get(key, [])

    def spans(self, key: PartitionKey) -> list[Span]:
        """Times at which faults held the partition; in order, none overlaps another."""
        if key not in self._tenures:
            return merged([*self._of_all, *self._of_backend])
        found = list(self._of_backend)
        for tenure in self._tenures[key]:
            spans = self._of_all if tenure.worker is None else self._of_worker.get(tenure.worker, [])
            found += [clipped(span, (tenure.start_ms, tenure.end_ms)) for span in spans]
        return merged(found)

    def _spans_of(self, life: Life) -> list[Span]:
        """Times at which faults of this worker held its partitions."""
        last_ms = self.facts.end_ms if life.signalled_ms is None else life.signalled_ms
        spans = [(last_ms, last_ms + self.session_ms)] if life.end is End.KILLED else []
        for window in self.facts.windows:
            if life.slot not in window.slots:
                continue
            start_ms, end_ms = self._span_of(window)
            if window.trouble is Trouble.STOPPED:
                # Then its session has ended, and others are to go on.
                end_ms = min(end_ms, start_ms + self.session_ms)
                spans.append(clipped((start_ms, end_ms), (life.started_ms, last_ms)))
            elif window.trouble is Trouble.LINK:
                # One that is ending needs its link to say goodbye.
                spans.append(clipped((start_ms, end_ms), (life.started_ms, last_ms + self.session_ms)))
        return spans

    def _span_of(self, window: Window) -> Span:
        return window.start_ms, self.facts.end_ms if window.end_ms is None else window.end_ms


def merged(spans: Iterable[Span]) -> list[Span]:
    """In order, those that overlap made one, without empty ones."""
    found: list[Span] = []
    for start, end in sorted(span for span in spans if span[1] > span[0]):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found


def clipped(span: Span, to: Span) -> Span:
    """The part of it within another; empty (it ends no later than it starts) where there is none."""
    return max(span[0], to[0]), min(span[1], to[1])


def covered_ms(span: Span, by: Iterable[Span]) -> int:
    """Length of it that the others cover, overlaps counted once."""
    return sum(end - start for start, end in merged(clipped(span, each) for each in by))
