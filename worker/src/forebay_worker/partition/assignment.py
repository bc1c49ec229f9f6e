"""One partition while this worker owns it: which of its records to run, skip or withhold, and what to commit. Pure; the
consumer's thread owns it, except for the two members named in `Assignment`."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from enum import Enum

from forebay_schemas.contract.coordination import LEASE_SECONDS, Notice, NoticeKind
from forebay_schemas.contract.offsets_metadata import (
    NOTHING,
    CommitMetadata,
    decode_metadata,
    encode_metadata,
)
from forebay_schemas.contract.tiers import Tier
from forebay_worker.bounds import BOUNDS, Bounds
from forebay_worker.partition.claims import ANY_OFFSET, SUSPECT_CRASHES, Claims
from forebay_worker.partition.credit import Credit
from forebay_worker.partition.doubt import Doubt
from forebay_worker.partition.offsets import PartitionOffsets
from forebay_worker.partition.outcomes_since import OutcomesSince

CONVICTED_CRASHES = 3
"""A request that was running alone when its worker died is not run again: no other can have killed the worker."""

UNREAD_SECONDS_MAX = 60.0
"""Upper bound on a lease while the coordination topic is unreadable: a denied topic must not withhold for ever."""


class Verdict(Enum):
    """The action for a received record."""

    RUN = "run"
    SKIP = "skip"
    WITHHOLD = "withhold"


class Assignment:
    """``claims`` is shared with dispatch. ``done`` passes finished offsets from the event loop's thread to this one.
    ``acquitted`` passes suspects that ended, or survived their time alone, without killing their worker.

    ``lost``: the partition was lost without a hand-over; its new owner runs again what runs here. ``opened``: all
    notices that former owners published before their release were received; nothing is taken before. ``refused``: why
    Kafka refuses this partition's outcomes for good; None if it does not. ``last_owner_died``: no notice or commit
    shows that it released the partition. ``doubt``: its requests whose outcome may exist although no commit names it;
    None if there are none. ``says_alone``: the last commit names a suspect as the only request that runs in this
    worker. ``topic_id``: id of the tracked topic, since a recreated one has the same name; None if unknown.
    ``owned_since_ms``: as in a commit. ``reread_below``: after a topic was recreated, records below this offset may be
    received that the former assignment has received. ``void_from_ms``: requests of that former assignment written at
    this time (the broker's, epoch milliseconds) or later must not start; they are received again. ``finished_since``:
    when (monotonic) the oldest offset finished that no commit in flight names; None if there is none.
    """

    __slots__ = (
        "_bounds",
        "_crashes",
        "_former_since_ms",
        "_handed_over",
        "_leases",
        "_outcomes_since",
        "_presumed",
        "_taken",
        "acquitted",
        "assigned_at",
        "claims",
        "credit",
        "done",
        "doubt",
        "finished_since",
        "last_owner_died",
        "lost",
        "offsets",
        "opened",
        "owned_since_ms",
        "partition",
        "refused",
        "reread_below",
        "retry_delay_seconds",
        "says_alone",
        "tier",
        "topic",
        "topic_id",
        "void_from_ms",
    )

    def __init__(
        self,
        *,
        topic: str,
        partition: int,
        tier: Tier,
        retry_delay_seconds: int,
        credit: Credit,
        now: float,
        committed: int | None,
        metadata: CommitMetadata = NOTHING,
        now_ms: int | None = None,
        bounds: Bounds = BOUNDS,
    ) -> None:
        self._bounds = bounds
        self.topic = topic
        self.partition = partition
        self.tier = tier
        self.retry_delay_seconds = retry_delay_seconds
        self.credit = credit
        self.assigned_at = now
        self.opened = False
        self.topic_id = metadata.topic_id
        self._former_since_ms = metadata.owned_since_ms
        self.owned_since_ms = _later(now_ms, metadata.owned_since_ms)
        self.reread_below = 0
        self.void_from_ms: float = math.inf
        self.offsets = PartitionOffsets(committed=committed, finished=metadata.finished)
        self.claims = Claims()
        self.done: deque[int] = deque()
        self.acquitted: deque[int] = deque()
        # Without a commit there may have been no owner. Possible outcomes are looked for, but no start waits.
        self.last_owner_died = committed is not None and not metadata.released
        self.doubt: Doubt | None = None
        self._outcomes_since = OutcomesSince(metadata.outcomes_since_ms)
        self.claims.careful_below = ANY_OFFSET if self.last_owner_died else 0
        self.claims.is_urgent = True
        self.says_alone = False
        self.lost = False
        self.refused: str | None = None
        self.finished_since: float | None = None
        self._crashes = dict(metadata.waiting)
        # No hand-over names these running offsets, so their worker died while it ran them.
        self._crashes.update({offset: crashes + 1 for offset, crashes in metadata.running})
        self._presumed = {offset for offset, _ in metadata.running}
        self._taken: set[int] = set()
        self._handed_over = dict(metadata.handed_over)
        self._leases = dict.fromkeys(self._handed_over, now + LEASE_SECONDS)

    def receive(self, offset: int) -> Verdict:
        """Notes a received record and returns the action for it."""
        if not self.offsets.receive(offset):
            return Verdict.SKIP
        if not self.claims.is_announced:
            self.claims.is_urgent = True
        if self._taken and offset in self._taken:
            self._taken.remove(offset)
            return Verdict.SKIP
        return Verdict.WITHHOLD if offset in self._handed_over else Verdict.RUN

    def is_unread(self, offset: int) -> bool:
        """Whether an offset is untouched: not received, finished, withheld or taken."""
        next_offset = self.offsets.next_offset
        return (
            (next_offset is None or offset >= next_offset)
            and not self.offsets.is_finished(offset)
            and offset not in self._handed_over
            and offset not in self._taken
        )

    def take_unread(self, offset: int) -> None:
        """Marks an offset as handed on before its turn: its record is skipped when it is received."""
        self._taken.add(offset)

    def crashes_of(self, offset: int) -> int:
        """Number of workers that died while they ran this offset. `SUSPECT_CRASHES` of them make it a suspect. One more
        is counted only if it ran alone."""
        return self._crashes.get(offset, 0)

    def log_ends_at(self, offset: int) -> None:
        """Notes ``offset`` as the log's end after the last owner's death: all that it may have started lies below."""
        if self.last_owner_died:
            self.claims.careful_below = min(self.claims.careful_below, offset)
        if self.doubt is not None and self.doubt.below is None:
            self.doubt.below = offset

    @property
    def wants_commits_soon(self) -> bool:
        """Whether starts may wait for a commit: the first ones, those that the last owner may have started, and
        suspects."""
        position = self.offsets.position()
        is_behind = position is not None and position < self.claims.careful_below
        may_wait = self.offsets.pending_count > 0 and (is_behind or not self.claims.is_announced)
        return may_wait or self.claims.may_say_alone or SUSPECT_CRASHES in self._crashes.values()

    def acknowledge(self, commit: tuple[int, str], *, says_alone: bool) -> None:
        """Notes that a commit of this assignment is the group's last one."""
        claims = self.claims
        claims.is_announced = True
        if not says_alone:
            claims.may_say_alone = False
        if claims.careful_below or self._crashes:
            metadata = decode_metadata(*commit)  # offsets cut from the metadata are not named
            claims.name(() if metadata is None else [offset for offset, _ in metadata.running])

    def drain_done(self, now: float) -> None:
        """Drains the offsets that the event loop's thread has finished. ``now``: monotonic seconds."""
        while self.acquitted:
            offset = self.acquitted.popleft()
            self._crashes.pop(offset, None)
            self._presumed.discard(offset)
        done = self.done
        if done and self.finished_since is None:
            self.finished_since = now
        while done:
            offset = done.popleft()
            self.offsets.finish(offset)
            self.claims.release(offset)
            if self._crashes:
                self._crashes.pop(offset, None)
            if self._handed_over:
                self._handed_over.pop(offset, None)
            if self._taken:
                self._taken.discard(offset)

    def apply(self, notice: Notice, now: float) -> None:
        """Applies a former owner's notice about the offsets that it still runs or ran."""
        if None not in (notice.topic_id, self.topic_id) and notice.topic_id != self.topic_id:
            return
        if notice.kind is NoticeKind.FINISHED:
            for offset in notice.offsets:
                self._handed_over.pop(offset, None)
                self.offsets.finish(offset)
        elif notice.kind is NoticeKind.RELEASED:
            for offset in notice.offsets:
                if offset in self._handed_over:
                    self._note_crashes(offset, self._handed_over.pop(offset))
        elif notice.kind is NoticeKind.LAST_COMMIT:
            self._apply_commit(notice, now)
        else:
            received_to = self.offsets.next_offset or 0
            self._expect([offset for offset in notice.offsets if offset >= received_to], now)
            for offset in notice.offsets:
                if offset in self._handed_over:
                    self._leases[offset] = now + LEASE_SECONDS

    def _apply_commit(self, notice: Notice, now: float) -> None:
        if notice.committed is None:
            return
        metadata = decode_metadata(notice.committed, notice.metadata)
        self.offsets.finish_below(notice.committed)
        if metadata is None:
            return
        for first, length in metadata.finished:
            for offset in range(first, first + length):
                self.offsets.finish(offset)
        if self._is_overruled(metadata.owned_since_ms):
            return
        if metadata.released:
            self.last_owner_died = False
            self.claims.careful_below = 0
            if not metadata.is_open:
                self.doubt = self._outcomes_since.late_ms = None
            self._outcomes_since.former_ms = metadata.outcomes_since_ms
        # The notice is newer than the commit read on assignment: the running offsets named there had no crash.
        for offset in tuple(self._presumed):
            self._acquit(offset)
        for offset, crashes in metadata.waiting + metadata.handed_over:
            if offset not in self._handed_over:
                self._crashes[offset] = max(crashes, self._crashes.get(offset, 0))
        self._expect([offset for offset, _ in metadata.handed_over], now)

    def _is_overruled(self, said_since_ms: int | None) -> bool:
        """Whether a later owner has committed since the notice's owner: the earlier one does not know the partition's
        later state."""
        former_since_ms = self._former_since_ms
        if said_since_ms is None:
            return False
        if former_since_ms is not None and said_since_ms < former_since_ms:
            return True
        self._former_since_ms = said_since_ms
        self.owned_since_ms = _later(self.owned_since_ms, said_since_ms)
        return False

    def _expect(self, offsets: Iterable[int], now: float) -> None:
        """Withholds offsets that a former owner's notice names as running."""
        for offset in offsets:
            if offset in self._handed_over or self.is_finished(offset):
                continue
            # It runs there, so the worker that ran it at the last commit did not die.
            self._acquit(offset)
            self._handed_over[offset] = self._crashes.pop(offset, 0)
            self._leases[offset] = now + LEASE_SECONDS

    def _acquit(self, offset: int) -> None:
        if offset in self._presumed:
            self._presumed.remove(offset)
            if offset in self._crashes:
                self._note_crashes(offset, self._crashes.pop(offset) - 1)

    def _note_crashes(self, offset: int, crashes: int) -> None:
        if crashes:
            self._crashes[offset] = crashes

    def lease_due(self, now: float) -> float | None:
        """The latest end of a lease that is over by the clock; None if there is none."""
        ends = (self._leases[offset] for offset in self._handed_over)
        return max((end for end in ends if end <= now), default=None)

    def end_leases(self, now: float, *, read_until: float = math.inf) -> bool:
        """Ends a lease that is over. Returns whether one ended: the former owner is silent, and what it ran counts one
        more crash.

        Silence counts only if all notices up to the lease's end were received, or after `UNREAD_SECONDS_MAX`.
        """
        ended = [
            offset
            for offset in self._handed_over
            if now >= self._leases[offset]
            and (read_until >= self._leases[offset] or now >= self._leases[offset] + UNREAD_SECONDS_MAX)
        ]
        for offset in ended:
            crashes = self._handed_over.pop(offset)
            # A suspect that was handed over need not have been alone until the end.
            self._note_crashes(offset, max(crashes, min(crashes + 1, SUSPECT_CRASHES)))
        return bool(ended)

    def is_finished(self, offset: int) -> bool:
        """Whether an offset's outcome is durable, whichever worker ran it."""
        position = self.offsets.position()
        return self.offsets.is_finished(offset) or (position is not None and offset < position)

    def is_withheld(self, offset: int) -> bool:
        """Whether a former owner may still run this offset."""
        return offset in self._handed_over or (self.doubt is not None and self.doubt.withholds(offset))

    def begin_doubt(self, now_ms: int, *, is_without_commit: bool = False) -> None:
        """Begins a doubt: the partition's owner has died, and some requests may have their outcome."""
        self.doubt = Doubt(
            since_ms=self._outcomes_since.former_ms, began_ms=now_ms, is_without_commit=is_without_commit
        )
        self._outcomes_since.late_ms = now_ms

    def commit(self, now_ms: int | None = None) -> tuple[int, str] | None:
        """The offset to commit and its metadata, while this worker goes on owning the partition.

        ``now_ms``: the brokers' time, epoch milliseconds; None for unknown.
        """
        return self._commit(self.claims.running(), now_ms, handing_over=False)

    def close(self, now_ms: int | None = None) -> tuple[tuple[int, ...], tuple[int, str] | None]:
        """Releases the partition: nothing of it starts any more. Returns the running offsets and the last commit."""
        running = self.claims.close()
        return running, self._commit(running, now_ms, handing_over=True)

    def _commit(self, running: tuple[int, ...], now_ms: int | None, *, handing_over: bool) -> tuple[int, str] | None:
        position = self.offsets.position()
        if position is None:
            return None
        self._end_doubt_when_judged()
        self._crashes = crashes = {
            offset: count for offset, count in self._crashes.items() if not self.is_finished(offset)
        }
        elsewhere = {offset: count for offset, count in self._handed_over.items() if not self.is_finished(offset)}
        executing = []
        for offset in running:
            if self.is_finished(offset):
                continue
            count = elsewhere.get(offset, crashes.get(offset, 0))
            # A running suspect is convicted if this worker dies. So only one that is alone is named as running, and not
            # one that is claimed only to report its outcome.
            if handing_over or count < SUSPECT_CRASHES or offset == self.claims.alone:
                # One that was handed over may run here too: it started before its former owner's notice was received.
                elsewhere.pop(offset, None)
                executing.append((offset, count))
        here = {offset for offset, _ in executing}
        waiting = tuple((offset, count) for offset, count in crashes.items() if offset not in here)
        withheld = tuple(elsewhere.items())
        self.says_alone = not handing_over and any(count >= SUSPECT_CRASHES for _, count in executing)
        if self.says_alone:
            self.claims.may_say_alone = True
        metadata = CommitMetadata(
            finished=self.offsets.finished_beyond(),
            running=() if handing_over else tuple(executing),
            waiting=waiting,
            handed_over=withheld + tuple(executing) if handing_over else withheld,
            released=handing_over,
            is_open=handing_over and (self.doubt is not None or self._outcomes_since.late(now_ms) is not None),
            topic_id=self.topic_id,
            owned_since_ms=self.owned_since_ms,
        )
        is_unsettled = self.doubt is not None or bool(self._handed_over)
        since_ms = self._outcomes_since.of(position, metadata, now_ms, is_unsettled=is_unsettled)
        metadata = replace(metadata, outcomes_since_ms=since_ms)
        return position, encode_metadata(position, metadata, bytes_max=self._bounds.metadata_bytes_max)

    def _end_doubt_when_judged(self) -> None:
        doubt, next_offset = self.doubt, self.offsets.next_offset
        if doubt is None or doubt.below is None or doubt.has_waiting or next_offset is None:
            return
        if next_offset >= doubt.below:
            self.doubt = None  # its unfinished requests had no outcome


def _later(now_ms: int | None, former_since_ms: int | None) -> int | None:
    """When an owner received a partition, by its own clock. Clocks may differ, and it comes after the former owner."""
    if former_since_ms is None:
        return now_ms
    return max(now_ms or 0, former_since_ms + 1)
