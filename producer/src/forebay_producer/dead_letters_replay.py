"""Sends replays, and the record that each was made. Talks to the brokers; one thread.

A replay counts once the brokers have it on all in-sync replicas; then its audit record is sent, and it is done once
they have that too. At most `IN_FLIGHT_MAX` replays are between their sending and their audit record's delivery: so many
can be sent again by the next run when this one is killed, with the same replay count (see `dead_letters_audit`).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka import Producer as KafkaProducer

from forebay_producer.dead_letters import Refusal, Replay
from forebay_producer.dead_letters_audit import ReplayAudit, encode_audit
from forebay_producer.dead_letters_reader import CLIENT_ID
from forebay_producer.sender import QUEUED_KBYTES_MAX
from forebay_schemas.clock import Clock
from forebay_schemas.errors import ForebayError
from forebay_schemas.kafka import KafkaConnection, as_forebay_error, create_client, producer_config, require_topics
from forebay_schemas.tiers import TIERS
from forebay_schemas.topics import REQUEST_BYTES_MAX, Pool

IN_FLIGHT_MAX: Final = 100

_POLL_SECONDS: Final = 0.05


@dataclass(slots=True)
class Tally:
    """What became of the replays. ``replayed``: delivered, and so is the record of it.

    ``unrecorded``: delivered, but there is no record of it. ``uncertain``: not acknowledged, yet the brokers may have
    it. Both are sent again by the next run. ``refused``: not sent.
    """

    replayed: int = 0
    unrecorded: int = 0
    uncertain: int = 0
    refused: list[tuple[Replay, Refusal]] = field(default_factory=list)


class Replayer:
    """Sends replays of the dead letters of one topic, whose id is ``topic_id``. Must be settled and closed.

    Made with ``TopicMissingError`` or ``BrokerUnreachableError`` if need be.

    ``by``: who does it. ``delivery_seconds``: how long a record may wait for its acknowledgement.
    """

    def __init__(
        self,
        connection: KafkaConnection,
        *,
        pool: Pool,
        clock: Clock,
        topic_id: str,
        by: str,
        ttl_ms: int | None,
        delivery_seconds: float,
    ) -> None:
        self._connection = connection
        self._audit_topic = pool.audit
        self._clock = clock
        self._topic_id = topic_id
        self._by = by
        self._ttl_ms = ttl_ms
        config = producer_config(connection, client_id=CLIENT_ID, record_bytes_max=REQUEST_BYTES_MAX)
        config.pop("delivery.timeout.ms", None)
        # The sooner a replay's record follows it, the fewer a killed run repeats.
        config.setdefault("queue.buffering.max.kbytes", QUEUED_KBYTES_MAX)
        config |= {"message.timeout.ms": int(delivery_seconds * 1000), "linger.ms": 0}
        self._client = create_client(KafkaProducer, config)
        # librdkafka itself would keep records for a topic that is not there for half a minute.
        topics = map(pool.requests, TIERS)
        require_topics(self._client, topics, connection=connection, pool=pool.name)
        self._in_flight = 0
        self._to_record: deque[tuple[Replay, ReplayAudit]] = deque()
        self.tally = Tally()
        self.failure: ForebayError | None = None
        """Why nothing more is to be sent."""

    def send(self, replay: Replay) -> None:
        """Sends one, once there is room for it; does nothing after a failure."""
        while self._in_flight >= IN_FLIGHT_MAX:
            self._serve()
        while self.failure is None:
            try:
                self._client.produce(
                    replay.topic,
                    replay.value,
                    replay.key,
                    headers=[*replay.headers],
                    on_delivery=partial(self._replay_reported, replay),
                )
                self._in_flight += 1
                self._client.poll(0)
                self._record()
                return
            except BufferError:
                self._serve()
            except KafkaException as error:
                self._not_sent(replay, error.args[0])
                return

    def settle(self) -> None:
        """Waits until everything sent is reported on: as long as two deliveries may take at most."""
        while self._in_flight:
            self._serve()

    def close(self) -> None:
        """Lets go of the brokers."""
        self._client.close()

    def _serve(self) -> None:
        self._client.poll(_POLL_SECONDS)
        self._record()

    def _record(self) -> None:
        while self._to_record:
            replay, audit = self._to_record[0]
            try:
                self._client.produce(
                    self._audit_topic,
                    encode_audit(audit),
                    replay.request_id.encode(),
                    on_delivery=self._audit_reported,
                )
            except BufferError:
                return
            except KafkaException as error:
                self._not_recorded(error.args[0])
            self._to_record.popleft()

    def _replay_reported(self, replay: Replay, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._in_flight -= 1
            self._not_sent(replay, error)
            return
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        letter = replay.letter
        audit = ReplayAudit(
            at=self._clock.wall_ms(),
            by=self._by,
            dead_letter_topic_id=self._topic_id,
            partition=letter.partition,
            offset=letter.offset,
            request_id=replay.request_id,
            replay_count=replay.replay_count,
            reason=letter.reason,
            topic=replay.topic,
            to_partition=partition,
            to_offset=offset,
            ttl_ms=self._ttl_ms,
        )
        self._to_record.append((replay, audit))

    def _audit_reported(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            self._not_recorded(error)
            return
        self._in_flight -= 1
        self.tally.replayed += 1

    def _not_sent(self, replay: Replay, error: KafkaError) -> None:
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            self.tally.refused.append((replay, Refusal.TOO_LARGE))
            return
        self.tally.uncertain += 1
        self._fail(error, doing=f"replaying to {replay.topic}")

    def _not_recorded(self, error: KafkaError) -> None:
        self._in_flight -= 1
        self.tally.unrecorded += 1
        self._fail(error, doing=f"recording a replay on {self._audit_topic}")

    def _fail(self, error: KafkaError, *, doing: str) -> None:
        if self.failure is None:
            self.failure = as_forebay_error(error, connection=self._connection, doing=doing)
