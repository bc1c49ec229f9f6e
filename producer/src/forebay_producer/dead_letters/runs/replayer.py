"""Sends each replay exactly once. Talks to the brokers; one thread.

Each batch is announced on the audit topic (`Intent`), then sent; delivered replays are recorded there before the next
batch. Unacknowledged replays are looked up, and only those that were not written are sent again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Message

from forebay_producer.client.tracing import SendSpan, SendTracing
from forebay_producer.cluster.topic_admin import OffsetBound, TopicAdmin
from forebay_producer.dead_letters.audit import IntendedReplay, Intent, audit_of
from forebay_producer.dead_letters.replay_plan import Refusal, Replay
from forebay_producer.dead_letters.runs.interruptions import TRANSIENT_ERRORS, LostTurnError
from forebay_producer.dead_letters.runs.lease import ACT_SECONDS, CLIENT_ID, Run
from forebay_producer.dead_letters.state import was_replayed
from forebay_schemas.clock import Clock
from forebay_schemas.contract.tiers import TIERS
from forebay_schemas.contract.topics import Pool
from forebay_schemas.errors import BrokerUnreachableError
from forebay_schemas.kafka.clients import make_admin
from forebay_schemas.kafka.connection import KafkaConnection
from forebay_schemas.kafka.metadata import require_topics
from forebay_schemas.kafka.permissions import Operation

BATCH_LETTERS_MAX: Final = 100
BATCH_BYTES_MAX: Final = 4 * 1024 * 1024

LAPSES_MAX: Final = 5
"""Failures, in a row, to deliver a batch after the lease was obtained."""

_ENDS_SECONDS_MAX: Final = 5.0
_POLL_SECONDS: Final = 0.05
_TOO_LARGE: Final = (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE)


@dataclass(slots=True)
class Sent:
    """The result of a batch. ``by_others``: replayed or discarded by another run meanwhile."""

    replayed: list[Replay] = field(default_factory=list)
    refused: list[tuple[Replay, Refusal]] = field(default_factory=list)
    by_others: list[Replay] = field(default_factory=list)


class Replayer:
    """Sends for ``run``, which must have been entered. ``by``, ``ttl_ms``: as recorded in the audit.

    The constructor raises ``TopicMissingError`` and ``BrokerUnreachableError``. ``wait_seconds``: how long it retries
    while the brokers do not take a batch.
    """

    def __init__(
        self,
        connection: KafkaConnection,
        *,
        run: Run,
        pool: Pool,
        clock: Clock,
        topic_id: str,
        by: str,
        ttl_ms: int | None,
        wait_seconds: float,
        tracing: SendTracing,
    ) -> None:
        self._run = run
        self._tracing = tracing
        self._clock = clock
        self._topic_id = topic_id
        self._by = by
        self._ttl_ms = ttl_ms
        self._wait_seconds = wait_seconds
        admin = make_admin(connection, client_id=CLIENT_ID)
        topics = [pool.requests(tier) for tier in TIERS]
        # librdkafka itself would queue records for a missing topic for half a minute.
        self._partitions = require_topics(
            admin, topics, connection=connection, pool=pool.name, operation=Operation.WRITE
        )
        self._offsets = TopicAdmin(admin, connection=connection)
        self._ends: dict[str, list[int]] = {}
        self._ends_at = float("-inf")
        self.in_doubt = False
        """Whether it is unknown if a sent replay was written; the next run finds out."""

    def send(self, batch: Sequence[Replay]) -> Sent:
        """Sends at most `BATCH_LETTERS_MAX` replays; returns when the result of each is known.

        Raises ``BrokerUnreachableError`` after ``wait_seconds``, permanent errors at once, and ``InterruptedRunError``
        only while it looks up replays. Replays made before an error are recorded.
        """
        assert len(batch) <= BATCH_LETTERS_MAX
        sent = Sent()
        # Another run may have held the lease since they were planned.
        left = self._not_handled(batch, sent)
        give_up_at = self._clock.monotonic() + self._wait_seconds
        lapses = 0
        while left:
            try:
                self._run.require_turn()
                left = self._attempt(left, sent)
                if left and self._clock.monotonic() > give_up_at:
                    raise BrokerUnreachableError(
                        f"the brokers take more than {ACT_SECONDS:g} s for a record: nothing is replayed so slowly"
                    )
            except TRANSIENT_ERRORS as error:
                lapses += 1
                if self._clock.monotonic() > give_up_at or lapses > LAPSES_MAX:
                    raise (error.cause or error) if isinstance(error, LostTurnError) else error from None
                self._run.enter()
                give_up_at = self._clock.monotonic() + self._wait_seconds
                self.in_doubt = False
                self._ends_at = float("-inf")
                left = self._not_handled(left, sent)
        return sent

    def _not_handled(self, left: Iterable[Replay], sent: Sent) -> list[Replay]:
        still: list[Replay] = []
        for replay in left:
            place = replay.letter.partition, replay.letter.offset
            if self._run.own_replays.has(*place):
                sent.replayed.append(replay)
            elif was_replayed(replay.letter, self._run.handled) or self._run.handled.was_discarded(*place):
                sent.by_others.append(replay)
            else:
                still.append(replay)
        return still

    def _attempt(self, batch: list[Replay], sent: Sent) -> list[Replay]:
        """Announces and sends; returns those that it had no time to send. Raises ``LostTurnError``: enter again."""
        run, now = self._run, self._clock.monotonic
        intent = self._intent(batch)
        began = now()
        run.require_turn()
        run.say(intent)
        run.confirm()
        delivered: list[tuple[Replay, int, int]] = []
        failed: list[tuple[Replay, KafkaError]] = []
        under_way = 0

        def reported(replay: Replay, span: SendSpan, error: KafkaError | None, message: Message) -> None:
            partition, offset = message.partition(), message.offset()
            if error is not None:
                span.failed(error.name())
                failed.append((replay, error))
            else:
                assert partition is not None
                assert offset is not None
                span.delivered(partition, offset)
                delivered.append((replay, partition, offset))

        while under_way < len(batch) and now() - began <= ACT_SECONDS:
            replay = batch[under_way]
            span = self._tracing.replaying(replay, run_id=run.run_id)
            try:
                run.client.produce(
                    replay.topic,
                    replay.value,
                    replay.key,
                    headers=span.headers(replay.headers),
                    on_delivery=partial(reported, replay, span),
                )
            except BufferError:
                run.client.poll(_POLL_SECONDS)
                continue
            except KafkaException as problem:
                span.failed(problem.args[0].name())
                failed.append((replay, problem.args[0]))
            self.in_doubt = True
            under_way += 1
        while len(delivered) + len(failed) < under_way:
            run.client.poll(_POLL_SECONDS)
            run.tick()
        letters = {(letter.partition, letter.offset): letter for letter in intent.letters}
        audits = [
            audit_of(
                intent,
                letters[replay.letter.partition, replay.letter.offset],
                at=self._clock.wall_ms(),
                run_id=run.run_id,
                to_partition=partition,
                to_offset=offset,
            )
            for replay, partition, offset in delivered
        ]
        for audit in audits:
            run.say(audit)
        run.confirm()
        for replay, _, _ in delivered:
            sent.replayed.append(replay)
            batch.remove(replay)
        for replay, error in failed:
            if error.code() in _TOO_LARGE:
                sent.refused.append((replay, Refusal.TOO_LARGE))
                batch.remove(replay)
            else:
                run.failed(error, topic=replay.topic)
        run.require_turn()
        self.in_doubt = False
        return batch

    def _intent(self, batch: list[Replay]) -> Intent:
        topics = {replay.topic for replay in batch}
        if self._clock.monotonic() - self._ends_at > _ENDS_SECONDS_MAX:
            at = self._clock.monotonic()
            partitions = [(topic, number) for topic, count in self._partitions.items() for number in range(count)]
            ends = self._offsets.offsets(partitions, at=OffsetBound.LATEST)
            self._ends = {
                topic: [ends[topic, number] for number in range(count)] for topic, count in self._partitions.items()
            }
            self._ends_at = at
        return Intent(
            at=self._clock.wall_ms(),
            run_id=self._run.run_id,
            by=self._by,
            dead_letter_topic_id=self._topic_id,
            ttl_ms=self._ttl_ms,
            ends={topic: self._ends[topic] for topic in sorted(topics)},
            letters=[
                IntendedReplay(
                    replay.letter.partition,
                    replay.letter.offset,
                    replay.request_id,
                    replay.replay_count,
                    replay.letter.reason,
                    replay.topic,
                )
                for replay in batch
            ],
        )
