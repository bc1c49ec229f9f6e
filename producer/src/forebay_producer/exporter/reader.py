"""The exporter's reads: offsets of a pool's topics, and the workers' announcements. One thread."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from confluent_kafka.admin import AdminClient

from forebay_producer.cluster.announcement_reader import AnnouncementReader
from forebay_producer.cluster.backlog import Heads, partition_state
from forebay_producer.cluster.offsets_reader import GroupOffsets, Head, HeadReader
from forebay_producer.cluster.topic_admin import OffsetBound, TopicAdmin
from forebay_producer.exporter.figures import Age, TierReading
from forebay_schemas.clock import Clock
from forebay_schemas.contract.tiers import TIERS, Tier
from forebay_schemas.contract.topics import RETRY_DELAYS_SECONDS, PartitionKey, Pool
from forebay_schemas.estimate.accuracy import CounterRate
from forebay_schemas.kafka.clients import make_admin
from forebay_schemas.kafka.connection import KafkaConnection
from forebay_schemas.kafka.metadata import require_topics
from forebay_schemas.kafka.permissions import Operation

CLIENT_ID: Final = "forebay-exporter"


class Brokers:
    """Clients shared by all pools. Must be closed."""

    def __init__(self, connection: KafkaConnection, *, clock: Clock) -> None:
        self.connection = connection
        self.clock = clock
        self.admin: AdminClient = make_admin(connection, client_id=CLIENT_ID)
        self.topics = TopicAdmin(self.admin, connection=connection)
        self.head_reader = HeadReader(connection, clock=clock, client_id=CLIENT_ID)
        self.followed = AnnouncementReader(connection, clock=clock, client_id=CLIENT_ID)

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
