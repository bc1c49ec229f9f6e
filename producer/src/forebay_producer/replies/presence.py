"""Announces on the presence topic which partition of results this replica follows, and renews that. Talks to the
brokers; joins no group. A thread of its own renews."""

from __future__ import annotations

import random
import secrets
import threading
from typing import Any, Final

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka import Producer as KafkaProducer

from forebay_producer.cluster.topic_scan import SCAN_CONFIG, TopicScan, bounds_of
from forebay_producer.replies.claims import Claims, ReadClaim, choose_partition, is_taken
from forebay_schemas.clock import Clock
from forebay_schemas.contract.fronts import LEASE_MS, Claim, Front, claim_key, decode_claim, encode_claim
from forebay_schemas.contract.topics import LATER_BYTES_MAX, Pool
from forebay_schemas.errors import ForebayError, TopicMissingError
from forebay_schemas.kafka.clients import create_client
from forebay_schemas.kafka.configs import producer_config, reader_config
from forebay_schemas.kafka.connection import KafkaConnection
from forebay_schemas.kafka.errors import as_forebay_error
from forebay_schemas.kafka.metadata import require_topics
from forebay_schemas.kafka.permissions import Operation, on_topic

RENEW_SECONDS: Final = LEASE_MS / 3000
TRIES_MAX: Final = 10
"""Moves to another partition; a partition that is shared costs reading alone."""

_CLIENT_ID: Final = "forebay-presence"
_DELIVERY_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.05
_WITHDRAW_SECONDS: Final = 1.0

log = structlog.get_logger("forebay.producer")


class Presence:
    """The claim of one replica on a partition. Must be closed, which frees the partition at once.

    Raises ``TopicMissingError`` without the presence topic, ``BrokerUnreachableError`` and ``KafkaFailedError``.
    """

    def __init__(self, connection: KafkaConnection, *, pool: Pool, front: Front, clock: Clock) -> None:
        self._connection = connection
        self._pool = pool
        self._front = front
        self._clock = clock
        self.replica: Final = secrets.token_hex(8)
        self._stopping = threading.Event()
        config = producer_config(connection, client_id=_CLIENT_ID, record_bytes_max=LATER_BYTES_MAX)
        config["message.timeout.ms"] = int(_DELIVERY_SECONDS * 1000)
        self._client = create_client(KafkaProducer, config)
        self._is_refused = False
        counts = require_topics(
            self._client,
            [pool.results],
            connection=connection,
            pool=pool.name,
            operation=Operation.READ,
        )
        self.partitions: Final = counts[pool.results]
        self._require_topic()
        self.partition: Final = self._claim()
        # A daemon, so that an owner that forgets to close it can still exit: the lease ends by itself.
        self._thread = threading.Thread(target=self._renew, name="forebay-producer-presence", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Withdraws the claim. May be called again."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        self._thread.join(_WITHDRAW_SECONDS)
        claim = Claim(replica=self.replica, pool=self._pool.name, partition=self.partition)
        try:
            self._client.produce(self._front.presence, None, claim_key(claim))
        except (BufferError, KafkaException):
            return
        self._client.flush(_WITHDRAW_SECONDS)

    def _claim(self) -> int:
        claims = Claims(self._pool.name)
        config = reader_config(self._connection, client_id=_CLIENT_ID) | SCAN_CONFIG
        consumer = create_client(Consumer, config)
        at = TopicPartition(self._front.presence, 0)
        try:
            _, end = bounds_of(consumer, at)
            consumer.assign([TopicPartition(self._front.presence, 0, 0)])
            scan = TopicScan(
                consumer,
                connection=self._connection,
                clock=self._clock,
                reading=self._front.presence,
                poll_seconds=_POLL_SECONDS,
                on_error=self._fail,
            )
            position = _read_up_to(scan, claims, 0, end)
            # Only the report of a claim tells the brokers' time, on which leases count: until then all claims count.
            known = [*claims.by_key().values()]
            partition = choose_partition(known, partitions=self.partitions, pick=random.choice)
            live = known
            for tries in range(TRIES_MAX + 1):
                offset, now_ms = self._write(partition)
                position = _read_up_to(scan, claims, position, offset + 1)
                live = claims.live(now_ms, except_replica=self.replica)
                if not is_taken(live, partition=partition, offset=offset, partitions=self.partitions):
                    break
                partition = choose_partition(live, partitions=self.partitions, pick=random.choice)
                if tries == TRIES_MAX:
                    self._write(partition)
        except KafkaException as error:
            raise self._explained(error.args[0]) from None
        finally:
            consumer.close()
        shared = sum(each.claim.partition == partition for each in live)
        if shared:
            log.warning(
                "more replicas than partitions of results: some read each other's results",
                front=self._front.name,
                pool=self._pool.name,
                partitions=self.partitions,
                fix=f"forebay topics create --pool {self._pool.name} --partitions N",
            )
        return partition

    def _write(self, partition: int) -> tuple[int, int]:
        """Claims; returns the record's offset and the broker's time. Raises ``KafkaException``."""
        reports: list[tuple[KafkaError | None, Any]] = []
        claim = Claim(replica=self.replica, pool=self._pool.name, partition=partition)
        self._client.produce(
            self._front.presence,
            encode_claim(claim),
            claim_key(claim),
            on_delivery=lambda error, message: reports.append((error, message)),
        )
        while not reports:
            self._client.poll(_POLL_SECONDS)
        error, message = reports[0]
        if error is not None:
            raise KafkaException(error)
        return message.offset(), message.timestamp()[1]

    def _renew(self) -> None:
        claim = Claim(replica=self.replica, pool=self._pool.name, partition=self.partition)
        while not self._stopping.wait(RENEW_SECONDS):
            try:
                self._client.produce(
                    self._front.presence, encode_claim(claim), claim_key(claim), on_delivery=self._renewed
                )
                self._client.poll(0)
            except (BufferError, KafkaException) as error:
                self._note(str(error))

    def _renewed(self, error: KafkaError | None, _message: object) -> None:
        if error is not None:
            self._note(error.str())
        else:
            self._is_refused = False

    def _note(self, problem: str) -> None:
        if not self._is_refused:
            self._is_refused = True
            log.warning(
                "the claim on a partition of results was not renewed; another replica may follow it too",
                front=self._front.name,
                partition=self.partition,
                problem=problem,
            )

    def _require_topic(self) -> None:
        try:
            require_topics(
                self._client,
                [self._front.presence],
                connection=self._connection,
                pool=self._pool.name,
                operation=Operation.WRITE,
            )
        except TopicMissingError as error:
            raise TopicMissingError(
                [self._front.presence],
                pool=self._pool.name,
                command=f"forebay topics create --front {self._front.name}",
            ) from error

    def _fail(self, error: KafkaError, _topic: str | None) -> None:
        raise self._explained(error)

    def _explained(self, error: KafkaError) -> ForebayError:
        topic = self._front.presence
        needs = on_topic(Operation.WRITE, topic)
        return as_forebay_error(error, connection=self._connection, doing=f"claiming on {topic}", needs=needs)


def _read_up_to(scan: TopicScan, claims: Claims, position: int, end: int) -> int:
    while position < end:
        for message in scan.batch():
            offset = message.offset()
            assert offset is not None
            if message.error() is not None:
                position = max(position, offset)
                continue
            position = offset + 1
            claim = decode_claim(message.value())
            read = None if claim is None else ReadClaim(claim=claim, written_ms=message.timestamp()[1], offset=offset)
            claims.add(message.key() or b"", read)
    return position
