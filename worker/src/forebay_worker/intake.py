"""Intake: takes records out of Kafka as dispatch allows, and commits what is finished.

One thread owns the consumer and runs `step` for ever; nothing else touches the consumer. Callbacks never raise, and
after any exception from the client every partition is sought back to where the tracker stands: else records that the
client freed without handing them over would be committed past.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import structlog
from confluent_kafka import OFFSET_BEGINNING, OFFSET_STORED, KafkaError, KafkaException, TopicPartition

from forebay_schemas.clock import Clock
from forebay_schemas.coordination import Notice, NoticeKind
from forebay_schemas.envelope import Codec, deadline_ms, priority_in
from forebay_schemas.errors import EnvelopeError
from forebay_schemas.headers import read_history, record_headers
from forebay_schemas.offsets_metadata import METADATA_BYTES_MAX, NOTHING, decode_metadata
from forebay_schemas.tiers import Tier
from forebay_worker.assignment import Assignment, Verdict
from forebay_worker.commits import Commits, PartitionKey
from forebay_worker.credit import Credit
from forebay_worker.held import Held
from forebay_worker.lanes import cost_bytes
from forebay_worker.notices import RecentNotices
from forebay_worker.work import Record, Work

CONSUME_RECORDS_MAX = 1_000
POLL_SECONDS = 0.2
OPENING_POLL_SECONDS = 0.02
FULL_SECONDS_BEFORE_PAUSE = 0.5
METADATA_BYTES_NEARLY_FULL = METADATA_BYTES_MAX * 3 // 4
COMMITTED_TIMEOUT_SECONDS = 2.0
ASK_AGAIN_SECONDS = 0.5
LISTEN_SECONDS_MAX = 10.0
LANE_FULL_WAIT_SECONDS = 0.05

log = structlog.get_logger("forebay.intake")

OnCommit = Callable[[KafkaError | None, list[TopicPartition]], None]


class KafkaConsumer(Protocol):
    """What is used of confluent-kafka's Consumer; the simulated broker gives the same."""

    def subscribe(self, topics: list[str], *, on_assign: Any, on_revoke: Any, on_lost: Any) -> None: ...
    def poll(self, timeout: float) -> Record | None: ...
    def consume(self, num_messages: int, timeout: float) -> list[Record]: ...
    def commit(self, *, offsets: list[TopicPartition], asynchronous: bool) -> Any: ...
    def committed(self, partitions: list[TopicPartition], timeout: float) -> list[TopicPartition]: ...
    def incremental_assign(self, partitions: list[TopicPartition]) -> None: ...
    def pause(self, partitions: list[TopicPartition]) -> None: ...
    def resume(self, partitions: list[TopicPartition]) -> None: ...
    def seek(self, partition: TopicPartition) -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What an intake must know of a topic. ``retry_delay_seconds`` is 0 for a topic of requests."""

    topic: str
    tier: Tier
    retry_delay_seconds: int
    credit: Credit


@dataclass(frozen=True, slots=True, kw_only=True)
class HandedOver:
    """A partition that was let go of while requests of it run on here."""

    assignment: Assignment
    running: tuple[int, ...]


class Peers(Protocol):
    """The other workers, as an intake sees them."""

    @property
    def worker_id(self) -> str:
        """This worker's own id."""
        ...

    @property
    def heard_until(self) -> float:
        """All that was said before this moment (monotonic seconds) has been heard."""
        ...

    def listen_until(self, now: float) -> None:
        """Asks for `heard_until` to reach ``now``."""
        ...

    def tell(self, notices: list[Notice]) -> bool:
        """Says something and waits until it is durable, a second at most. False: it may not be."""
        ...


