"""Intake: takes one tier's records out of Kafka as dispatch allows, and commits what is finished.

One thread owns the consumer and runs `step` for ever; nothing else touches the consumer. Callbacks never raise, and
after any exception from the client every partition is sought back to where the tracker stands: else records that the
client freed without handing them over would be committed past.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import structlog
from confluent_kafka import OFFSET_BEGINNING, OFFSET_STORED, KafkaError, KafkaException, TopicPartition

from forebay_schemas.clock import Clock
from forebay_schemas.envelope import Codec, deadline_ms, priority_in
from forebay_schemas.errors import EnvelopeError
from forebay_schemas.headers import read_history, record_headers
from forebay_schemas.offsets_metadata import METADATA_BYTES_MAX, NOTHING, decode_metadata
from forebay_schemas.tiers import Tier
from forebay_worker.dispatch import Credit
from forebay_worker.lanes import cost_bytes
from forebay_worker.offsets import PartitionOffsets
from forebay_worker.work import Assignment, Record, Work

CONSUME_RECORDS_MAX = 1_000
POLL_SECONDS = 0.2
COMMIT_SECONDS = 0.2
COMMIT_LOST_SECONDS = 10.0
FULL_SECONDS_BEFORE_PAUSE = 0.5
METADATA_BYTES_NEARLY_FULL = METADATA_BYTES_MAX * 3 // 4
PENDING_RECORDS_MAX = 100_000
"""How many records of a partition may lie beyond its commit: behind one slow request each costs 100 bytes."""

COMMITTED_TIMEOUT_SECONDS = 5.0

log = structlog.get_logger("forebay.intake")

_PartitionKey = tuple[str, int]
OnCommit = Callable[[KafkaError | None, list[TopicPartition]], None]


class KafkaConsumer(Protocol):
    """What is used of confluent-kafka's Consumer; the simulated broker gives the same."""

    def subscribe(self, topics: list[str], *, on_assign: Any, on_revoke: Any, on_lost: Any) -> None: ...
    def poll(self, timeout: float) -> Record | None: ...
    def consume(self, num_messages: int, timeout: float) -> list[Record]: ...
    def commit(self, *, offsets: list[TopicPartition], asynchronous: bool) -> Any: ...
    def committed(self, partitions: list[TopicPartition], timeout: float) -> list[TopicPartition]: ...
    def incremental_assign(self, partitions: list[TopicPartition]) -> None: ...
    def incremental_unassign(self, partitions: list[TopicPartition]) -> None: ...
    def pause(self, partitions: list[TopicPartition]) -> None: ...
    def resume(self, partitions: list[TopicPartition]) -> None: ...
    def seek(self, partition: TopicPartition) -> None: ...
    def close(self) -> None: ...


