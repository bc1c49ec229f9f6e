"""One partition for as long as this worker owns it: which of its records to run, to skip or to withhold, and what to
commit. Pure; the consumer's thread owns it, but for the two members named in `Assignment`."""

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
"""A request that was running alone when its worker died is not run again: nothing else can have killed it."""

UNREAD_SECONDS_MAX = 60.0
"""So long a lease may go on when what is said cannot be read: a topic that was denied must not withhold for ever."""


class Verdict(Enum):
    """What to do with a record that arrived."""

    RUN = "run"
    SKIP = "skip"
    WITHHOLD = "withhold"


class Assignment:
    """``claims`` is shared with dispatch. ``done`` takes finished offsets from the event loop's thread to this one,
    ``acquitted`` those of suspects that ended, or outlived their time alone, without killing their worker.

    ``lost`` is set when the partition was taken away without a hand-over: its new owner runs again what runs here.
    ``opened`` is set once all that former owners said before they let go was heard: nothing is taken before.
    ``refused`` is why Kafka refuses this partition's outcomes for good; None while it does not.
    ``last_owner_died``: nothing says that it let go of the partition. ``doubt``: what it left without a commit that
    says whether it has its outcome; None when nothing is.
    ``says_alone``: the commit made last names a suspect as the only request that runs in this worker.
    ``topic_id``: of the topic that it tracks, which a name alone does not tell; None while it is not known.
    ``owned_since_ms``: as in a commit.
    ``reread_below``: below this offset it may receive what an assignment before it has received, since its topic was
    deleted and made anew meanwhile. ``void_from_ms``: of that one before, what was written at this time (the broker's,
    epoch milliseconds) or later must not start; it is received again.
    ``finished_since``: when (monotonic) the oldest offset finished that no commit on its way tells of; None for none.
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
        # Without any commit there may have been no owner: what one may have left is looked for, but no start waits.
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
        # Nobody says that these still run, so a worker died while it ran them.
        self._crashes.update({offset: crashes + 1 for offset, crashes in metadata.running})
        self._presumed = {offset for offset, _ in metadata.running}
        self._taken: set[int] = set()
        self._handed_over = dict(metadata.handed_over)
        self._leases = dict.fromkeys(self._handed_over, now + LEASE_SECONDS)

    def receive(self, offset: int) -> Verdict:
        """Notes that a record arrived and says what to do with it."""
        if not self.offsets.receive(offset):
            return Verdict.SKIP
        if not self.claims.is_announced:
            self.claims.is_urgent = True
        if self._taken and offset in self._taken:
            self._taken.remove(offset)
            return Verdict.SKIP
        return Verdict.WITHHOLD if offset in self._handed_over else Verdict.RUN

    def is_unread(self, offset: int) -> bool:
        """Whether nobody has anything to do with an offset yet: not received, not finished, not withheld, not taken."""
        next_offset = self.offsets.next_offset
        return (
            (next_offset is None or offset >= next_offset)
            and not self.offsets.is_finished(offset)
            and offset not in self._handed_over
            and offset not in self._taken
        )

    def take_unread(self, offset: int) -> None:
        """Its record was handed on before its turn: when it is received it is skipped."""
        self._taken.add(offset)

    def crashes_of(self, offset: int) -> int:
        """How many workers died while they ran this offset. `SUSPECT_CRASHES` of them make it a suspect; one more is
        counted only if it ran alone."""
        return self._crashes.get(offset, 0)

    def log_ends_at(self, offset: int) -> None:
        """What a last owner that died may have started lies below ``offset``, an end of the log after its death."""
        if self.last_owner_died:
            self.claims.careful_below = min(self.claims.careful_below, offset)
        if self.doubt is not None and self.doubt.below is None:
            self.doubt.below = offset

    @property
    def wants_commits_soon(self) -> bool:
        """Whether starts may wait for a commit: the first ones, those of what the last owner may have started, and
        those of suspects."""
        position = self.offsets.position()
        is_behind = position is not None and position < self.claims.careful_below
        may_wait = self.offsets.pending_count > 0 and (is_behind or not self.claims.is_announced)
        return may_wait or self.claims.may_say_alone or SUSPECT_CRASHES in self._crashes.values()

    def acknowledge(self, commit: tuple[int, str], *, says_alone: bool) -> None:
        """A commit of this assignment is the group's last one."""
        claims = self.claims
        claims.is_announced = True
        if not says_alone:
            claims.may_say_alone = False
        if claims.careful_below or self._crashes:
            metadata = decode_metadata(*commit)  # what was cut is not named
            claims.name(() if metadata is None else [offset for offset, _ in metadata.running])

    def drain_done(self, now: float) -> None:
        """Takes over what the event loop's thread has finished. ``now``: monotonic seconds."""
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
        """Takes in what a former owner says of the offsets it still runs or ran."""
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
        # It was made after the one that was read on assignment: what that one called running had not died.
        for offset in tuple(self._presumed):
            self._acquit(offset)
        for offset, crashes in metadata.waiting + metadata.handed_over:
            if offset not in self._handed_over:
                self._crashes[offset] = max(crashes, self._crashes.get(offset, 0))
        self._expect([offset for offset, _ in metadata.handed_over], now)

    def _is_overruled(self, said_since_ms: int | None) -> bool:
        """Whether a later owner than the one that says something has committed since: what became of the partition
        there is not known to the earlier one."""
        former_since_ms = self._former_since_ms
        if said_since_ms is None:
            return False
        if former_since_ms is not None and said_since_ms < former_since_ms:
            return True
        self._former_since_ms = said_since_ms
        self.owned_since_ms = _later(self.owned_since_ms, said_since_ms)
        return False

    def _expect(self, offsets: Iterable[int], now: float) -> None:
        """Withholds these too: a former owner said that it runs them."""
        for offset in offsets:
            if offset in self._handed_over or self.is_finished(offset):
                continue
            # It runs there: whoever ran it at the last commit did not die.
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
        """The end of a lease that is over by the clock, the latest of them; None when none is."""
        ends = (self._leases[offset] for offset in self._handed_over)
        return max((end for end in ends if end <= now), default=None)

    def end_leases(self, now: float, *, read_until: float = math.inf) -> bool:
        """Whether a lease has just ended: that former owner is silent, so what it ran counts as one more crash.

        Silence counts only while one can hear: what was said until the lease's end must have been heard, but for
        `UNREAD_SECONDS_MAX`.
        """
        ended = [
            offset
            for offset in self._handed_over
            if now >= self._leases[offset]
            and (read_until >= self._leases[offset] or now >= self._leases[offset] + UNREAD_SECONDS_MAX)
        ]
        for offset in ended:
            crashes = self._handed_over.pop(offset)
            # A suspect that was handed over need not have been alone to the end.
            self._note_crashes(offset, max(crashes, min(crashes + 1, SUSPECT_CRASHES)))
        return bool(ended)

    def is_finished(self, offset: int) -> bool:
        """Whether an offset's outcome is durable, wherever it was run."""
        position = self.offsets.position()
        return self.offsets.is_finished(offset) or (position is not None and offset < position)

    def is_withheld(self, offset: int) -> bool:
        """Whether a former owner may still run this offset."""
        return offset in self._handed_over or (self.doubt is not None and self.doubt.withholds(offset))

    def begin_doubt(self, now_ms: int, *, is_without_commit: bool = False) -> None:
        """Whoever ran this partition, or what is left of it, has died: some of it may have its outcome."""
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
        """Gives the partition up: nothing of it starts any more. Returns what still runs, and the last commit."""
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
            # Running, a suspect is convicted if this worker dies: only one that is alone may be said to run, and not
            # one that is claimed for its outcome.
            if handing_over or count < SUSPECT_CRASHES or offset == self.claims.alone:
                # One that was handed over may run here all the same: it started before its former owner was heard.
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
            self.doubt = None  # what of it has not ended had no outcome


def _later(now_ms: int | None, former_since_ms: int | None) -> int | None:
    """When an owner was given a partition, as it says it itself: clocks may differ, and it comes after the former."""
    if former_since_ms is None:
        return now_ms
    return max(now_ms or 0, former_since_ms + 1)
