"""Reads what workers publish of themselves on the coordination topics. Talks to the brokers; joins no group. One thread
at a time."""

from __future__ import annotations

from confluent_kafka import OFFSET_END, Consumer, TopicPartition

from forebay_schemas.clock import Clock
from forebay_schemas.contract.coordination import GONE_SECONDS, Capacity, decode_capacity
from forebay_schemas.contract.topics import PartitionKey, Pool
from forebay_schemas.errors import ForebayError
from forebay_schemas.kafka.clients import create_client
from forebay_schemas.kafka.configs import reader_config
from forebay_schemas.kafka.connection import KafkaConnection
from forebay_schemas.kafka.errors import as_forebay_error
from forebay_schemas.kafka.permissions import Operation, is_denied, on_topic


class AnnouncementReader:
    """Reads the coordination topics of all pools, from now on. Must be closed."""

    def __init__(self, connection: KafkaConnection, *, clock: Clock, client_id: str) -> None:
        self._connection = connection
        self._clock = clock
        self._consumer = create_client(Consumer, reader_config(connection, client_id=client_id))
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