class Intake:
    """Owns the consumer of one tier. ``deliver`` hands a batch to dispatch, whose ``credit`` bounds them all."""

    def __init__(
        self,
        *,
        make_consumer: Callable[[OnCommit], KafkaConsumer],
        topic: str,
        tier: Tier,
        codec: Codec,
        clock: Clock,
        credit: Credit,
        deliver: Callable[[list[Work]], None],
    ) -> None:
        self._consumer = make_consumer(self._on_commit)
        self._topic = topic
        self._tier = tier
        self._codec = codec
        self._clock = clock
        self._credit = credit
        self._deliver = deliver
        self._assignments: dict[_PartitionKey, Assignment] = {}
        self._epoch = 0
        self._handed_total = self._handed_bytes = 0
        self._full_since: float | None = None
        self._paused = False
        self._held_back: set[_PartitionKey] = set()
        self._to_seek: set[_PartitionKey] = set()
        self._commit_at = 0.0
        self._commit_sent: dict[_PartitionKey, tuple[int, str]] = {}
        self._commit_sent_at: float | None = None
        self._committed: dict[_PartitionKey, tuple[int, str]] = {}
        self.heartbeat = clock.monotonic()
        self.assigned_once = False
        self.trouble: str | None = None
        self.commits = self.commit_failures = self.rebalances = 0
        self._consumer.subscribe([topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost)

    @property
    def assigned_partitions(self) -> list[int]:
        """The partitions this worker owns, ascending."""
        return sorted(partition for _, partition in list(self._assignments))

    @property
    def unfinished_records(self) -> int:
        """How many received records hold an offset that cannot be committed yet."""
        return sum(assignment.offsets.pending_count for assignment in list(self._assignments.values()))

    def step(self) -> None:
        """One turn: notes what finished, commits when it is time, takes what is allowed. Blocks for up to 0.2 s."""
        now = self.heartbeat = self._clock.monotonic()
        self._drain_done()
        self._commit_when_due(now)
        try:
            self._take(now)
        except Exception as error:  # noqa: BLE001 - whatever it was, records may have been freed unseen
            self._seek_back(error)

    def stop_taking(self) -> None:
        """Takes nothing more; go on with `step`, which then only commits and stays in the group."""
        self._credit = Credit()

    def close(self) -> None:
        """Commits what is finished and leaves the group; what was not finished goes to the next owner."""
        self._drain_done()
        self._release(list(self._assignments), commit=True)
        self._consumer.close()

    def _take(self, now: float) -> None:
        if self._to_seek:
            self._seek()
        credit = self._credit
        room_bytes = credit.allowed_bytes - self._handed_bytes
        allowed = credit.allowed_total - self._handed_total if room_bytes > 0 else 0
        if self._paused and allowed >= credit.capacity_records // 2 and room_bytes >= credit.capacity_bytes // 2:
            self._consumer.resume(self._unblocked())
            self._paused = False
        if self._paused:
            # Polling goes on: it serves rebalances and tells the broker that this member lives.
            self._hand_over(self._consumer.poll(POLL_SECONDS), [])
        elif allowed > 0:
            self._full_since = None
            first = self._consumer.poll(POLL_SECONDS)
            more = min(allowed, CONSUME_RECORDS_MAX) - 1
            self._hand_over(first, self._consumer.consume(more, 0) if first is not None and more > 0 else [])
        elif self._full_since is None:
            self._full_since = now
        elif now - self._full_since >= FULL_SECONDS_BEFORE_PAUSE:
            self._full_since = None
            self._paused = True
            self._consumer.pause(self._partitions())
        else:
            credit.wait(0.05)

    def _hand_over(self, first: Record | None, more: list[Record]) -> None:
        if first is None:
            return
        batch: list[Work] = []
        for record in (first, *more):
            error = record.error()
            if error is not None:
                self._on_record_error(record, error)
                continue
            key = (record.topic(), record.partition())
            assignment = self._assignments.get(key)
            # A record of a partition that was given up in between belongs to its next owner. One that came before the
            # seek back comes again after it, behind those that were freed.
            if assignment is not None and key not in self._to_seek and assignment.offsets.receive(record.offset()):
                batch.append(self._work(record, assignment))
        if batch:
            self._handed_total += len(batch)
            self._handed_bytes += cost_bytes(batch)
            self._deliver(batch)

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
        )
        try:
            request = self._codec.decode(value)
        except EnvelopeError as error:
            work.problem = error
            return work
        work.request = request
        work.priority = priority_in(request, tier=self._tier)
        work.deadline_ms = deadline_ms(request, tier=self._tier, first_enqueued_at=first_enqueued_at)
        return work

    def _on_record_error(self, record: Record, error: KafkaError) -> None:
        if error.code() == KafkaError._PARTITION_EOF:
            return
        self.trouble = error.str()
        log.warning("the client reports", tier=self._tier, topic=record.topic(), error=error.str())
        key = (record.topic(), record.partition())
        if key in self._assignments:
            # An error event can stand where records were: go back to what was really received.
            self._to_seek.add(key)

    def _seek_back(self, error: Exception) -> None:
        self.trouble = str(error)
        log.error("taking records failed; seeking back", tier=self._tier, error=str(error), exc_info=error)
        self._to_seek.update(self._assignments)
        self._clock_pause()

    def _seek(self) -> None:
        """Goes back to what was really received. Where that fails, nothing is taken until a later step has done it."""
        for key in sorted(self._to_seek):
            try:
                offset = self._assignments[key].offsets.next_offset
                self._consumer.seek(TopicPartition(*key, self._start_of(key) if offset is None else offset))
                self._to_seek.remove(key)
            except KafkaException as error:
                log.warning("seek failed; it is made again", topic=key[0], partition=key[1], error=str(error))
        if self._to_seek:
            self._clock_pause()

    def _start_of(self, key: _PartitionKey) -> int:
        """Where reading begins that received nothing yet."""
        [committed] = self._consumer.committed([TopicPartition(*key)], timeout=COMMITTED_TIMEOUT_SECONDS)
        if committed.error is not None:
            raise KafkaException(committed.error)
        return committed.offset if committed.offset >= 0 else OFFSET_BEGINNING

    def _clock_pause(self) -> None:
        # An error that repeats at once must not fill the log or the processor.
        self._credit.wait(POLL_SECONDS)

    def _drain_done(self) -> None:
        for assignment in self._assignments.values():
            done, offsets, claims = assignment.done, assignment.offsets, assignment.claims
            while done:
                offset = done.popleft()
                offsets.finish(offset)
                claims.release(offset)

    def _commit_when_due(self, now: float) -> None:
        if now < self._commit_at:
            return
        if self._commit_sent_at is not None and now - self._commit_sent_at < COMMIT_LOST_SECONDS:
            return  # one commit at a time: its answer comes by `_on_commit`
        self._commit_at = now + COMMIT_SECONDS
        due = self._due_commits(list(self._assignments))
        if not due:
            return
        for key, (_, metadata) in due.items():
            self._hold_back_when_full(key, len(metadata))
        self._commit_sent = due
        self._commit_sent_at = now
        try:
            self._consumer.commit(offsets=_topic_partitions(due), asynchronous=True)
        except KafkaException as error:
            self._commit_sent_at = None
            self._note_commit_failure(error.args[0].str(), None)

    def _due_commits(self, keys: list[_PartitionKey]) -> dict[_PartitionKey, tuple[int, str]]:
        due = {}
        for key in keys:
            assignment = self._assignments[key]
            position = assignment.offsets.position()
            if position is None:
                continue
            running = tuple((offset, 0) for offset in assignment.claims.running())
            metadata = assignment.offsets.metadata(running=running)
            if self._committed.get(key) != (position, metadata):
                due[key] = (position, metadata)
        return due

    def _hold_back_when_full(self, key: _PartitionKey, metadata_bytes: int) -> None:
        """Takes nothing more from a partition whose commits can hardly say what is finished, or with too much beyond
        its commit; until both are down to half."""
        was_full = key in self._held_back
        share = 2 if was_full else 1
        full = (
            metadata_bytes >= METADATA_BYTES_NEARLY_FULL // share
            or self._assignments[key].offsets.pending_count >= PENDING_RECORDS_MAX // share
        )
        if full == was_full:
            return
        partition = [TopicPartition(*key)]
        if full:
            self._held_back.add(key)
            self._consumer.pause(partition)
        else:
            self._held_back.remove(key)
            if not self._paused:
                self._consumer.resume(partition)

    def _on_commit(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        self._commit_sent_at = None
        sent, self._commit_sent = self._commit_sent, {}
        self._note_committed(error, partitions, sent)

    def _note_committed(
        self,
        error: KafkaError | None,
        partitions: list[TopicPartition],
        sent: dict[_PartitionKey, tuple[int, str]],
    ) -> None:
        if error is not None and error.code() != KafkaError._NO_OFFSET:
            self._note_commit_failure(error.str(), None)
        for partition in partitions or ():
            key = (partition.topic, partition.partition)
            if partition.error is not None:
                self._note_commit_failure(partition.error.str(), key)
            elif error is None and sent.get(key) == (partition.offset, partition.metadata or ""):
                self._committed[key] = sent[key]
                self.commits += 1

    def _note_commit_failure(self, error: str, key: _PartitionKey | None) -> None:
        self.commit_failures += 1
        log.warning("commit failed; it is made again", tier=self._tier, partition=key and key[1], error=error)

    def _on_assign(self, _consumer: Any, partitions: list[TopicPartition]) -> None:
        try:
            self._assign(partitions)
        except Exception as error:
            self.trouble = str(error)
            log.error("assignment failed", tier=self._tier, error=str(error), exc_info=error)

    def _assign(self, partitions: list[TopicPartition]) -> None:
        self.rebalances += 1
        self.assigned_once = True
        self._epoch += 1
        if not partitions:
            return
        starts = []
        for partition in self._committed_of(partitions):
            key = (partition.topic, partition.partition)
            offset = partition.offset if partition.offset >= 0 else None
            metadata = NOTHING
            if offset is not None:
                decoded = decode_metadata(offset, partition.metadata)
                if decoded is None:
                    log.warning("foreign commit metadata ignored", topic=partition.topic, partition=partition.partition)
                else:
                    metadata = decoded
            self._assignments[key] = Assignment(
                topic=partition.topic,
                partition=partition.partition,
                tier=self._tier,
                epoch=self._epoch,
                offsets=PartitionOffsets(committed=offset, metadata=metadata),
            )
            # Without a commit the client starts at the first record: auto.offset.reset is earliest.
            starts.append(TopicPartition(*key, OFFSET_STORED if offset is None else offset))
        self._consumer.incremental_assign(starts)
        if self._paused:
            self._consumer.pause(starts)
        log.info("partitions assigned", tier=self._tier, partitions=[start.partition for start in starts])

    def _committed_of(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """What the group has committed. Unknown counts as nothing: the client then asks for the offsets itself."""
        try:
            committed = self._consumer.committed(partitions, timeout=COMMITTED_TIMEOUT_SECONDS)
            for partition in committed:
                if partition.error is not None:
                    raise KafkaException(partition.error)
        except KafkaException as error:
            self.trouble = str(error)
            log.error("committed offsets unknown; finished requests may run again", tier=self._tier, error=str(error))
            return [TopicPartition(partition.topic, partition.partition, OFFSET_STORED) for partition in partitions]
        return committed

    def _on_revoke(self, _consumer: Any, partitions: list[TopicPartition]) -> None:
        try:
            self.rebalances += 1
            self._drain_done()
            self._release([(partition.topic, partition.partition) for partition in partitions], commit=True)
        except Exception as error:
            log.error("revocation failed", tier=self._tier, error=str(error), exc_info=error)

    def _on_lost(self, _consumer: Any, partitions: list[TopicPartition]) -> None:
        try:
            self.rebalances += 1
            log.warning(
                "partitions lost", tier=self._tier, partitions=[partition.partition for partition in partitions]
            )
            self._release([(partition.topic, partition.partition) for partition in partitions], commit=False)
        except Exception as error:
            log.error("giving up lost partitions failed", tier=self._tier, error=str(error), exc_info=error)

    def _release(self, keys: list[_PartitionKey], *, commit: bool) -> None:
        """Gives partitions up: nothing of them starts any more, and nothing is committed for them afterwards."""
        keys = [key for key in keys if key in self._assignments]
        for key in keys:
            self._assignments[key].claims.close()
        due = self._due_commits(keys) if commit else {}
        if due:
            try:
                committed = self._consumer.commit(offsets=_topic_partitions(due), asynchronous=False)
                self._note_committed(None, committed, due)
            except KafkaException as error:
                self._note_commit_failure(error.args[0].str(), None)
        for key in keys:
            del self._assignments[key]
            self._committed.pop(key, None)
            self._commit_sent.pop(key, None)
            self._held_back.discard(key)
            self._to_seek.discard(key)
        if keys:
            log.info("partitions given up", tier=self._tier, partitions=[partition for _, partition in keys])

    def _partitions(self) -> list[TopicPartition]:
        return [TopicPartition(*key) for key in self._assignments]

    def _unblocked(self) -> list[TopicPartition]:
        return [TopicPartition(*key) for key in self._assignments if key not in self._held_back]


def _topic_partitions(due: dict[_PartitionKey, tuple[int, str]]) -> list[TopicPartition]:
    return [TopicPartition(*key, offset, metadata) for key, (offset, metadata) in due.items()]
