"""The benchmarks' topics: makes and fills them, counts records, deletes them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

from confluent_kafka import Consumer, KafkaException, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks.programs import BenchError
from forebay_sandbox.kafka.access import KafkaAccess
from forebay_schemas.contract.topics import REQUEST_BYTES_MAX, Pool, TopicSpec
from forebay_schemas.kafka.clients import create_client
from forebay_schemas.kafka.configs import producer_config, reader_config
from forebay_schemas.kafka.metadata import ask_metadata

ANSWER_SECONDS_MAX = 30.0
PARTITIONS = 6


class Watch:
    """One client that asks how far things are: making a new one for each question would disturb what is measured."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer

    def reaches(self, topic: str) -> dict[int, tuple[int, int]]:
        """The first offset of each partition and the one after its last."""
        found = {}
        for number in range(PARTITIONS):
            reach = self._consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=ANSWER_SECONDS_MAX)
            if reach is None:
                raise BenchError(f"{topic}: the broker did not say where partition {number} ends")
            found[number] = reach
        return found

    def waiting(self, topic: str) -> int:
        """Number of records in the topic."""
        return sum(end - first for first, end in self.reaches(topic).values())

    def committed(self, topic: str) -> int:
        """Number of the topic's records, counted from offset 0, that the group has committed."""
        asked = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        return sum(max(0, one.offset) for one in self._consumer.committed(asked, timeout=ANSWER_SECONDS_MAX))


class Cluster:
    """A cluster together with the topics that one run of the benchmarks has made on it."""

    def __init__(self, kafka: KafkaAccess) -> None:
        """Raises ``BrokerUnreachableError``."""
        self.kafka = kafka
        self._admin: AdminClient = kafka.admin()
        self._made: list[str] = []
        # Asked first, so that a cluster that is not there is named as such.
        ask_metadata(self._admin, connection=kafka.connection, doing="looking for the cluster")

    def make_pool(self, name: str) -> Pool:
        """All topics of a new pool."""
        pool = Pool(name)
        self._make(pool.specs(partitions=PARTITIONS, replication=1))
        return pool

    def make_like_results(self, pool: Pool, name: str) -> str:
        """A topic with the settings of the pool's results, for a raw program. ``name`` comes behind the pool's."""
        results = next(one for one in pool.specs(partitions=PARTITIONS, replication=1) if one.name == pool.results)
        topic = f"{pool.name}.{name}"
        self._make([TopicSpec(name=topic, partitions=PARTITIONS, replication=1, config=results.config)])
        return topic

    def delete_all(self) -> None:
        """Delete every topic made here."""
        if self._made:
            for deleted in self._admin.delete_topics(self._made).values():
                with suppress(KafkaException):
                    deleted.result(ANSWER_SECONDS_MAX)
            self._made.clear()

    def topic_id(self, topic: str) -> str:
        """Kafka's own id of the topic."""
        described = self._admin.describe_topics(TopicCollection([topic]), request_timeout=ANSWER_SECONDS_MAX)[topic]
        return str(described.result(ANSWER_SECONDS_MAX).topic_id)

    def fill(
        self,
        topic: str,
        records: Iterable[tuple[str, bytes]],
        *,
        headers: Callable[[int], list[tuple[str, str | bytes | None]]] = lambda _number: [],
    ) -> int:
        """Produces key and value of each record, with the headers that its number gets; returns how many once all are
        delivered."""
        config = producer_config(self.kafka.connection, client_id="forebay-bench", record_bytes_max=REQUEST_BYTES_MAX)
        producer = create_client(Producer, config)
        count = 0
        for key, value in records:
            while True:
                try:
                    producer.produce(topic, value, key, headers=headers(count))
                    break
                except BufferError:
                    producer.poll(0.05)
            count += 1
        if left := producer.flush(ANSWER_SECONDS_MAX):
            raise BenchError(f"{left} of {count} records for {topic} were not delivered")
        return count

    @contextmanager
    def watch(self, group: str) -> Iterator[Watch]:
        """Sees how far ``group`` is, without being a member of it."""
        config = reader_config(self.kafka.connection, client_id="forebay-bench") | {"group.id": group}
        consumer = create_client(Consumer, config)
        try:
            yield Watch(consumer)
        finally:
            consumer.close()

    def empty(self, topic: str, *, watch: Watch) -> None:
        """Deletes every record that lies in the topic now."""
        before = [TopicPartition(topic, number, end) for number, (_, end) in watch.reaches(topic).items() if end]
        if before:
            for deleted in self._admin.delete_records(before).values():
                deleted.result(ANSWER_SECONDS_MAX)

    def forget_group(self, group: str) -> None:
        """Deletes what a group has committed, once its last member has left."""
        deadline = time.monotonic() + ANSWER_SECONDS_MAX
        while True:
            try:
                self._admin.delete_consumer_groups([group])[group].result(ANSWER_SECONDS_MAX)
                return
            except KafkaException as error:
                if time.monotonic() > deadline:
                    raise BenchError(f"group {group} cannot be deleted: {error.args[0].str()}") from None
            time.sleep(0.1)

    def _make(self, specs: list[TopicSpec]) -> None:
        wanted = [
            NewTopic(one.name, num_partitions=one.partitions, replication_factor=one.replication, config=one.config)
            for one in specs
        ]
        for name, made in self._admin.create_topics(wanted).items():
            made.result(ANSWER_SECONDS_MAX)
            self._made.append(name)
