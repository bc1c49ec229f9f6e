"""Ownership: the partitions of one consumer as they are assigned and revoked, and the commits, notices and hand-overs
of those moments. The consumer's thread; its callbacks run inside the client's poll and never raise."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import structlog
from confluent_kafka import OFFSET_BEGINNING, KafkaError, TopicPartition

from forebay_schemas.clock import Clock
from forebay_schemas.contract.coordination import Notice
from forebay_schemas.contract.offsets_metadata import NOTHING, decode_metadata
from forebay_worker.bounds import BOUNDS, Bounds
from forebay_worker.intake.commits import Commits, PartitionKey
from forebay_worker.intake.committed import TIMEOUT_SECONDS, Committed
from forebay_worker.intake.last_words import HandedOver, publish_last_words
from forebay_worker.intake.made_anew import MadeAnew
from forebay_worker.intake.protocols import KafkaConsumer, OnCommit, Peers, TopicIds
from forebay_worker.intake.seeks import Seeks
from forebay_worker.intake.stalls import Stalls
from forebay_worker.partition.assignment import Assignment
from forebay_worker.partition.notices import RecentNotices
from forebay_worker.partition.opening import may_open
from forebay_worker.partition.sources import Source
from forebay_worker.request.work import Record

PENDING_RECORDS_MAX = 100_000
"""Most records of a partition beyond its commit: behind one slow request each costs 100 bytes."""

LOOK_SECONDS = 0.2  # between two readings of the partitions' positions

log = structlog.get_logger("forebay.ownership")


class Ownership:
    """The partitions that one consumer owns.

    ``hand_over`` receives a revoked partition whose requests still run, ``forget`` every revoked partition,
    ``drop_withheld`` one whose topic was deleted. ``explain`` puts the group's error into words.
    """

    def __init__(
        self,
        *,
        name: str,
        make_consumer: Callable[[OnCommit], KafkaConsumer],
        sources: list[Source],
        clock: Clock,
        peers: Peers,
        topic_ids: TopicIds,
        hand_over: Callable[[HandedOver], None],
        forget: Callable[[Assignment], None],
        drop_withheld: Callable[[Assignment], None],
        explain: Callable[[KafkaError, str], str],
        bounds: Bounds = BOUNDS,
    ) -> None:
        self._bounds = bounds
        self._name = name
        self._sources = {source.topic: source for source in sources}
        self._clock = clock
        self._peers = peers
        self._topic_ids = topic_ids
        self._hand_over = hand_over
        self._forget = forget
        self._is_closing = False
        self._notices = RecentNotices(bounds)
        self._paused: set[PartitionKey] = set()
        self._committed = Committed(name=name, topic=sources[0].topic, explain=explain)
        self.assignments: dict[PartitionKey, Assignment] = {}
        self.received: deque[tuple[Notice, float]] = deque()
        self.assigned_once = False
        self.rebalances = 0
        self.progress = Stalls()
        self._look_at = 0.0
        self.commits = Commits(name=name, assignments=self.assignments, explain=explain)
        self._seeks = Seeks(self.assignments)
        self._made_anew = MadeAnew(
            assignments=self.assignments,
            commits=self.commits,
            seeks=self._seeks,
            topic_ids=topic_ids,
            clock=clock,
            drop_withheld=drop_withheld,
            bounds=bounds,
        )
        self.consumer = make_consumer(self.commits.on_commit)
        self.consumer.subscribe(
            list(self._sources), on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )

    @property
    def unknown_because(self) -> str:
        """The broker's error when it was last asked for committed offsets."""
        return self._committed.unknown_because

    @property
    def unknown_count(self) -> int:
        """Number of assigned partitions whose committed offsets are unknown."""
        return len(self._committed.unknown)

    @property
    def is_opening(self) -> bool:
        """Whether a partition waits for its former owner's notices."""
        return any(not assignment.opened for assignment in self.assignments.values())

    @property
    def wants_commits_soon(self) -> bool:
        """Whether starts may wait for a commit."""
        return any(assignment.wants_commits_soon for assignment in self.assignments.values())

    @property
    def is_all_paused(self) -> bool:
        """Whether nothing can come from any partition."""
        return len(self._paused) == len(self.assignments)

    @property
    def remade_count(self) -> int:
        """Number of partitions tracked anew because their topic was recreated or its log lost its end."""
        return self._made_anew.count

    def step(self, now: float) -> None:
        """One turn: drain finished offsets, apply notices, commit if due, open cleared partitions."""
        for assignment in self.assignments.values():
            assignment.drain_done(now)
        if now >= self._look_at:
            self._look_at = now + LOOK_SECONDS
            self.progress.look(self.assignments, now)
            for assignment in self.assignments.values():
                if assignment.doubt is not None:
                    assignment.doubt.forget_unused(now)
        self._apply_notices(now)
        self.commits.commit_when_due(self.consumer, now, self._clock.wall_ms())
        for partition in self._committed.ask_again(self.consumer, now):
            self._learn(partition)
        self._open_assignments(now)
        self._made_anew.step(is_opening=self.is_opening)
        self._seeks.step(self.consumer, now)

    def adjust_pauses(self, is_blocked: Callable[[Assignment, bool], bool]) -> None:
        """Pauses the partitions from which nothing may be taken, and resumes the others.

        ``is_blocked`` is called with whether the partition is paused now.
        """
        wanted = {
            key
            for key, assignment in self.assignments.items()
            if not assignment.opened
            or assignment.refused is not None
            or self._is_stretched(key, assignment)
            or is_blocked(assignment, key in self._paused)
        }
        pause, resume = wanted - self._paused, self._paused - wanted
        if pause:
            self.consumer.pause([TopicPartition(*key) for key in pause])
        if resume:
            self.consumer.resume([TopicPartition(*key) for key in resume])
        self._paused = wanted

    def close(self) -> None:
        """Commits finished offsets, hands over running requests, and leaves the group."""
        self._is_closing = True
        self._revoke(list(self.assignments), lost=False)
        self.consumer.close()

    def seek_back(self, topic: str | None = None, partition: int | None = None) -> None:
        """Seeks one partition, or all, back to the last received record; retried at each step until it succeeds."""
        if topic is None or partition is None:
            self._seeks.add(*self.assignments)
        elif (topic, partition) in self.assignments:
            self._seeks.add((topic, partition))

    def owner_of(self, record: Record) -> Assignment | None:
        """The assignment of a record; None if the record must not be taken. Then its partition was released, or must be
        sought back first, which reads the record again after those that the client freed."""
        key = (record.topic(), record.partition())
        return None if key in self._seeks else self.assignments.get(key)

    def ended(self, end: Record) -> None:
        """Notes that a partition was read up to this event's offset, whether or not a record lies just before it."""
        assignment = self.owner_of(end)
        if assignment is None or not assignment.opened:
            return
        if end.offset() < (assignment.offsets.next_offset or 0):
            self._made_anew.look_soon()  # it may be another topic's log
        assignment.offsets.end_at(end.offset())

    def look_at_topics(self) -> None:
        """Schedules an early check whether the tracked topics still exist."""
        self._made_anew.look_soon()

    def renewed(self, old: Assignment, offset: int) -> Assignment | None:
        """The new assignment of a record that the log should not have; None if the record is expected.

        A log that ends below the read offsets was deleted with its topic, or lost its end with its brokers. The known
        offsets then belong to deleted records, so tracking begins anew. Requests taken before go on running and have
        nothing to commit.
        """
        key = (old.topic, old.partition)
        end = self.consumer.get_watermark_offsets(TopicPartition(*key), timeout=TIMEOUT_SECONDS)[1]
        known_below = old.offsets.next_offset
        if known_below is None or end >= known_below:
            return None
        log.error("records are gone from the end of a log", topic=key[0], partition=key[1], end=end, read=known_below)
        self._made_anew.look_soon()
        return self._made_anew.begin(old, committed=offset)

    def _is_stretched(self, key: PartitionKey, assignment: Assignment) -> bool:
        """Whether the commit metadata is almost full, or too many offsets are finished beyond the commit; until both
        are down to half.

        Never while nothing received is unfinished: a former owner's full metadata shrinks only by reading on.
        """
        share = 2 if key in self._paused else 1
        pending = assignment.offsets.pending_count
        return pending > 0 and (
            self.commits.metadata_bytes(key) >= self._bounds.metadata_bytes_nearly_full // share
            or pending >= PENDING_RECORDS_MAX // share
        )

    def _apply_notices(self, now: float) -> None:
        while self.received:
            notice, age_seconds = self.received.popleft()
            self._notices.receive(notice, now, age_seconds=age_seconds)
            key = (notice.topic, notice.partition)
            assignment = self.assignments.get(key)
            if assignment is None:
                continue
            next_offset = assignment.offsets.next_offset
            assignment.apply(notice, now)
            if assignment.offsets.next_offset != next_offset:
                self._seeks.add(key)  # its former owner had committed more

    def _open_assignments(self, now: float) -> None:
        if all(assignment.opened for assignment in self.assignments.values()):
            return
        read_until, known_until = self._peers.read_until, self._topic_ids.known_until
        self._apply_notices(now)  # after the clock reading: notices received until then are applied now
        for assignment in self.assignments.values():
            if assignment.opened:
                continue
            if may_open(
                assigned_at=assignment.assigned_at,
                now=now,
                read_until=read_until,
                read_at=self._peers.read_at,
                known_until=known_until,
            ):
                assignment.opened = True
                assignment.claims.is_urgent = True  # its first commit, for which starts wait
                self._made_anew.compare_all()
                if read_until < assignment.assigned_at:
                    log.warning("coordination not read in time", topic=assignment.topic, partition=assignment.partition)

    def _on_assign(self, _consumer: Any, partitions: list[TopicPartition]) -> None:
        if self._is_closing:
            # A rebalance may end while the client leaves: it takes the partitions and releases them at once. Nobody
            # answers a request for their commits then, and all other partitions would wait for it.
            return
        try:
            self._assign(partitions)
        except Exception as error:  # an exception here would lose fetched records
            log.error("assignment failed", intake=self._name, error=str(error), exc_info=error)
            # The client then assigns them itself, unpaused and from any offset.
            for partition in partitions:
                key = (partition.topic, partition.partition)
                if key in self.assignments:
                    self._seeks.add(key)
                else:
                    self._committed.unknown.add(key)

    def _assign(self, partitions: list[TopicPartition]) -> None:
        self.rebalances += 1
        self.assigned_once = True
        if not partitions:
            return
        committed = self._committed.ask(self.consumer, partitions)
        if committed is None:
            # Nothing may run until the finished offsets are known: `step` asks again until it has them, and then seeks.
            # With OFFSET_STORED the client would ask the coordinator too, and refuse to seek until it has an answer.
            starts = [TopicPartition(each.topic, each.partition, OFFSET_BEGINNING) for each in partitions]
            self.consumer.incremental_assign(starts)
            self.consumer.pause(starts)
            self._committed.unknown.update((start.topic, start.partition) for start in starts)
        else:
            starts = [self._own(partition) for partition in committed]
            self.consumer.incremental_assign(starts)
            self.consumer.pause(starts)
            self._paused.update((start.topic, start.partition) for start in starts)
        log.info("partitions assigned", intake=self._name, partitions=_named(starts))

    def _own(self, committed: TopicPartition) -> TopicPartition:
        """Begins to track a partition. Returns the offset to read from."""
        now = self._clock.monotonic()
        key = (committed.topic, committed.partition)
        source = self._sources[committed.topic]
        offset = committed.offset if committed.offset >= 0 else None
        metadata = NOTHING
        if offset is not None:
            decoded = decode_metadata(offset, committed.metadata)
            if decoded is None:
                log.warning("foreign commit metadata ignored", topic=committed.topic, partition=committed.partition)
            else:
                metadata = decoded
        assignment = Assignment(
            topic=committed.topic,
            partition=committed.partition,
            tier=source.tier,
            retry_delay_seconds=source.retry_delay_seconds,
            credit=source.credit,
            now=now,
            committed=offset,
            metadata=metadata,
            now_ms=self._clock.wall_ms(),
            bounds=self._bounds,
        )
        # A missing commit does not prove that there was no owner: one may have died before its first commit.
        if assignment.last_owner_died or metadata.is_open or offset is None:
            assignment.begin_doubt(self._clock.wall_ms(), is_without_commit=offset is None)
        if assignment.topic_id is None:
            assignment.topic_id = self._topic_ids.id_of(committed.topic)
        self._notices.apply_to(assignment, now)
        self._peers.listen_until(now)
        self._topic_ids.look_until(now)
        self.assignments[key] = assignment
        # Without a commit the partition is read from its first record.
        start = assignment.offsets.next_offset
        return TopicPartition(*key, OFFSET_BEGINNING if start is None else start)

    def _learn(self, committed: TopicPartition) -> None:
        """Tracks a partition whose commit became known after its assignment."""
        key = (committed.topic, committed.partition)
        self._own(committed)
        self._committed.unknown.remove(key)
        self._seeks.add(key)
        self.consumer.pause([TopicPartition(*key)])
        self._paused.add(key)

    def _on_revoke(self, _consumer: Any, partitions: list[TopicPartition]) -> None:
        try:
            self.rebalances += 1
            self._revoke([(partition.topic, partition.partition) for partition in partitions], lost=False)
        except Exception as error:  # an exception here would lose fetched records
            log.error("revocation failed", intake=self._name, error=str(error), exc_info=error)

    def _on_lost(self, _consumer: Any, partitions: list[TopicPartition]) -> None:
        try:
            self.rebalances += 1
            log.warning("partitions lost", intake=self._name, partitions=_named(partitions))
            self._revoke([(partition.topic, partition.partition) for partition in partitions], lost=True)
        except Exception as error:  # an exception here would lose fetched records
            log.error("releasing lost partitions failed", intake=self._name, error=str(error), exc_info=error)

    def _revoke(self, keys: list[PartitionKey], *, lost: bool) -> None:
        """Releases partitions: nothing of them starts any more, and nothing is committed for them afterwards.

        Revoked ones are committed a last time, with their finished and running offsets. Of lost ones another member may
        have committed more already.
        """
        last: dict[PartitionKey, tuple[int, str]] = {}
        handed_over = []
        for key in keys:
            self._committed.unknown.discard(key)
            # First, since what follows may fail: nothing is committed for it again.
            assignment = self.assignments.pop(key, None)
            if assignment is None:
                continue
            self._paused.discard(key)
            self._seeks.discard(key)
            self.commits.forget(key)
            assignment.lost = lost
            assignment.drain_done(self._clock.monotonic())
            running, commit = assignment.close(self._clock.wall_ms())
            # Nothing of an unopened partition ran, and its former owner's notices may be unread.
            if commit is not None and assignment.opened:
                last[key] = commit
            handed_over.append(HandedOver(assignment=assignment, running=running))
        if not lost:
            lost = not publish_last_words(
                last,
                handed_over,
                commits=self.commits,
                consumer=self.consumer,
                clock=self._clock,
                peers=self._peers,
            )
        for over in handed_over:
            over.assignment.lost = lost
            self._forget(over.assignment)
            if over.running and not lost:
                self._hand_over(over)
        if handed_over:
            log.info("partitions released", intake=self._name, partitions=sorted(keys), lost=lost)


def _named(partitions: list[TopicPartition]) -> list[str]:
    return [f"{partition.topic}/{partition.partition}" for partition in partitions]