class Intake:
    """Owns one consumer. ``deliver`` hands batches to dispatch, ``hand_over`` what runs on after a partition left.

    ``deliver`` is called with records of one credit; both are called on the consumer's thread and must not block.
    """

    def __init__(
        self,
        *,
        name: str,
        make_consumer: Callable[[OnCommit], KafkaConsumer],
        sources: list[Source],
        codec: Codec,
        clock: Clock,
        deliver: Callable[[list[Work]], None],
        hand_over: Callable[[HandedOver], None],
        peers: Peers,
    ) -> None:
        self.name = name
        self._peers = peers
        self._sources = {source.topic: source for source in sources}
        self._codec = codec
        self._clock = clock
        self._deliver = deliver
        self._hand_over = hand_over
        self._assignments: dict[PartitionKey, Assignment] = {}
        self._epoch = 0
        self._held = Held()
        self._notices = RecentNotices()
        self._full_since: float | None = None
        self._full = False
        self._paused: set[PartitionKey] = set()
        self._unknown: set[PartitionKey] = set()
        self._ask_at = 0.0
        self.heard: deque[Notice] = deque()
        self.heartbeat = clock.monotonic()
        self.assigned_once = False
        self.rebalances = 0
        self.trouble: str | None = None
        self.commits = Commits(name=name, assignments=self._assignments)
        self._consumer = make_consumer(self.commits.on_commit)
        self._consumer.subscribe(
            list(self._sources), on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )

    @property
    def assigned(self) -> dict[str, list[int]]:
        """The partitions this worker owns: topic -> ascending numbers."""
        owned: dict[str, list[int]] = {}
        for topic, partition in sorted(self._assignments.copy()):
            owned.setdefault(topic, []).append(partition)
        return owned

    @property
    def unfinished_records(self) -> int:
        """How many received records hold an offset that cannot be committed yet."""
        return sum(assignment.offsets.pending_count for assignment in self._assignments.copy().values())

    @property
    def held_records(self) -> int:
        """How many received records must not start yet."""
        return len(self._held)

    @property
    def troubles(self) -> list[str]:
        """What is wrong for longer than a moment."""
        found = [self.trouble] if self.trouble is not None else []
        if self._unknown:
            found.append(f"{self.name}: committed offsets unknown of {len(self._unknown)} partitions")
        for (topic, partition), assignment in self._assignments.copy().items():
            if assignment.refused is not None:
                found.append(f"{topic}/{partition}: outcomes are refused: {assignment.refused}")
        return found

    def step(self) -> None:
        """One turn: notes what finished, commits when it is time, takes what is allowed. Blocks for up to 0.2 s."""
        now = self.heartbeat = self._clock.monotonic()
        for assignment in self._assignments.values():
            assignment.drain_done()
        self._heed_notices(now)
        self._release_held(now)
        self.commits.commit_when_due(self._consumer, now)
        try:
            self._learn_committed(now)
            self._open_assignments(now)
            self._adjust_pauses(now)
            self._take(now)
        except Exception as error:  # noqa: BLE001 - whatever it was, records may have been freed unseen
            self._seek_back(error)

    def close(self) -> None:
        """Commits what is finished, hands over what runs, and leaves the group."""
        self._let_go(list(self._assignments), lost=False)
        self._consumer.close()

    # Taking.

    def _take(self, now: float) -> None:
        room = self._room()
        if room > 0 or self._full or self._all_paused():
            first = self._consumer.poll(self._poll_seconds(now))
            more = min(room, CONSUME_RECORDS_MAX) - 1
            rest = self._consumer.consume(more, 0) if first is not None and more > 0 else []
            if first is not None:
                self._sort([first, *rest], now)
        else:
            # Full, but perhaps for a moment only: a pause would throw the prefetched records away.
            next(iter(self._sources.values())).credit.wait(LANE_FULL_WAIT_SECONDS)

    def _room(self) -> int:
        """How many records to ask for. Those of a retry topic are bounded by what its partition may hold."""
        only = next(iter(self._sources.values()))
        return only.credit.room_records if only.retry_delay_seconds == 0 else CONSUME_RECORDS_MAX // 4

    def _poll_seconds(self, now: float) -> float:
        due = self._held.next_due
        if any(not assignment.opened for assignment in self._assignments.values()):
            return OPENING_POLL_SECONDS
        return POLL_SECONDS if due is None else min(POLL_SECONDS, max(0.0, due - now))

    def _open_assignments(self, now: float) -> None:
        if all(assignment.opened for assignment in self._assignments.values()):
            return
        heard_until = self._peers.heard_until
        self._heed_notices(now)  # after the look at the time: what came until then is here now
        for assignment in self._assignments.values():
            if assignment.opened:
                continue
            overdue = now - assignment.assigned_at > LISTEN_SECONDS_MAX
            if heard_until >= assignment.assigned_at or overdue:
                assignment.opened = True
                if overdue:
                    log.warning(
                        "coordination not heard in time", topic=assignment.topic, partition=assignment.partition
                    )

    def _adjust_pauses(self, now: float) -> None:
        """Pauses the partitions that nothing may be taken from, and resumes the others.

        The lane counts as full after half a second without room, and until it is half empty.
        """
        source = next(iter(self._sources.values()))
        if self._room() > 0:
            self._full_since = None
            if self._full and source.credit.is_half_free:
                self._full = False
        elif self._full_since is None:
            self._full_since = now
        elif now - self._full_since >= FULL_SECONDS_BEFORE_PAUSE:
            self._full = True
        wanted = {key for key, assignment in self._assignments.items() if self._is_blocked(key, assignment)}
        pause, resume = wanted - self._paused, self._paused - wanted
        if pause:
            self._consumer.pause([TopicPartition(*key) for key in pause])
        if resume:
            self._consumer.resume([TopicPartition(*key) for key in resume])
        self._paused = wanted

    def _is_blocked(self, key: PartitionKey, assignment: Assignment) -> bool:
        return (
            self._full
            or not assignment.opened
            or assignment.refused is not None
            or self.commits.metadata_bytes(key) >= METADATA_BYTES_NEARLY_FULL
            or self._held.is_full(assignment, was_full=key in self._paused)
        )

    def _all_paused(self) -> bool:
        return len(self._paused) == len(self._assignments)

    def _sort(self, records: list[Record], now: float) -> None:
        """Hands on what may run, holds what may not yet, skips what is finished or no longer ours."""
        batch: list[Work] = []
        for record in records:
            error = record.error()
            if error is not None:
                self._on_record_error(record, error)
                continue
            assignment = self._assignments.get((record.topic(), record.partition()))
            if assignment is None:
                continue  # given up in between: it belongs to its next owner
            verdict = assignment.receive(record.offset())
            if verdict is Verdict.SKIP:
                continue
            work = self._work(record, assignment)
            if verdict is Verdict.WITHHOLD:
                self._held.withhold(work)
            elif assignment.retry_delay_seconds:
                self._held.hold_until(work, now + self._wait_seconds(work))
            else:
                batch.append(work)
        self.trouble = None
        self._send(batch)

    def _wait_seconds(self, work: Work) -> float:
        """How long a retry must still wait; never longer than its topic's delay, whatever the clocks say."""
        not_before = work.history.not_before
        if not_before is None:
            not_before = work.record.timestamp()[1] + work.assignment.retry_delay_seconds * 1000
        waits = (not_before - self._clock.wall_ms()) / 1000
        return min(max(0.0, waits), float(work.assignment.retry_delay_seconds))

    def _send(self, works: list[Work]) -> None:
        by_credit: dict[Credit, list[Work]] = {}
        for work in works:
            by_credit.setdefault(work.assignment.credit, []).append(work)
        for credit, batch in by_credit.items():
            credit.spend(len(batch), cost_bytes(batch))
            self._deliver(batch)

    def _heed_notices(self, now: float) -> None:
        while self.heard:
            notice = self.heard.popleft()
            self._notices.hear(notice, now)
            assignment = self._assignments.get((notice.topic, notice.partition))
            if assignment is not None:
                assignment.heed(notice, now)

    def _release_held(self, now: float) -> None:
        released = []
        for work in self._held.take_due(now):
            if work.assignment.credit.room_records > 0:
                released.append(work)
            else:
                self._held.hold_until(work, now + LANE_FULL_WAIT_SECONDS)
        for assignment in self._assignments.values():
            if assignment.end_lease(now):
                log.warning("lease ended unheard", topic=assignment.topic, partition=assignment.partition)
            released += self._held.take_released(assignment)
        for work in released:
            work.crashes = work.assignment.crashes_of(work.offset)
        self._send(released)

    def _work(self, record: Record, assignment: Assignment) -> Work:
        value = record.value()
        history = read_history(record_headers(record))
        first_enqueued_at = history.first_enqueued_at
        if first_enqueued_at is None:
            first_enqueued_at = record.timestamp()[1]
        work = Work(
            record=record,
            assignment=assignment,
            offset=record.offset(),
            size_bytes=len(value or b""),
            history=history,
            first_enqueued_at=first_enqueued_at,
            crashes=assignment.crashes_of(record.offset()),
        )
        try:
            request = self._codec.decode(value)
        except EnvelopeError as error:
            work.problem = error
            return work
        work.request = request
        work.priority = priority_in(request, tier=assignment.tier)
        work.deadline_ms = deadline_ms(request, tier=assignment.tier, first_enqueued_at=first_enqueued_at)
        return work

    # What goes wrong.

    def _on_record_error(self, record: Record, error: KafkaError) -> None:
        if error.code() == KafkaError._PARTITION_EOF:
            return
        self.trouble = f"{self.name}: {error.str()}"
        log.warning("the client reports", intake=self.name, topic=record.topic(), error=error.str())
        assignment = self._assignments.get((record.topic(), record.partition()))
        if assignment is not None:
            # An error event can stand where records were: go back to what was really received.
            self._seek([assignment])

    def _seek_back(self, error: Exception) -> None:
        self.trouble = f"{self.name}: {error}"
        log.error("taking records failed; seeking back", intake=self.name, error=str(error), exc_info=error)
        self._seek(list(self._assignments.values()))
        # An error that repeats at once must not fill the log or the processor.
        next(iter(self._sources.values())).credit.wait(POLL_SECONDS)

    def _seek(self, assignments: list[Assignment]) -> None:
        for assignment in assignments:
            offset = assignment.offsets.next_offset
            if offset is None:
                continue
            try:
                self._consumer.seek(TopicPartition(assignment.topic, assignment.partition, offset))
            except KafkaException as error:
                log.warning("seek failed", topic=assignment.topic, partition=assignment.partition, error=str(error))

    # Partitions that come and go.

    def _on_assign(self, _consumer: Any, partitions: list[TopicPartition]) -> None:
        try:
            self._assign(partitions)
        except Exception as error:  # an exception here would lose fetched records
            self.trouble = f"{self.name}: {error}"
            log.error("assignment failed", intake=self.name, error=str(error), exc_info=error)

    def _assign(self, partitions: list[TopicPartition]) -> None:
        self.rebalances += 1
        self.assigned_once = True
        self._epoch += 1
        if not partitions:
            return
        starts = [TopicPartition(partition.topic, partition.partition, OFFSET_STORED) for partition in partitions]
        committed = self._committed_of(partitions)
        if committed is None:
            # Without knowing what is finished nothing may run: `step` asks again until it is told.
            self._consumer.incremental_assign(starts)
            self._consumer.pause(starts)
            self._unknown.update((start.topic, start.partition) for start in starts)
        else:
            starts = [self._own(partition) for partition in committed]
            self._consumer.incremental_assign(starts)
            self._consumer.pause(starts)
            self._paused.update((start.topic, start.partition) for start in starts)
        log.info("partitions assigned", intake=self.name, partitions=_named(starts))

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
            epoch=self._epoch,
            now=now,
            committed=offset,
            metadata=metadata,
        )
        self._notices.tell(assignment, now)
        self._peers.listen_until(now)
        self._assignments[key] = assignment
        # Without a commit the partition is read from its first record.
        return TopicPartition(*key, OFFSET_BEGINNING if offset is None else offset)

    def _committed_of(self, partitions: list[TopicPartition]) -> list[TopicPartition] | None:
        """What the group has committed; None when the broker does not say."""
        try:
            committed = self._consumer.committed(partitions, timeout=COMMITTED_TIMEOUT_SECONDS)
            for partition in committed:
                if partition.error is not None:
                    raise KafkaException(partition.error)
        except KafkaException as error:
            log.warning("committed offsets unknown; asking again", intake=self.name, error=str(error))
            return None
        return committed

    def _learn_committed(self, now: float) -> None:
        """Asks again for the committed offsets of partitions that were assigned without them."""
        if not self._unknown or now < self._ask_at:
            return
        self._ask_at = now + ASK_AGAIN_SECONDS
        committed = self._committed_of([TopicPartition(*key) for key in sorted(self._unknown)])
        for partition in committed or ():
            key = (partition.topic, partition.partition)
            self._consumer.seek(self._own(partition))
            self._unknown.remove(key)
            self._paused.add(key)

    def _on_revoke(self, _consumer: Any, partitions: list[TopicPartition]) -> None:
        try:
            self.rebalances += 1
            self._let_go([(partition.topic, partition.partition) for partition in partitions], lost=False)
        except Exception as error:  # an exception here would lose fetched records
            log.error("revocation failed", intake=self.name, error=str(error), exc_info=error)

    def _on_lost(self, _consumer: Any, partitions: list[TopicPartition]) -> None:
        try:
            self.rebalances += 1
            log.warning("partitions lost", intake=self.name, partitions=_named(partitions))
            self._let_go([(partition.topic, partition.partition) for partition in partitions], lost=True)
        except Exception as error:  # an exception here would lose fetched records
            log.error("giving up lost partitions failed", intake=self.name, error=str(error), exc_info=error)

    def _let_go(self, keys: list[PartitionKey], *, lost: bool) -> None:
        """Gives partitions up: nothing of them starts any more, and nothing is committed for them afterwards.

        Revoked ones are committed a last time, with what is finished and what runs; of lost ones another member may
        have committed more already.
        """
        last: dict[PartitionKey, tuple[int, str]] = {}
        handed_over = []
        for key in keys:
            self._unknown.discard(key)
            assignment = self._assignments.get(key)
            if assignment is None:
                continue
            assignment.lost = lost
            assignment.drain_done()
            running, commit = assignment.close()
            if commit is not None:
                last[key] = commit
            handed_over.append(HandedOver(assignment=assignment, running=running))
        if last and not lost:
            self._commit_last(last)
        for over in handed_over:
            key = (over.assignment.topic, over.assignment.partition)
            del self._assignments[key]
            self._paused.discard(key)
            self.commits.forget(key)
            self._held.drop(over.assignment)
            if over.running and not lost:
                self._hand_over(over)
        if handed_over:
            log.info("partitions let go", intake=self.name, partitions=sorted(keys), lost=lost)

    def _commit_last(self, last: dict[PartitionKey, tuple[int, str]]) -> None:
        refused = self.commits.commit_last(self._consumer, self._clock, last)
        if not refused:
            return
        notices = [
            Notice(
                kind=NoticeKind.LAST_COMMIT,
                worker=self._peers.worker_id,
                topic=topic,
                partition=partition,
                committed=commit[0],
                metadata=commit[1],
            )
            for (topic, partition), commit in refused.items()
        ]
        if not self._peers.tell(notices):
            log.error("last commit refused and not told; requests may run again", partitions=sorted(refused))


def _named(partitions: list[TopicPartition]) -> list[str]:
    return [f"{partition.topic}/{partition.partition}" for partition in partitions]
