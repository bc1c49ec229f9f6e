"""Records of the same request in one worker: one of them stands for their id, the others wait for its outcome. Pure.

The event loop uses it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from forebay_schemas.contract.tiers import TIERS
from forebay_worker.partition.assignment import Assignment
from forebay_worker.request.memory import RECORD_OVERHEAD_BYTES
from forebay_worker.request.work import Work, comes_again

_Key = tuple[str, int]

PURGE_MIN: Final = 1_000
"""Below so many entries it does not matter how many of them are of requests that are gone."""

_RANKS: Final = {tier: rank for rank, tier in enumerate(TIERS)}


@dataclass(slots=True)
class _Group:
    first: Work
    copies: list[Work] = field(default_factory=list)


class Copies:
    """The *first* of an id and replay count is the one that waits in its lane or runs. A *copy* of it does neither: it
    is finished once the outcome of the first is durable, or the record with which the first goes on. A payload of its
    own changes nothing of that.

    The first may be gone without an outcome: its partition was revoked while it waited. Then one of its copies takes
    its place (`orphans`).
    """

    __slots__ = ("_assignments", "_firsts", "_groups", "_purge_at", "size_bytes")

    def __init__(self) -> None:
        self.size_bytes = dict.fromkeys(TIERS, 0)
        """What copies take in memory, by tier."""
        self._firsts: dict[_Key, Work] = {}
        self._groups: dict[int, _Group] = {}
        self._assignments: dict[int, Assignment] = {}
        self._purge_at = PURGE_MIN

    def __len__(self) -> int:
        """How many copies wait."""
        return sum(len(group.copies) for group in self._groups.values())

    def first_of(self, work: Work) -> Work | None:
        """The request whose outcome this one is to wait for; None when there is none: this one is the first then."""
        key = _key(work)
        first = self._firsts.get(key)
        if first is not None and is_here(first):
            if not _goes_on_as(first, work):
                return first
        elif first is not None and (group := self._groups.pop(id(first), None)) is not None:
            self._groups[id(work)] = _Group(work, group.copies)
        self._firsts[key] = work
        assignment = work.assignment
        self._assignments[id(assignment)] = assignment
        return None

    def hold(self, first: Work, copy: Work) -> None:
        """The copy waits for the outcome of the first."""
        self._groups.setdefault(id(first), _Group(first)).copies.append(copy)
        self.size_bytes[copy.tier] += _size_bytes(copy)

    def swap(self, first: Work, copy: Work) -> None:
        """The copy is the first from now on, and the first a copy of it. The first must not have begun."""
        group = self._groups.pop(id(first), None)
        self._groups[id(copy)] = _Group(copy, [] if group is None else group.copies)
        self._firsts[_key(copy)] = copy
        self._assignments[id(copy.assignment)] = copy.assignment
        self.hold(copy, first)

    def end(self, first: Work) -> list[Work]:
        """A request has its outcome, or goes on elsewhere: it stands for its id no more. Returns its copies."""
        if first.request is None:
            return []
        key = _key(first)
        if self._firsts.get(key) is first:
            del self._firsts[key]
        if not self._groups or (group := self._groups.pop(id(first), None)) is None:
            return []
        return self._released(group.copies)

    def orphans(self) -> list[Work]:
        """Copies whose first is gone: they are to be taken in as if they had just come. Looked for many times a second.

        Copies whose own partition was given up are forgotten: its new owner sees to them.
        """
        orphans: list[Work] = []
        for group in list(self._groups.values()):
            if not is_here(group.first):
                del self._groups[id(group.first)]
                orphans += self._released(group.copies)
                continue
            kept = [copy for copy in group.copies if copy.assignment.claims.is_open]
            if len(kept) < len(group.copies):
                self._released([copy for copy in group.copies if not copy.assignment.claims.is_open])
                group.copies = kept
        return orphans

    def purge(self) -> None:
        """Forgets the requests of partitions that were given up; once a second."""
        closed = [key for key, assignment in self._assignments.items() if not assignment.claims.is_open]
        for key in closed:
            del self._assignments[key]
        if closed or len(self._firsts) > self._purge_at:
            self._firsts = {key: work for key, work in self._firsts.items() if is_here(work)}
            self._purge_at = max(PURGE_MIN, 2 * len(self._firsts))

    def _released(self, copies: list[Work]) -> list[Work]:
        for copy in copies:
            self.size_bytes[copy.tier] -= _size_bytes(copy)
        return copies


def is_here(work: Work) -> bool:
    """Whether a request still waits or runs here, or its outcome is on its way."""
    claims = work.assignment.claims
    return claims.is_claimed(work.offset) or (claims.is_open and not comes_again(work))


def is_more_urgent(work: Work, first: Work) -> bool:
    """Whether it would start before the first. One that was tried less often may not stand for both."""
    return work.attempt >= first.attempt and (_RANKS[work.tier], -work.priority) < (_RANKS[first.tier], -first.priority)


def _key(work: Work) -> _Key:
    assert work.request is not None
    return work.request.request_id, work.history.replay_count


def _goes_on_as(first: Work, work: Work) -> bool:
    """Whether ``work`` may be what the first goes on as, read before it was known to be durable."""
    is_on_its_way = first.awaiting > 0 and first.outcome is None
    return is_on_its_way and (work.attempt > first.attempt or work.history.expedited_tier is not None)


def _size_bytes(copy: Work) -> int:
    return copy.size_bytes + RECORD_OVERHEAD_BYTES
