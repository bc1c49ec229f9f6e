"""A pool's topics on the cluster: missing ones, and differences from their specification. Talks to the brokers."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final, TypeVar

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stubs leave these names out
    AdminClient,
    ConfigResource,
    OffsetSpec,
    ResourceType,
)
from confluent_kafka.cimpl import NewTopic

from forebay_schemas.contract.topics import PartitionKey, TopicSpec
from forebay_schemas.errors import ForebayError, KafkaFailedError, UsageError
from forebay_schemas.kafka.connection import KafkaConnection
from forebay_schemas.kafka.errors import as_forebay_error
from forebay_schemas.kafka.metadata import METADATA_TIMEOUT_SECONDS, ask_metadata
from forebay_schemas.kafka.offsets_retention import ask_retention_minutes
from forebay_schemas.kafka.permissions import Access, Operation, is_denied, on_topic
from forebay_schemas.kafka.topic_drift import Drift, drift_of
from forebay_schemas.kafka.topic_ids import topic_ids
from forebay_schemas.kafka.transient import SECONDS_MAX, is_transient, until_passed

LEADERS_SECONDS_MAX: Final = 30.0

_DEFAULT_PARTITIONS: Final = 12
_REPLICATION_IN_PRODUCTION: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicState:
    """A topic as it is. ``settings``: those that its specification names."""

    name: str
    partitions: int
    replication: int
    settings: dict[str, str]
    drift: tuple[Drift, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The partitions of each request topic, and the replicas of every topic."""

    partitions: int
    replication: int


class OffsetBound(Enum):
    """An end of a partition."""

    EARLIEST = auto()
    LATEST = auto()
    LATEST_COMMITTED = auto()
    """The end that readers of committed records see: before the oldest open transaction."""


