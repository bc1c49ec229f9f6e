"""A pool of its own on a real broker, for tests of the producer's side. Talks to the broker."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from confluent_kafka import Message

from forebay_producer import Producer, ProducerSettings
from forebay_producer.cluster.topic_admin import TopicAdmin
from forebay_sandbox.kafka.access import KafkaAccess
from forebay_schemas.contract.tiers import TIERS, Tier
from forebay_schemas.contract.topics import Pool
from harness.forebay_command import ForebayCommand

Places = dict[tuple[int | None, int | None], Message]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerPool:
    """A pool, its cluster, and the ways to use it."""

    kafka: KafkaAccess
    topics: Pool
    forebay: ForebayCommand

    @property
    def name(self) -> str:
        return self.topics.name

    def producer(self, *, delivery_timeout_seconds: float = 30.0) -> Producer:
        """A client of this pool; whoever asks for it closes it."""
        settings = ProducerSettings(
            bootstrap_servers=self.kafka.bootstrap_servers,
            pool=self.name,
            delivery_timeout_seconds=delivery_timeout_seconds,
        )
        return Producer(settings=settings)

    def records(self, tier: Tier) -> Places:
        """All requests of a tier by partition and offset."""
        records = self.kafka.read_all(self.topics.requests(tier))
        return {(record.partition(), record.offset()): record for record in records}

    def all_records(self) -> list[Message]:
        """All requests."""
        return [record for tier in TIERS for record in self.records(tier).values()]


def unmade_pool(kafka: KafkaAccess) -> ProducerPool:
    """A pool under a name that nobody else has, without topics."""
    name = f"t-{secrets.token_hex(5)}"
    command = ForebayCommand(bootstrap_servers=kafka.bootstrap_servers, pool=name)
    return ProducerPool(kafka=kafka, topics=Pool(name), forebay=command)


def made_pool(kafka: KafkaAccess, *, partitions: int = 3) -> ProducerPool:
    """A pool whose topics are ready to be used."""
    pool = unmade_pool(kafka)
    TopicAdmin(kafka.admin(), connection=kafka.connection).create(
        pool.topics.specs(partitions=partitions, replication=1)
    )
    return pool
