"""Why a record that ran before may run again: what happened to its owners, event by event. Pure.

What an owner knows of a record (it ran, it runs on, it has ended) goes from it to the next owner and on: by commits, by
notices, by the results topic. A repetition is explained by the event that broke this chain, and by nothing else: that a
commit was once refused, or a worker once cut off, explains nothing of what its owner said all the same.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from forebay_schemas.contract.coordination import LEASE_SECONDS, Notice, NoticeKind
from forebay_schemas.contract.offsets_metadata import (
    NOTHING,
    CommitMetadata,
    decode_metadata,
    encode_metadata,
    runs_of,
)
from forebay_worker.partition.opening import READ_SECONDS_MAX
from simulation.broker import METADATA_BYTES_MAX, Key

if TYPE_CHECKING:
    from simulation.executions import Execution
    from simulation.scheduler import Scheduler

Place = tuple[str, int, int]

SLACK_SECONDS = 0.5


@dataclass(slots=True, eq=False)
class Owned:
    """One worker's ownership of a partition, from the moment at which it got the committed offset.

    ``let_go_at``, ``let_go``: start and end of its revoke callback; None while it goes on, and for a lost partition.
    ``last_refused``: its last commit was refused or not answered. ``no_member``: because it was no member any more.
    ``committed``: a commit of it was taken.
    """

    worker: str
    key: Key
    since: float
    offset: int
    metadata: CommitMetadata
    let_go_at: float | None = None
    let_go: float | None = None
    last_refused: bool = False
    no_member: bool = False
    committed: bool = False


@dataclass(slots=True)
class _Told:
    """Time at which a worker tried to publish a notice of a partition, and time at which it was on the coordination
    topic."""

    tried: list[float] = field(default_factory=list)
    written: list[float] = field(default_factory=list)


class Causes:
    """``metadata_bytes_max``: how much a commit may say."""

    def __init__(self, *, scheduler: Scheduler, metadata_bytes_max: int) -> None:
        self._scheduler = scheduler
        self._metadata_bytes_max = metadata_bytes_max
        self._owners: defaultdict[Key, list[Owned]] = defaultdict(list)
        self._latest: dict[tuple[str, Key], Owned] = {}
        self._died: dict[str, float] = {}
        self._drained: set[str] = set()
        self._sessions_ended: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
        self._away: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
        self._told: defaultdict[tuple[str, Key, NoticeKind], _Told] = defaultdict(_Told)
        self._ended_at: dict[Place, float] = {}
        self._run_on: defaultdict[Place, list[float]] = defaultdict(list)
        self._handed_over: defaultdict[Place, list[tuple[str, float]]] = defaultdict(list)
        self._places: defaultdict[Key, set[Place]] = defaultdict(set)
        self._cut: set[Place] = set()

    @property
    def anything_happened(self) -> bool:
        """Whether any worker may have taken knowledge with it."""
        return bool(self._died or self._away or self._sessions_ended) or any(
            owned.last_refused for owners in self._owners.values() for owned in owners
        )

    @property
    def now(self) -> float:
        """Virtual seconds."""
        return self._scheduler.now

    def was_found_unfinished(self, place: Place, *, after: float) -> bool:
        """Whether a later owner began without knowing that a record was finished."""
        at = place[2]
        return any(
            owned.since >= after
            and owned.offset <= at
            and not any(first <= at < first + length for first, length in owned.metadata.finished)
            for owned in self._owners[place[:2]]
        )

    def may_have_forgotten(self, worker: str) -> bool:
        """Whether others may not know a worker's executions."""
        return (
            worker in self._died
            or any(name == worker for name, _ in self._sessions_ended)
            or any(
                owned.worker == worker and self._is_untold(owned, NoticeKind.LAST_COMMIT)
                for owners in self._owners.values()
                for owned in owners
            )
        )

    def losses_before(self, owned: Owned, place: Place) -> int:
        """Number of owners of a record's partition that a later one may take for dead."""
        earlier = self._owners[owned.key]
        earlier = earlier[: earlier.index(owned)]
        return sum(self._may_seem_dead(each, place) for each in earlier) + len(self._away[""])

    def _may_seem_dead(self, owner: Owned, place: Place) -> bool:
        return (
            owner.worker in self._died
            or owner.worker in self._away
            or self._session_end(owner) is not None
            or self._is_untold(owner, NoticeKind.LAST_COMMIT)
            or any(worker == owner.worker for worker, _ in self._handed_over[place])
        )

    # Events.

    def told_committed(self, worker: str, key: Key, offset: int, metadata: str) -> Owned:
        """A worker got the committed offset of a partition that it now owns."""
        decoded = decode_metadata(offset, metadata) if offset >= 0 else None
        owned = Owned(worker, key, self._scheduler.now, offset, decoded or NOTHING)
        self._owners[key].append(owned)
        self._latest[worker, key] = owned
        if self._metadata_bytes_max < METADATA_BYTES_MAX:
            self._note_cuts(owned)
        return owned

    def latest(self, worker: str, key: Key) -> Owned:
        """A worker's ownership of a partition."""
        return self._latest[worker, key]

    def was_cut(self, place: Place) -> bool:
        """Whether a commit had no room for a record."""
        return place in self._cut

    def appended(self, place: Place) -> None:
        """There is a record."""
        self._places[place[:2]].add(place)

    def committed(self, worker: str, key: Key) -> None:
        """The coordinator took a commit."""
        owned = self._latest.get((worker, key))
        if owned is not None:
            owned.committed = True

    def letting_go(self, worker: str, keys: Iterable[Key]) -> None:
        """A callback begins in which a worker gives partitions up."""
        for key in keys:
            if (owned := self._latest.get((worker, key))) is not None and owned.let_go_at is None:
                owned.let_go_at = self._scheduler.now
                owned.last_refused = owned.no_member = False

    def let_go(self, worker: str, keys: Iterable[Key]) -> None:
        """It has ended."""
        for key in keys:
            if (owned := self._latest.get((worker, key))) is not None:
                owned.let_go = self._scheduler.now

    def last_commit_answered(self, worker: str, refused: dict[Key, bool]) -> None:
        """A commit that a worker waited for was answered, or not in time. ``refused``: whether each partition's was."""
        for key, is_refused in refused.items():
            if (owned := self._latest.get((worker, key))) is not None:
                owned.last_refused = is_refused

    def no_member(self, worker: str, keys: Iterable[Key]) -> None:
        """A worker learned that it is no member of the group."""
        for key in keys:
            if (owned := self._latest.get((worker, key))) is not None:
                owned.no_member = True

    def died(self, worker: str) -> None:
        """A worker is gone."""
        self._died[worker] = self._scheduler.now

    def drained(self, worker: str) -> None:
        """A worker's process has ended by order."""
        self._drained.add(worker)

    def session_ended(self, worker: str, topics: Iterable[str]) -> None:
        """A group's coordinator gave a worker up."""
        for topic in topics:
            self._sessions_ended[worker, topic].append(self._scheduler.now)

    def away(self, worker: str, seconds: float) -> None:
        """A worker is stopped or cut off for a time; "" stands for all of them."""
        self._away[worker].append((self._scheduler.now, self._scheduler.now + seconds))

    def tried_to_say(self, notice: Notice) -> None:
        """A worker produces a notice."""
        now, key = self._scheduler.now, (notice.topic, notice.partition)
        self._told[notice.worker, key, notice.kind].tried.append(now)
        if notice.kind is NoticeKind.RUNNING:
            for offset in notice.offsets:
                self._handed_over[*key, offset].append((notice.worker, now))

    def said(self, notice: Notice) -> None:
        """A notice is on the coordination topic."""
        now, key = self._scheduler.now, (notice.topic, notice.partition)
        self._told[notice.worker, key, notice.kind].written.append(now)
        for offset in notice.offsets:
            if notice.kind is NoticeKind.RUNNING:
                self._run_on[*key, offset].append(now)
            elif notice.kind is NoticeKind.FINISHED:
                self._ended_at.setdefault((*key, offset), now)

    # What explains a repetition.

    def is_past(self, owned: Owned, *, until: float | None = None) -> bool:
        """Whether a worker's session has ended since it was given a partition, whether or not it knows."""
        return self._session_end(owned, until) is not None

    def explain(self, earlier: Execution, again: Owned) -> str | None:
        """The event after which what ``earlier`` ran may run again in the owner ``again``; None for none."""
        place, first, now = earlier.place, earlier.owned, self._scheduler.now
        ended = self._session_end(again)
        if ended is not None and first.since >= ended:
            return "stopped_or_cut_off"  # it runs on what is another's by now
        owners = self._owners[first.key]
        chain = owners[owners.index(first) : owners.index(again)]
        for owner in chain:
            is_first = owner is first
            if owner.committed and not is_first:
                continue  # what it knew it has written down
            if (cause := self._lost_with(owner, earlier, is_first=is_first)) is not None:
                return cause
        if place in self._cut:
            return "metadata_cut"
        if self.was_deaf(again) or any(self.was_deaf(each) for each in chain if each is not first):
            return "coordination_unheard"
        if self._ran_on(earlier):
            if first.worker in self._drained and place not in self._ended_at:
                return "outlasted_drain"
            if self._was_silent(earlier, first, now):
                return "lease_ended"
        return None

    def _ran_on(self, earlier: Execution) -> bool:
        """Whether a request, or its outcome, was under way when its partition was released."""
        owner = earlier.owned
        if owner.let_go_at is None:
            return False
        handed_over = self._handed_over[earlier.place]
        return earlier.ended > owner.let_go_at or any(
            worker == owner.worker and at >= owner.let_go_at for worker, at in handed_over
        )

    def _lost_with(self, owner: Owned, earlier: Execution, *, is_first: bool) -> str | None:
        died = self._died.get(owner.worker)
        if died is not None:
            cause = "in_flight_at_kill" if is_first and earlier.ended >= died else "since_last_commit"
            if owner.let_go is None or died <= owner.let_go:
                return cause
            if is_first and self._ran_on(earlier):
                # It ran on after the partition was let go of, and its worker died before it said what became of it.
                told = self._ended_at.get(earlier.place)
                if told is None or told > self._next_since(owner):
                    return cause
        end = self._session_end(owner, self._next_since(owner))
        if end is not None and (owner.let_go is None or end <= owner.let_go or owner.no_member):
            return "stopped_or_cut_off"
        kind = NoticeKind.RUNNING if is_first and self._ran_on(earlier) else NoticeKind.LAST_COMMIT
        if self._is_untold(owner, NoticeKind.LAST_COMMIT) and self._is_untold(owner, kind):
            return "last_commit_refused"
        return None

    def _is_untold(self, owner: Owned, kind: NoticeKind) -> bool:
        """Whether an owner's last commit was refused, and its notice of that failed as well."""
        if not owner.last_refused or owner.let_go_at is None:
            return False
        told = self._told[owner.worker, owner.key, kind]
        has_tried = any(at >= owner.let_go_at for at in told.tried)
        return has_tried and not any(owner.let_go_at <= at <= self._next_since(owner) for at in told.written)

    def _next_since(self, owner: Owned) -> float:
        owners = self._owners[owner.key]
        index = owners.index(owner) + 1
        return owners[index].since if index < len(owners) else float("inf")

    def _session_end(self, owned: Owned, until: float | None = None) -> float | None:
        ends = self._sessions_ended.get((owned.worker, owned.key[0]), [])
        index = bisect_left(ends, owned.since)
        return ends[index] if index < len(ends) and (until is None or ends[index] <= until) else None

    def was_deaf(self, owned: Owned) -> bool:
        """Whether an owner went on because it could not read the coordination topic for too long."""
        now = self._scheduler.now
        return any(
            min(end, now) - max(start, owned.since) >= READ_SECONDS_MAX - SLACK_SECONDS
            for start, end in self._away[owned.worker] + self._away[""]
        )

    def ran_on_unheard(self, execution: Execution) -> bool:
        """Whether it ran on after its partition was released, and others received nothing of it for a lease: they may
        end its request, and its worker reports another outcome later."""
        owner = execution.owned
        return (
            owner.let_go_at is not None
            and self._ran_on(execution)
            and self._was_silent(execution, owner, self._scheduler.now)
        )

    def _was_silent(self, earlier: Execution, owner: Owned, now: float) -> bool:
        """Whether others received nothing of a running request for as long as a lease lasts, although its worker tried
        to publish it or could not."""
        assert owner.let_go_at is not None
        said = [owner.let_go_at, *(at for at in self._run_on[earlier.place] if at > owner.let_go_at), now]
        tried = self._told[owner.worker, owner.key, NoticeKind.RUNNING].tried
        away = self._away[owner.worker] + self._away[""]
        for start, end in pairwise(said):
            if end - start < LEASE_SECONDS - SLACK_SECONDS:
                continue
            in_vain = any(start < at < end for at in tried)
            if in_vain or any(gone < end and back > start for gone, back in away):
                return True
        return False

    def _note_cuts(self, owned: Owned) -> None:
        """Notes what a commit does not speak of because there was no room for it."""
        if owned.offset < 0:
            return
        said = owned.metadata
        others = {offset for offset, _ in (*said.running, *said.waiting, *said.handed_over)}
        finished = {at for first, length in said.finished for at in range(first, first + length)}
        for place in self._places[owned.key]:
            at = place[2]
            if at < owned.offset or at in finished or at in others:
                continue
            if said == NOTHING:
                self._cut.add(place)  # each commit says something, if it has room
                continue
            fuller = replace(said, finished=runs_of(sorted({*finished, at})))
            text = encode_metadata(owned.offset, fuller, bytes_max=self._metadata_bytes_max)
            if decode_metadata(owned.offset, text) != fuller:
                self._cut.add(place)
