"""The surroundings of a simulated worker: no signals, brokers that allow everything, records that kill."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any
from zlib import crc32

from forebay_schemas.contract.envelope import Request
from forebay_schemas.contract.topics import Pool
from forebay_schemas.formats.envelope_reader import EnvelopeReader, SchemaSource
from forebay_schemas.kafka.connection import KafkaConnection
from forebay_schemas.kafka.permissions import Access
from forebay_worker.cluster import startup
from simulation.broker import Broker


class NoSignals:
    async def start(self) -> None:
        """There is nothing to look at."""

    async def stop(self) -> None:
        """Nothing was started."""

    def latest_engine(self, now: float) -> None:
        del now

    def latest_gpu(self, now: float) -> None:
        del now

    def sources(self, now: float) -> dict[str, dict[str, Any]]:
        del now
        return {}


class SimulatedCluster(startup.Cluster):
    """Brokers that allow everything and always answer."""

    def __init__(self, connection: KafkaConnection, *, pool: Pool, worker_id: str, broker: Broker) -> None:
        super().__init__(connection, pool=pool, worker_id=worker_id)
        self._broker = broker

    def require_usable(self) -> dict[str, int]:
        return {topic: len(logs) for topic, logs in self._broker.topics.items()}

    def lacking(self) -> list[Access]:
        return []

    def topic_ids(self, topics: Collection[str]) -> dict[str, int]:
        return {topic: crc32(topic.encode()) for topic in topics}


class DeadlyReader(EnvelopeReader):
    """Some records kill the process that decodes them."""

    __slots__ = ("_die",)

    def __init__(self, source: SchemaSource, *, die: Callable[[str], None], **more: Any) -> None:
        super().__init__(source, **more)
        self._die = die

    def read(self, value: bytes | None, *, content_type: str | None = None) -> Request:
        request = super().read(value, content_type=content_type)
        self._die(request.request_id)
        return request
