"""The protocols through which an intake reaches the outside. Real clients and simulated ones implement them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from confluent_kafka import KafkaError, TopicPartition

from forebay_schemas.contract.coordination import Notice
from forebay_worker.request.work import Record

OnCommit = Callable[[KafkaError | None, list[TopicPartition]], None]


class KafkaConsumer(Protocol):
    """The part of confluent-kafka's Consumer that is used here; the simulated broker implements it too."""

    def subscribe(self, topics: list[str], *, on_assign: Any, on_revoke: Any, on_lost: Any) -> None: ...
    def poll(self, timeout: float) -> Record | None: ...
    def consume(self, num_messages: int, timeout: float) -> list[Record]: ...
    def commit(self, *, offsets: list[TopicPartition], asynchronous: bool) -> Any: ...
    def committed(self, partitions: list[TopicPartition], timeout: float) -> list[TopicPartition]: ...
    def incremental_assign(self, partitions: list[TopicPartition]) -> None: ...
    def pause(self, partitions: list[TopicPartition]) -> None: ...
    def resume(self, partitions: list[TopicPartition]) -> None: ...
    def seek(self, partition: TopicPartition) -> None: ...
    def get_watermark_offsets(self, partition: TopicPartition, timeout: float = ..., *, cached: bool = ...) -> Any: ...
    def close(self) -> None: ...


class Peers(Protocol):
    """The other workers, as an intake sees them."""

    @property
    def worker_id(self) -> str:
        """This worker's own id."""
        ...

    @property
    def read_until(self) -> float:
        """All notices published before this moment (monotonic seconds) were received."""
        ...

    @property
    def read_at(self) -> float:
        """When a record for which `read_until` waits was last received (monotonic seconds)."""
        ...

    def listen_until(self, now: float) -> None:
        """Asks for `read_until` to reach ``now``."""
        ...

    def publish(self, notices: list[Notice]) -> bool:
        """Publishes a notice and waits up to a second until it is durable. False: it may not be."""
        ...


class TopicIds(Protocol):
    """The topic ids behind the names, as `TopicWatch` knows them."""

    @property
    def known_until(self) -> float:
        """`id_of` was correct at this moment (monotonic seconds) or later."""
        ...

    @property
    def changes(self) -> int:
        """Grows when an id becomes known or changes."""
        ...

    def id_of(self, topic: str) -> int | None:
        """The topic's id; None when it is not known."""
        ...

    def changed_after_ms(self, topic: str) -> int:
        """When (epoch milliseconds) the former topic was last seen; 0 if it never was."""
        ...

    def look_until(self, now: float) -> None:
        """Asks for `known_until` to reach ``now`` soon."""
        ...
