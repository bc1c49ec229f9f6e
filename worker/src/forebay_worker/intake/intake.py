"""Intake: takes records out of Kafka as dispatch allows, and commits finished offsets.

One thread owns the consumer and runs `step` for ever. Callbacks never raise. After any exception from the client every
partition is sought back to its tracker's next offset; otherwise records that the client freed unseen would be
committed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping

import structlog
from confluent_kafka import KafkaError, KafkaException

from forebay_schemas.clock import Clock
from forebay_schemas.contract.control import ControlAction, ControlOutcome
from forebay_schemas.contract.coordination import Notice
from forebay_schemas.contract.tiers import Tier
from forebay_schemas.formats.envelope_reader import EnvelopeReader
from forebay_schemas.kafka.permissions import Access, is_denied
from forebay_worker.bounds import BOUNDS, Bounds
from forebay_worker.intake.client_errors import ClientErrors
from forebay_worker.intake.commits import Commits
from forebay_worker.intake.decoding import Ahead, Decoding
from forebay_worker.intake.early_control import EarlyControl, Fetches, ReceivedControl
from forebay_worker.intake.last_words import HandedOver
from forebay_worker.intake.log_ends import note_first
from forebay_worker.intake.making import wait_seconds_of, work_of
from forebay_worker.intake.parked import Parked
from forebay_worker.intake.partitions import Ownership
from forebay_worker.intake.protocols import KafkaConsumer, OnCommit, Peers, TopicIds
from forebay_worker.intake.settled import Doubts, Finding, warn_of_missing_commit
from forebay_worker.intake.troubles import looked_for, troubles_of
from forebay_worker.partition.assignment import Assignment, Verdict
from forebay_worker.partition.credit import Credit
from forebay_worker.partition.doubt import Look
from forebay_worker.partition.fullness import Fullness
from forebay_worker.partition.quiet import Quiet
from forebay_worker.partition.sources import Source
from forebay_worker.request.memory import cost_bytes
from forebay_worker.request.work import Record, Work

CONSUME_RECORDS_MAX = 1_000
POLL_SECONDS = 0.2
OPENING_POLL_SECONDS = 0.02
LANE_FULL_WAIT_SECONDS = 0.05
SCHEMA_WAIT_SECONDS = 0.1

log = structlog.get_logger("forebay.intake")


class Intake:
    """Owns one consumer. ``deliver`` passes batches to dispatch. ``hand_over`` gets requests that still run after a
    partition was revoked. ``answer`` replies to the client that sent a cancel or an expedite.

    ``deliver`` gets records of one credit. Both it and ``hand_over`` are called on the consumer's thread and must not
    block. While ``quiet`` is wanted, nothing is decoded and all partitions are paused.
    ``explain`` puts an error of a topic or of the group into words."""

    def __init__(
        self,
        *,
        name: str,
        make_consumer: Callable[[OnCommit], KafkaConsumer],
        sources: list[Source],
        envelopes: EnvelopeReader,
        clock: Clock,
        deliver: Callable[[list[Work]], None],
        hand_over: Callable[[HandedOver], None],
        peers: Peers,
        topic_ids: TopicIds,
        fetcher: Fetches,
        look: Callable[[int], Look],
        answer: Callable[[ControlAction, str, ControlOutcome], None],
        quiet: Quiet,
        default_ttl_ms: Mapping[Tier, int],
        explain: Callable[[KafkaError, str], str],
        bounds: Bounds = BOUNDS,
    ) -> None:
        self.name = name
        self._explain = explain
        self._first = sources[0]
        self._decoding = Decoding(envelopes, default_ttl_ms=default_ttl_ms)
        self._clock = clock
        self._deliver = deliver
        self._peers = peers
        self._held = Parked(bounds)
        self._doubts = Doubts(look=look)
        self._fullness = Fullness()
        self._quiet = quiet
        self._may_read = True
        self._troubles = ClientErrors()
        self.taken_over_count = 0
        """Total number of requests that came with partitions while their former owners still ran them."""
        self.heartbeat = clock.monotonic()
        self._ownership = Ownership(
            name=name,
            make_consumer=make_consumer,
            sources=sources,
            clock=clock,
            peers=peers,
            topic_ids=topic_ids,
            hand_over=hand_over,
            forget=self._held.drop,
            drop_withheld=self._held.drop_withheld,
            explain=explain,
            bounds=bounds,
        )
        self._unread = EarlyControl(
            topics=[source.topic for source in sources],
            fetcher=fetcher,
            make_work=lambda record, assignment: self._made(record, assignment, self._decoding.ahead([record])),
            # Each takes room in the commit until all before it are finished.
            may_finish_ahead=lambda key: self.commits.metadata_bytes(key) < bounds.metadata_bytes_nearly_full // 2,
            answer=answer,
        )

    def receive(self, notice: Notice, age_seconds: float = 0.0) -> None:
        """Receives another worker's notice, from any thread. ``age_seconds``: the age of the notice."""
        self._ownership.received.append((notice, age_seconds))

    @property
    def received_controls(self) -> deque[ReceivedControl]:
        """Queue of cancels and expedites for this intake; any thread may add."""
        return self._unread.received

    @property
    def commits(self) -> Commits:
        """The commits made so far, and their results."""
        return self._ownership.commits

    @property
    def rebalances(self) -> int:
        """Number of assignments and revocations of partitions."""
        return self._ownership.rebalances

    @property
    def remade_partitions(self) -> int:
        """Number of partitions tracked anew because their topic was recreated or its log lost its end."""
        return self._ownership.remade_count

    @property
    def assigned_once(self) -> bool:
        """Whether the group has assigned this member its partitions, even if there are none."""
        return self._ownership.assigned_once

    @property
    def assigned(self) -> dict[str, list[int]]:
        """The partitions this worker owns: topic -> ascending numbers."""
        owned: dict[str, list[int]] = {}
        for topic, partition in sorted(self._ownership.assignments.copy()):
            owned.setdefault(topic, []).append(partition)
        return owned

    @property
    def unfinished_records(self) -> int:
        """Number of received records whose offsets cannot be committed yet."""
        return sum(assignment.offsets.pending_count for assignment in self._ownership.assignments.copy().values())

    def watermark_age_seconds(self, now: float) -> float:
        """Longest time that a partition's lowest unfinished offset has not moved; 0 if none is unfinished."""
        return self._ownership.progress.watermark_age_seconds(now)

    @property
    def settled_records(self) -> dict[Tier, int]:
        """Number of requests not run again after a crash because their outcome exists."""
        return self._doubts.ended

    @property
    def held_records(self) -> int:
        """Number of received records that must not start yet."""
        return len(self._held)

    @property
    def looked_for(self) -> list[str]:
        """Partitions, as ``topic/number``, whose requests wait for a scan of the results topic."""
        return looked_for(self._ownership)

    @property
    def troubles(self) -> list[str]:
        """Errors that have lasted longer than a moment."""
        return troubles_of(self.name, self._ownership, self._troubles)

    @property
    def was_denied(self) -> bool:
        """Whether the brokers denied something to the client, which reports a denial once and not its end."""
        return self._troubles.has_denial

    def forget_denials(self, lacking: Collection[Access], *, before: float) -> None:
        """Clears denials older than ``before``, except for what is ``lacking``. From any thread."""
        self._troubles.forget_denials(lacking, before=before)

    def step(self) -> None:
        """One turn: drain finished offsets, commit if due, take what is allowed. Blocks for up to 0.2 s."""
        now = self.heartbeat = self._clock.monotonic()
        self._may_read = self._quiet.may_read(self.name)
        try:
            read_until = self._peers.read_until  # read first: controls received until here are applied in this step
            self._ownership.step(now)
            if self._may_read:
                self._release_parked(now, read_until)
                self._apply_controls()
            self._fullness.note(
                now,
                has_room=self._room() > 0,
                is_half_free=self._first.credit.is_half_free,
                must_poll=self._ownership.wants_commits_soon,
            )
            self._ownership.adjust_pauses(self._is_blocked)
            self._take(now)
        except Exception as error:  # noqa: BLE001 - whatever it was, records may have been freed unseen
            self._seek_back(error)
        finally:
            self._quiet.done(self.name)

    def close(self) -> None:
        """Commits finished offsets, hands over running requests, and leaves the group."""
        self._ownership.close()

    # Taking.

    def _take(self, now: float) -> None:
        room, consumer = self._room(), self._ownership.consumer
        if room > 0 or self._fullness.is_full or self._ownership.is_all_paused:
            first = consumer.poll(self._poll_seconds(now))
            more = min(room, CONSUME_RECORDS_MAX) - 1
            rest = consumer.consume(more, 0) if first is not None and more > 0 else []
            if first is not None:
                self._sort([first, *rest])
        else:
            # Perhaps full only for a moment: a pause would discard the prefetched records.
            self._first.credit.wait(LANE_FULL_WAIT_SECONDS)

    def _room(self) -> int:
        """Number of records to ask for. Retry topics are bounded by how much a partition may park."""
        first = self._first
        return first.credit.room_records if first.retry_delay_seconds == 0 else CONSUME_RECORDS_MAX // 4

    def _poll_seconds(self, now: float) -> float:
        if not self._may_read or self._ownership.is_opening or self._ownership.wants_commits_soon:
            return OPENING_POLL_SECONDS
        due = self._held.next_due
        return POLL_SECONDS if due is None else min(POLL_SECONDS, max(0.0, due - now))

    def _is_blocked(self, assignment: Assignment, is_paused: bool) -> bool:
        return not self._may_read or self._fullness.is_full or self._held.is_full(assignment, was_full=is_paused)

    def _sort(self, records: list[Record]) -> None:
        """Hands on requests that may run, parks those that may not yet, skips finished and revoked ones."""
        batch: list[Work] = []
        ahead = self._decoding.ahead(records)
        try:
            for record in records:
                self._sort_one(record, batch, ahead)
        finally:
            # The tracker must not receive an offset twice: a later record must not mark it as received.
            self._send(batch)

    def _sort_one(self, record: Record, batch: list[Work], ahead: Ahead) -> None:
        error = record.error()
        if error is not None:
            self._on_record_error(record, error)
            return
        assignment = self._ownership.owner_of(record)
        if assignment is None:
            return
        known_below = assignment.offsets.next_offset
        if known_below is not None and record.offset() < known_below:
            renewed = self._ownership.renewed(assignment, record.offset())
            if renewed is None:
                return
            assignment = renewed
        # Before the tracker has the offset: if this raises, the record is sought back to.
        work = self._made(record, assignment, ahead)
        note_first(self._ownership.consumer, assignment, work.offset)
        verdict = assignment.receive(work.offset)
        self._troubles.received(assignment.topic)
        if verdict is Verdict.WITHHOLD:
            self._held.withhold(work)
            self.taken_over_count += 1
        elif verdict is Verdict.RUN and assignment.doubt is not None and not self._may_run(work):
            return
        elif verdict is Verdict.RUN and assignment.retry_delay_seconds:
            # In this order: a delay between the two clock readings makes it late rather than early.
            wait_seconds = wait_seconds_of(work, now_ms=self._clock.wall_ms())
            self._held.hold_until(work, self._clock.monotonic() + wait_seconds)
        elif verdict is Verdict.RUN and work.is_read:
            batch.append(work)
        elif verdict is Verdict.RUN:
            self._held.hold_until(work, self._clock.monotonic() + SCHEMA_WAIT_SECONDS)

    def _apply_controls(self) -> None:
        """Hands on, out of turn, the requests that a cancel or an expedite names."""
        found: list[Work] = []
        try:
            self._unread.step(self._ownership.assignments, self._held, found)
        finally:
            # No other part of the worker has these requests.
            self._send([work for work in found if work.assignment.doubt is None or self._may_run(work)])

    def _may_run(self, work: Work) -> bool:
        """Whether a request of a partition in doubt may be handed on. If not, it waits for the scan of the results, or
        it is finished because its outcome exists."""
        doubt = work.assignment.doubt
        if doubt is None:
            return True
        if not work.is_read:
            doubt.wait(work.offset)  # the id of its possible outcome is not known yet
            return True
        finding = self._doubts.judge(work, now=self._clock.monotonic(), now_ms=self._clock.wall_ms())
        if finding is Finding.WAIT:
            self._held.withhold(work)
            if doubt.is_without_commit:
                doubt.is_without_commit = False
                warn_of_missing_commit(work)
        elif finding is Finding.ENDED:
            work.assignment.done.append(work.offset)
        return finding is Finding.RUN

    def _send(self, works: list[Work]) -> None:
        by_credit: dict[Credit, list[Work]] = {}
        for work in works:
            by_credit.setdefault(work.assignment.credit, []).append(work)
        for credit, batch in by_credit.items():
            credit.spend(len(batch), cost_bytes(batch))
            self._deliver(batch)

    def _release_parked(self, now: float, read_until: float) -> None:
        released = []
        rooms: dict[Credit, int] = {}
        due_works = self._held.take_due(now)
        ahead = self._decoding.ahead([work.record for work in due_works if not work.is_read])
        for work in due_works:
            if not self._decoding.read(work, ahead):
                # The record is valid: it and its offset wait for its schema or for its turn.
                self._held.hold_until(work, now + SCHEMA_WAIT_SECONDS)
                continue
            if not self._may_run(work):
                continue
            credit = work.assignment.credit
            room = rooms.get(credit, credit.room_records)
            if room > 0:
                released.append(work)
            else:
                self._held.hold_until(work, now + LANE_FULL_WAIT_SECONDS)
            rooms[credit] = room - 1
        for assignment in self._ownership.assignments.values():
            due = assignment.lease_due(now)
            if due is not None:
                self._peers.listen_until(due)
            if due is not None and assignment.end_leases(now, read_until=read_until):
                log.warning("lease ended unheard", topic=assignment.topic, partition=assignment.partition)
                # That owner may have died between an outcome and its notice.
                assignment.begin_doubt(self._clock.wall_ms())
            for work in self._held.take_released(assignment):
                if not self._decoding.read(work):
                    self._held.hold_until(work, now + SCHEMA_WAIT_SECONDS)
                elif self._may_run(work):
                    self._hold_or_release(work, released)
        for work in released:
            work.crashes = work.assignment.crashes_of(work.offset)
        self._send(released)

    def _hold_or_release(self, work: Work, released: list[Work]) -> None:
        """Parks a released retry that is not due yet, or hands it on."""
        wait_seconds = (
            wait_seconds_of(work, now_ms=self._clock.wall_ms()) if work.assignment.retry_delay_seconds else 0.0
        )
        if wait_seconds > 0:
            self._held.hold_until(work, self._clock.monotonic() + wait_seconds)
        else:
            released.append(work)

    def _made(self, record: Record, assignment: Assignment, ahead: Ahead) -> Work:
        work = work_of(record, assignment)
        self._decoding.read(work, ahead)
        return work

    # What goes wrong.

    def _on_record_error(self, record: Record, error: KafkaError) -> None:
        if error.code() == KafkaError._PARTITION_EOF:
            self._ownership.ended(record)
            return
        why = self._explain(error, record.topic() or self._first.topic)
        if self._troubles.note(record.topic(), why, now=self._clock.monotonic(), is_denial=is_denied(error)):
            log.warning("the client reports", intake=self.name, topic=record.topic(), error=why)
        self._ownership.look_at_topics()
        # An error event can stand in place of records.
        self._ownership.seek_back(record.topic(), record.partition())

    def _seek_back(self, error: Exception) -> None:
        cause = error.args[0] if isinstance(error, KafkaException) else None
        is_denial = isinstance(cause, KafkaError) and is_denied(cause)
        self._troubles.note(None, str(error), now=self._clock.monotonic(), is_denial=is_denial)
        log.error("taking records failed; seeking back", intake=self.name, error=str(error), exc_info=error)
        self._ownership.seek_back()
        # A repeating error must not fill the log or use up the processor.
        self._first.credit.wait(POLL_SECONDS)
