"""The exporter's reads: offsets of a pool's topics, and the workers' announcements. One thread."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from confluent_kafka import OFFSET_END, Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from forebay_producer.cluster.backlog import Heads, partition_state
from forebay_producer.cluster.offsets_reader import GroupOffsets, Head, HeadReader
from forebay_producer.cluster.topic_admin import OffsetBound, TopicAdmin
from forebay_producer.exporter.figures import Age, TierReading
from forebay_schemas.clock import Clock
from forebay_schemas.contract.coordination import GONE_SECONDS, Capacity, decode_capacity
from forebay_schemas.contract.tiers import TIERS, Tier
from forebay_schemas.contract.topics import RETRY_DELAYS_SECONDS, PartitionKey, Pool
from forebay_schemas.errors import ForebayError
from forebay_schemas.estimate.accuracy import CounterRate
from forebay_schemas.kafka.clients import create_client, make_admin
from forebay_schemas.kafka.configs import reader_config
from forebay_schemas.kafka.connection import KafkaConnection
from forebay_schemas.kafka.errors import as_forebay_error
from forebay_schemas.kafka.metadata import require_topics
from forebay_schemas.kafka.permissions import Operation, is_denied, on_topic

CLIENT_ID: Final = "forebay-exporter"


class Brokers:
    """Clients shared by all pools. Must be closed."""

    def __init__(self, connection: KafkaConnection, *, clock: Clock) -> None:
        self.connection = connection
        self.clock = clock
        self.admin: AdminClient = make_admin(connection, client_id=CLIENT_ID)
        self.topics = TopicAdmin(self.admin, connection=connection)
        self.head_reader = HeadReader(connection, clock=clock, client_id=CLIENT_ID)
        self.followed = AnnouncementReader(connection, clock=clock)

    def close(self) -> None:
        """Closes the clients."""
        self.head_reader.close()
        self.followed.close()


class PoolReader:
    """Reads one pool. Connects lazily; must be closed."""

    def __init__(self, brokers: Brokers, *, pool: Pool) -> None:
        self.pool = pool
        self._brokers = brokers
        self._requests = {tier: [pool.requests(tier)] for tier in TIERS}
        self._retries = {tier: [pool.retry(tier, delay) for delay in RETRY_DELAYS_SECONDS] for tier in TIERS}
        self._groups = {
            group: GroupOffsets(brokers.connection, group=group, client_id=CLIENT_ID)
            for group in (*(pool.group(tier) for tier in TIERS), pool.retry_group)
        }
        self._heads = Heads(brokers.head_reader)
        self._delays = {pool.retry(tier, delay): float(delay) for tier in TIERS for delay in RETRY_DELAYS_SECONDS}
        self._arrivals = {tier: CounterRate() for tier in TIERS}

    def close(self) -> None:
        """Closes the clients."""
        for group in self._groups.values():
            group.close()

    def read(self) -> tuple[dict[Tier, TierReading], int]:
        """The present state of each tier, and the number of dead letters so far.

        Looks up topics and partitions each time, as partitions may be added. Raises ``TopicMissingError``,
        ``BrokerUnreachableError``, ``KafkaFailedError``.
        """
        pool, brokers = self.pool, self._brokers
        counts: dict[str, int] = {}
        for operation, names in (
            (Operation.READ, [*(pool.requests(tier) for tier in TIERS), pool.coordination]),
            (Operation.DESCRIBE, [*pool.retries, pool.dead_letter]),
        ):
            counts |= require_topics(
                brokers.admin, names, connection=brokers.connection, pool=pool.name, operation=operation
            )
        brokers.followed.follow(pool, _partitions([pool.coordination], counts))
        requests = {tier: _partitions(self._requests[tier], counts) for tier in TIERS}
        retries = {tier: _partitions(self._retries[tier], counts) for tier in TIERS}
        # Commits first, so that none is beyond the end.
        committed = self._groups[pool.retry_group].committed([at for tier in TIERS for at in retries[tier]])
        for tier in TIERS:
            committed |= self._groups[pool.group(tier)].committed(requests[tier])
        consumed = [at for tier in TIERS for at in (*requests[tier], *retries[tier])]
        dead_letters = _partitions([pool.dead_letter], counts)
        ids = brokers.topics.ids({topic for topic, _ in consumed})
        first = brokers.topics.offsets(consumed, at=OffsetBound.EARLIEST)
        end = brokers.topics.offsets([*consumed, *dead_letters], at=OffsetBound.LATEST_COMMITTED)
        states = {at: partition_state(first[at], end[at], committed.get(at), ids.get(at[0])) for at in consumed}
        heads = self._heads.of({at: states[at] for tier in TIERS for at in requests[tier]})
        states |= {at: states[at].seen(head) for at, head in heads.items()}
        now_ms = brokers.clock.wall_ms()
        ages = {at: age for at, head in heads.items() if (age := _age(head, now_ms)) is not None}
        tiers = {
            tier: TierReading(
                requests=tuple(states[at] for at in requests[tier]),
                retries=tuple(states[at] for at in retries[tier]),
                ages=tuple(ages[at] for at in requests[tier] if at in ages),
                retry_delays_seconds=tuple(self._delays[topic] for topic, _ in retries[tier]),
                arriving_per_second=self._arrivals[tier].per_second(
                    brokers.clock.monotonic(), sum(end[at] for at in requests[tier])
                ),
            )
            for tier in TIERS
        }
        return tiers, sum(end[at] for at in dead_letters)


class AnnouncementReader:
    """Reads the coordination topics of all pools, from now on. Must be closed."""

    def __init__(self, connection: KafkaConnection, *, clock: Clock) -> None:
        self._connection = connection
        self._clock = clock
        self._consumer = create_client(Consumer, reader_config(connection, client_id=CLIENT_ID))
        self._followed: dict[Pool, list[PartitionKey]] = {}
        self._pools: dict[str, Pool] = {}
        self._since: dict[Pool, float] = {}
        self._heard: dict[Pool, dict[str, tuple[float, Capacity]]] = {}
        self._denied: dict[Pool, ForebayError] = {}

    def close(self) -> None:
        """Closes the consumer."""
        self._consumer.close()

    def follow(self, pool: Pool, partitions: list[PartitionKey]) -> None:
        """Reads these partitions from now on, unless it already does.

        Raises ``DeniedError`` after a recent denial: the client reports it once only, and not when it is over, so the
        assignment is repeated.
        """
        denied = self._denied.pop(pool, None)
        if denied is not None:
            self._consumer.incremental_unassign([TopicPartition(*at) for at in self._followed.pop(pool)])
            raise denied
        if self._followed.get(pool) == partitions:
            return
        new = [at for at in partitions if at not in self._followed.get(pool, [])]
        self._followed[pool] = partitions
        self._pools[pool.coordination] = pool
        self.start_over(pool)
        self._consumer.incremental_assign([TopicPartition(*at, OFFSET_END) for at in new])

    def start_over(self, pool: Pool) -> None:
        """Starts anew for a pool that could not be read: announcements may have been missed."""
        self._since[pool] = self._clock.monotonic()
        self._heard[pool] = {}

    def listened_seconds(self, pool: Pool) -> float:
        """How long the pool's announcements have been read."""
        now = self._clock.monotonic()
        return now - self._since.get(pool, now)

    def poll(self, seconds: float) -> None:
        """Processes the next record, or waits for one."""
        message = self._consumer.poll(seconds)
        if message is None:
            return
        topic = message.topic() or ""
        pool, failure = self._pools.get(topic), message.error()
        if failure is not None:
            if pool is not None and is_denied(failure):
                self._denied[pool] = as_forebay_error(
                    failure,
                    connection=self._connection,
                    doing="listening to the workers",
                    needs=on_topic(Operation.READ, topic),
                )
            return
        capacity = decode_capacity(message.value())
        if pool is not None and capacity is not None:
            self._heard[pool][capacity.worker] = (self._clock.monotonic(), capacity)

    def workers(self, pool: Pool) -> list[Capacity]:
        """The last announcement of each worker that is not gone."""
        oldest = self._clock.monotonic() - GONE_SECONDS
        self._heard[pool] = {name: known for name, known in self._heard[pool].items() if known[0] >= oldest}
        return [capacity for _, capacity in self._heard[pool].values()]


def _partitions(topics: Iterable[str], counts: Mapping[str, int]) -> list[PartitionKey]:
    return [(topic, number) for topic in topics for number in range(counts[topic])]


def _age(head: Head, now_ms: int) -> Age | None:
    """By the record's timestamp and this machine's clock."""
    if head.written_ms is None or head.lifetime is None:
        return None
    lifetime = head.lifetime
    return Age(
        seconds=max(0.0, (now_ms - head.written_ms) / 1000),
        lived_seconds=max(0.0, (now_ms - lifetime.since_ms) / 1000),
        ttl_seconds=None if lifetime.ttl_ms is None else lifetime.ttl_ms / 1000,
        expedited_tier=lifetime.expedited_tier,
    )
