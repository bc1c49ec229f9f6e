"""Ownership: the partitions of one consumer as they come and go, with what must be known, heard, committed and handed
over at those moments. The consumer's thread uses it; its callbacks run inside the client's poll and never raise."""

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
"""How many records of a partition may lie beyond its commit: behind one slow request each costs 100 bytes."""

LOOK_SECONDS = 0.2  # between two looks at how far the partitions have come

log = structlog.get_logger("forebay.ownership")


class Ownership:
    """The partitions that one consumer owns.

    ``hand_over`` is given a partition that was revoked while requests of it run on, ``forget`` every partition that was
    revoked, ``drop_withheld`` one whose topic was deleted. ``explain`` says in words why the group does not tell.
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
        """What the broker said when it was last asked for committed offsets in vain."""
        return self._committed.unknown_because

    @property
    def unknown_count(self) -> int:
        """How many partitions are assigned whose committed offsets the broker has not told yet."""
        return len(self._committed.unknown)

    @property
    def is_opening(self) -> bool:
        """Whether a partition waits for what its former owner may have said."""
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
        """How many partitions were begun anew: their topic was deleted and made anew, or lost the end of its log."""
        return self._made_anew.count

    def step(self, now: float) -> None:
        """Takes in what finished and what was heard, commits when it is time, opens what may be read."""
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
        """Pauses the partitions that nothing may be taken from, and resumes the others.

        ``is_blocked`` is asked with whether the partition is paused now.
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
        """Commits what is finished, hands over what runs, and leaves the group."""
        self._is_closing = True
        self._revoke(list(self.assignments), lost=False)
        self.consumer.close()

    def seek_back(self, topic: str | None = None, partition: int | None = None) -> None:
        """Goes back to what was really received, of one partition or of all: at the next step, and until it holds."""
        if topic is None or partition is None:
            self._seeks.add(*self.assignments)
        elif (topic, partition) in self.assignments:
            self._seeks.add((topic, partition))

    def owner_of(self, record: Record) -> Assignment | None:
        """The assignment a record belongs to; None when it is not to be taken: the partition was given up in between,
        or is to be sought back, and then the record comes again behind those that were freed."""
        key = (record.topic(), record.partition())
        return None if key in self._seeks else self.assignments.get(key)

    def ended(self, end: Record) -> None:
        """A partition was read up to the offset of this event, whether or not there was a record just before it."""
        assignment = self.owner_of(end)
        if assignment is None or not assignment.opened:
            return
        if end.offset() < (assignment.offsets.next_offset or 0):
            self._made_anew.look_soon()  # it may be another log
        assignment.offsets.end_at(end.offset())

    def look_at_topics(self) -> None:
        """Has it looked soon whether the topics are still those that are tracked."""
        self._made_anew.look_soon()

    def renewed(self, old: Assignment, offset: int) -> Assignment | None:
        """What a partition's record that should be known belongs to: None if it is known.

        If the log ends below what was read of it, its topic was deleted and made anew, or its end was lost with the
        brokers that had it: what is known of these offsets speaks of records that are gone, so tracking begins anew.
        What was taken before still runs, and has nothing to commit.
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
        """Whether commits can hardly say what is finished beyond them, or too much is; until both are down to half.

        Never while nothing received is unfinished: what a former owner left full only becomes less by reading on.
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
                self._seeks.add(key)  # its former owner had come further

    def _open_assignments(self, now: float) -> None:
        if all(assignment.opened for assignment in self.assignments.values()):
            return
        read_until, known_until = self._peers.read_until, self._topic_ids.known_until
        self._apply_notices(now)  # after the look at the time: what came until then is here now
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
                assignment.claims.is_urgent = True  # its first commit, which starts wait for
                self._made_anew.compare_all()
                if read_until < assignment.assigned_at:
                    log.warning(
                        "coordination not heard in time", topic=assignment.topic, partition=assignment.partition
                    )

    def _on_assign(self, _consumer: Any, partitions: list[TopicPartition]) -> None:
        if self._is_closing:
            # A rebalance that ends while the client says goodbye: it takes them, and gives them back at once. A
            # question for their commits is not answered any more, and all others would wait for it.
            return
        try:
            self._assign(partitions)
        except Exception as error:  # an exception here would lose fetched records
            log.error("assignment failed", intake=self._name, error=str(error), exc_info=error)
            # The client assigns them itself then, unpaused and from wherever it likes.
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
            # Without knowing what is finished nothing may run: `step` asks again until it is told, and seeks then. With
            # OFFSET_STORED the client would ask the coordinator too, and refuse to seek until it has its answer.
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
        """Begins to track a partition; returns where to read it from."""
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
        # Without any commit nobody can say that there was no owner: it may have died before its first one was taken.
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
        """Tracks a partition that was assigned before this was known of it."""
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
            log.error("giving up lost partitions failed", intake=self._name, error=str(error), exc_info=error)

    def _revoke(self, keys: list[PartitionKey], *, lost: bool) -> None:
        """Gives partitions up: nothing of them starts any more, and nothing is committed for them afterwards.

        Revoked ones are committed a last time, with what is finished and what runs; of lost ones another member may
        have committed more already.
        """
        last: dict[PartitionKey, tuple[int, str]] = {}
        handed_over = []
        for key in keys:
            self._committed.unknown.discard(key)
            # Before anything that might fail: nothing is committed for it again.
            assignment = self.assignments.pop(key, None)
            if assignment is None:
                continue
            self._paused.discard(key)
            self._seeks.discard(key)
            self.commits.forget(key)
            assignment.lost = lost
            assignment.drain_done(self._clock.monotonic())
            running, commit = assignment.close(self._clock.wall_ms())
            # Of one that was not opened nothing ran, and what its former owner said need not have been heard yet.
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
            log.info("partitions let go", intake=self._name, partitions=sorted(keys), lost=lost)


def _named(partitions: list[TopicPartition]) -> list[str]:
    return [f"{partition.topic}/{partition.partition}" for partition in partitions]