class TopicAdmin:
    """Describes and creates a pool's topics. A call raises ``BrokerUnreachableError`` within ten seconds."""

    def __init__(self, admin: AdminClient, *, connection: KafkaConnection) -> None:
        self._admin = admin
        self._connection = connection

    def shape(self, request_topics: Sequence[str], *, partitions: int | None, replication: int | None) -> Shape:
        """The given numbers; by default those of the request topics, or else 12 partitions and three replicas (one with
        fewer than three brokers)."""
        metadata = self._metadata()
        there = [metadata.topics[name].partitions for name in request_topics if name in metadata.topics]
        there = [found for found in there if found]
        if partitions is None:
            partitions = max(map(len, there)) if there else _DEFAULT_PARTITIONS
        if replication is None and there:
            replication = max(len(found[min(found)].replicas) for found in there)
        elif replication is None:
            replication = _REPLICATION_IN_PRODUCTION if len(metadata.brokers) >= _REPLICATION_IN_PRODUCTION else 1
        return Shape(partitions=partitions, replication=replication)

    def look_at(self, specs: Iterable[TopicSpec]) -> dict[str, TopicState]:
        """The existing topics, by name."""
        metadata = self._metadata()
        found = {spec.name: spec for spec in specs if _usable(metadata.topics.get(spec.name))}
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in found]

        def ask() -> dict[str, Any]:
            answers = self._admin.describe_configs(resources, request_timeout=_TIMEOUT) if found else {}
            return {resource.name: self._settings_of(resource.name, answer) for resource, answer in answers.items()}

        states: dict[str, TopicState] = {}
        for name, all_settings in self._ask(lambda: until_passed()(ask), doing="reading topic settings").items():
            spec = found[name]
            settings = {key: str(all_settings[key].value) for key in spec.config if key in all_settings}
            partitions = metadata.topics[name].partitions
            replication = min(len(partition.replicas) for partition in partitions.values())
            states[name] = TopicState(
                name=name,
                partitions=len(partitions),
                replication=replication,
                settings=settings,
                drift=drift_of(spec, partitions=len(partitions), replication=replication, settings=settings),
            )
        return states

    def create(self, specs: Sequence[TopicSpec]) -> set[str]:
        """Creates the topics and waits until each partition has a leader; returns those that were created.

        Raises ``UsageError`` for more replicas than brokers, ``KafkaFailedError``.
        """
        if not specs:
            return set()
        new = [NewTopic(spec.name, spec.partitions, spec.replication, config=spec.config) for spec in specs]
        made: set[str] = set()
        for name, answer in self._admin.create_topics(new, request_timeout=_TIMEOUT).items():
            try:
                answer.result()
                made.add(name)
            except KafkaException as error:
                code = error.args[0].code()
                if code == KafkaError.INVALID_REPLICATION_FACTOR:
                    problem = f"is {specs[0].replication}, more than there are brokers"
                    raise UsageError("--replication", problem, fix="give less, or start more brokers") from None
                # Somebody else was faster, which is as good.
                if code != KafkaError.TOPIC_ALREADY_EXISTS:
                    needs = on_topic(Operation.CREATE, name)
                    raise self._explained(error, doing=f"creating {name}", needs=needs) from None
        self._wait_until_usable({spec.name: spec.partitions for spec in specs})
        return made

    def count_records(self, states: Iterable[TopicState]) -> dict[str, int]:
        """The records in each topic: last minus first offset, so compacted records and markers count, too."""
        partitions = [(state.name, partition) for state in states for partition in range(state.partitions)]
        first, last = self.offsets(partitions, at=OffsetBound.EARLIEST), self.offsets(partitions, at=OffsetBound.LATEST)
        counts = dict.fromkeys((name for name, _ in partitions), 0)
        for at in partitions:
            counts[at[0]] += last[at] - first[at]
        return counts

    def offsets(
        self, partitions: Iterable[PartitionKey], *, at: OffsetBound, patience_seconds: float = SECONDS_MAX
    ) -> dict[PartitionKey, int]:
        """The earliest or latest offset of each partition.

        ``patience_seconds``: how long transient errors are retried.
        """
        isolation = (
            IsolationLevel.READ_COMMITTED if at is OffsetBound.LATEST_COMMITTED else IsolationLevel.READ_UNCOMMITTED
        )
        spec = OffsetSpec.earliest() if at is OffsetBound.EARLIEST else OffsetSpec.latest()  # type: ignore[no-untyped-call]
        wanted = {TopicPartition(topic, partition): spec for topic, partition in partitions}
        if not wanted:
            return {}

        def ask() -> dict[PartitionKey, int]:
            found: dict[PartitionKey, int] = {}
            answers = self._admin.list_offsets(wanted, isolation_level=isolation, request_timeout=_TIMEOUT)
            for one, answer in answers.items():
                try:
                    found[one.topic, one.partition] = answer.result().offset
                except KafkaException as error:
                    if is_transient(error):
                        # After a broker's restart the client would otherwise keep asking with old leader epochs.
                        self._admin.list_topics(timeout=_TIMEOUT)
                    if not is_denied(error.args[0]):
                        raise
                    needs = on_topic(Operation.DESCRIBE, one.topic)
                    raise self._explained(error, doing="reading offsets", needs=needs) from None
            return found

        return self._ask(lambda: until_passed(patience_seconds)(ask), doing="reading offsets")

    def ids(self, topics: Collection[str]) -> dict[str, int]:
        """The topics' ids, as in commits; without topics that have none."""

        def ask() -> dict[str, int]:
            return topic_ids(self._admin, topics, timeout_seconds=_TIMEOUT)

        return self._ask(lambda: until_passed()(ask), doing="asking which topics these are")

    def offsets_retention_minutes(self) -> int | None:
        """How long brokers keep the commits of a group without members; None if unknown."""
        try:
            return ask_retention_minutes(self._admin, timeout_seconds=_TIMEOUT)
        except KafkaException:
            return None  # who may make topics need not be allowed to know

    def _wait_until_usable(self, partitions: Mapping[str, int]) -> None:
        give_up_at = time.monotonic() + LEADERS_SECONDS_MAX
        while True:
            topics = self._metadata().topics
            waiting = [name for name, count in partitions.items() if not _has_leaders(topics.get(name), count)]
            if not waiting:
                break
            if time.monotonic() > give_up_at:
                raise KafkaFailedError(
                    f"topic {waiting[0]} has no leader {LEADERS_SECONDS_MAX:g} s after it was made; look at the brokers"
                )
            time.sleep(0.05)
        # The leaders in the metadata may not know it yet; they do once they answer.
        everything = [(name, number) for name, count in partitions.items() for number in range(count)]
        self.offsets(
            everything, at=OffsetBound.LATEST, patience_seconds=max(SECONDS_MAX, give_up_at - time.monotonic())
        )

    def _metadata(self) -> Any:
        return ask_metadata(self._admin, connection=self._connection, doing="asking for the topics")

    def _settings_of(self, topic: str, answer: Any) -> Any:
        try:
            return answer.result()
        except KafkaException as error:
            if not is_denied(error.args[0]):
                raise
            needs = on_topic(Operation.DESCRIBE_CONFIGS, topic)
            raise self._explained(error, doing="reading topic settings", needs=needs) from None

    def _ask(self, call: Callable[[], _Answer], *, doing: str) -> _Answer:
        try:
            return call()
        except KafkaException as error:
            raise self._explained(error, doing=doing) from None

    def _explained(self, error: KafkaException, *, doing: str, needs: Access | None = None) -> ForebayError:
        return as_forebay_error(error.args[0], connection=self._connection, doing=doing, needs=needs)


_Answer = TypeVar("_Answer")
_TIMEOUT: Final = METADATA_TIMEOUT_SECONDS


def _has_leaders(topic: Any, count: int) -> bool:
    partitions = topic.partitions.values() if _usable(topic) else ()
    return len(partitions) >= count and all(partition.leader >= 0 for partition in partitions)


def _usable(topic: Any) -> bool:
    return topic is not None and topic.error is None and bool(topic.partitions)
