"""The worker's Kafka clients: each role's properties, and what is peculiar about them. Made when they are asked for."""

from __future__ import annotations

from typing import cast

from forebay_schemas.contract.topics import LATER_BYTES_MAX, UNPACKED_BYTES_MAX, Pool
from forebay_schemas.kafka.configs import READ_BY_ALL, common_config, consumer_config, producer_config, reader_config
from forebay_worker.coordination.follower import FollowingConsumer
from forebay_worker.intake.fetcher import FetchingConsumer
from forebay_worker.intake.protocols import KafkaConsumer, OnCommit
from forebay_worker.intake.results_reader import LookingConsumer
from forebay_worker.streaming.outlet import StreamProducer
from forebay_worker.wiring.world import ClientConfig, FlushedProducer, World

FETCH_BYTES = 64 * 1024
NEW_PARTITIONS_MS = 1_000
"""How often the client looks for new partitions of the topics that it writes to."""

LOOK_KILOBYTES = 16 * 1024
"""Prefetch of whoever looks through the results."""


class Clients:
    """Makes clients for one worker of a pool."""

    def __init__(self, world: World, *, pool: Pool, worker_id: str) -> None:
        self._world = world
        self._pool = pool
        self._worker_id = worker_id

    def producer(self) -> FlushedProducer:
        """For outcomes and notices."""
        config: ClientConfig = producer_config(
            self._world.connection,
            client_id=self._worker_id,
            record_bytes_max=UNPACKED_BYTES_MAX,
            compression=READ_BY_ALL,
        )
        # A result that is awaited in a new partition waits until the client knows of it; by default five minutes.
        return self._world.make_producer({"topic.metadata.refresh.interval.ms": NEW_PARTITIONS_MS} | config)

    def stream_producer(self) -> StreamProducer:
        """For pieces of streamed answers: what cannot be sent soon is dropped, and its queue is small."""
        config: ClientConfig = {
            # The pieces of one timer leave together, and a first piece loses no more than this.
            "linger.ms": 0.5,
            "max.in.flight.requests.per.connection": 2,
            "compression.type": READ_BY_ALL,
            # Partitions that were added, before requests name them; by default five minutes.
            "topic.metadata.refresh.interval.ms": 10_000,
        } | common_config(self._world.connection, client_id=self._worker_id)
        config |= {
            "acks": 1,
            "enable.idempotence": False,
            # A piece that is sent again could come twice or out of order.
            "retries": 0,
            "message.timeout.ms": 5_000,
            "queue.buffering.max.messages": 10_000,
            "queue.buffering.max.kbytes": 16 * 1024,
            "delivery.report.only.error": True,
            "partitioner": "murmur2_random",
            "message.max.bytes": LATER_BYTES_MAX,
        }
        return cast(StreamProducer, self._world.make_producer(config))

    def member(self, name: str, on_commit: OnCommit) -> KafkaConsumer:
        """A member of the group of intake ``name``."""
        group = f"forebay.{self._pool.name}.{name}"
        config = consumer_config(self._world.connection, client_id=self._worker_id, group=group)
        return cast(KafkaConsumer, self._world.make_consumer({**config, "on_commit": on_commit}))

    def follower(self) -> FollowingConsumer:
        """For coordination and control, read by every worker in full."""
        # Retention has passed the position of a process that stood still: what is left starts later. The prefetch is
        # bounded: before a million cancels the client's own bound is 64 MiB, and some 50 MB for their messages.
        config: ClientConfig = {"queued.min.messages": 10_000, "queued.max.messages.kbytes": 8192}
        config |= {"auto.offset.reset": "earliest", "enable.partition.eof": True}
        return cast(FollowingConsumer, self._reader(config))

    def fetcher(self) -> FetchingConsumer:
        """For single records out of turn."""
        # One record is wanted, not what follows it.
        config: ClientConfig = {"queued.min.messages": 1, "fetch.message.max.bytes": FETCH_BYTES}
        config |= {"auto.offset.reset": "error", "enable.partition.eof": True}
        return cast(FetchingConsumer, self._reader(config))

    def results_reader(self) -> LookingConsumer:
        """For a look through the results."""
        # It is to end soon: at the end of a partition no fetch waits for more.
        config: ClientConfig = {"enable.partition.eof": True, "fetch.wait.max.ms": 10, "auto.offset.reset": "earliest"}
        config |= {"queued.max.messages.kbytes": LOOK_KILOBYTES}
        return cast(LookingConsumer, self._reader(config))

    def _reader(self, more: ClientConfig) -> object:
        config = reader_config(self._world.connection, client_id=self._worker_id)
        return self._world.make_consumer({**config, **more})
