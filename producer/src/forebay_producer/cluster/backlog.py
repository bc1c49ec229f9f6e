"""The backlog of a pool's request topics: its size, its age, and the rates in and out.

`BacklogReader` talks to the brokers; the computations are pure. One thread at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Self

from confluent_kafka import TopicPartition

from forebay_producer.cluster.offsets_reader import GroupOffsets, Head, HeadReader
from forebay_producer.cluster.topic_admin import OffsetBound, TopicAdmin
from forebay_schemas.clock import Clock
from forebay_schemas.contract.offsets_metadata import NOTHING, decode_metadata
from forebay_schemas.contract.tiers import TIERS, Tier
from forebay_schemas.contract.topics import PartitionKey, Pool
from forebay_schemas.kafka.clients import make_admin
from forebay_schemas.kafka.connection import KafkaConnection
from forebay_schemas.kafka.metadata import require_topics
from forebay_schemas.kafka.permissions import Operation

_CLIENT_ID: Final = "forebay-backlog"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """Offsets of one partition.

    ``committed``: None when the group has committed nothing. ``finished_beyond``, ``running``: records from the head on
    that the commit's metadata lists as finished, or running. ``missing``: offsets from the head on known to hold no
    record.
    """

    first: int
    end: int
    committed: int | None
    finished_beyond: int
    running: int = 0
    missing: int = 0

    @property
    def head(self) -> int:
        """The lowest offset not known to be finished."""
        return self.first if self.committed is None else max(self.first, self.committed)

    @property
    def done(self) -> int:
        """The number of offsets behind the group."""
        return self.head + self.finished_beyond

    @property
    def waiting(self) -> int:
        """Unfinished records: waiting or running."""
        return max(0, self.end - self.done - self.missing)

    def seen(self, head: Head) -> PartitionState:
        """The same partition with the record at its head known."""
        return replace(self, missing=max(0, min(head.offset, self.end) - self.head))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """All partitions of each tier at one moment. ``at_seconds``: monotonic."""

    at_seconds: float
    tiers: Mapping[Tier, tuple[PartitionState, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TierBacklog:
    """A tier's figures. ``oldest_age_seconds``: None when nothing waits."""

    waiting: int
    oldest_age_seconds: float | None
    in_per_second: float
    out_per_second: float


def backlog_of(tier: Tier, *, before: Sample, after: Sample, oldest_age_seconds: float | None) -> TierBacklog:
    """The figures at ``after``, with rates since ``before``. Pure."""
    seconds = after.at_seconds - before.at_seconds
    old, new = before.tiers[tier], after.tiers[tier]
    came = sum(state.end for state in new) - sum(state.end for state in old)
    went = sum(state.done for state in new) - sum(state.done for state in old)
    waiting = sum(state.waiting for state in new)
    return TierBacklog(
        waiting=waiting,
        oldest_age_seconds=oldest_age_seconds if waiting else None,
        in_per_second=came / seconds if seconds > 0 else 0.0,
        out_per_second=went / seconds if seconds > 0 else 0.0,
    )


class Heads:
    """Heads of partitions, each read once until something changes there."""

    def __init__(self, reader: HeadReader) -> None:
        self._reader = reader
        self._known: dict[PartitionKey, tuple[int, Head]] = {}

    def of(self, states: Mapping[PartitionKey, PartitionState]) -> dict[PartitionKey, Head]:
        """The head of each partition with a possible backlog, except those whose broker does not answer."""
        asked = {at: state for at, state in states.items() if state.waiting}
        unknown = {at: state.head for at, state in asked.items() if not self._knows(at, state)}
        self._known |= {at: (unknown[at], head) for at, head in self._reader.at(unknown).items()}
        return {at: self._known[at][1] for at, state in asked.items() if self._knows(at, state)}

    def _knows(self, at: PartitionKey, state: PartitionState) -> bool:
        offset, head = self._known.get(at, (None, None))
        # A record may have been added behind an end without one.
        return offset == state.head and head is not None and (head.written_ms is not None or head.offset >= state.end)


class BacklogReader:
    """Asks the brokers. The constructor raises ``TopicMissingError`` and ``BrokerUnreachableError``; must be closed."""

    def __init__(self, connection: KafkaConnection, *, pool: Pool, clock: Clock) -> None:
        self._clock = clock
        admin = make_admin(connection, client_id=_CLIENT_ID)
        self._topics = TopicAdmin(admin, connection=connection)
        names = {tier: pool.requests(tier) for tier in TIERS}
        counts = require_topics(admin, names.values(), connection=connection, pool=pool.name, operation=Operation.READ)
        self._partitions = {tier: [(names[tier], number) for number in range(counts[names[tier]])] for tier in TIERS}
        self._head_reader = HeadReader(connection, clock=clock, client_id=_CLIENT_ID)
        self._heads = Heads(self._head_reader)
        self._groups = {tier: GroupOffsets(connection, group=pool.group(tier), client_id=_CLIENT_ID) for tier in TIERS}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the clients."""
        self._head_reader.close()
        for group in self._groups.values():
            group.close()

    def sample(self) -> Sample:
        """The present state of all partitions, by their offsets alone; `looked_at` finds offsets without records."""
        # Commits first, so that none is beyond the end.
        committed = {
            at: one for tier in TIERS for at, one in self._groups[tier].committed(self._partitions[tier]).items()
        }
        everything = [at for tier in TIERS for at in self._partitions[tier]]
        ids = self._topics.ids({topic for topic, _ in everything})
        first = self._topics.offsets(everything, at=OffsetBound.EARLIEST)
        end = self._topics.offsets(everything, at=OffsetBound.LATEST_COMMITTED)
        return Sample(
            at_seconds=self._clock.monotonic(),
            tiers={
                tier: tuple(
                    partition_state(first[at], end[at], committed.get(at), ids.get(at[0]))
                    for at in self._partitions[tier]
                )
                for tier in TIERS
            },
        )

    def looked_at(self, sample: Sample) -> tuple[Sample, dict[Tier, float | None]]:
        """The sample with the record at each partition's head read, and for each tier the age of its oldest unfinished
        record in seconds; None when nothing waits.

        Ages use the records' timestamps and this machine's clock.
        """
        heads = self._heads.of(
            {at: state for tier in TIERS for at, state in zip(self._partitions[tier], sample.tiers[tier], strict=True)}
        )
        now_ms = self._clock.wall_ms()
        tiers: dict[Tier, tuple[PartitionState, ...]] = {}
        ages: dict[Tier, float | None] = {}
        for tier in TIERS:
            states = zip(self._partitions[tier], sample.tiers[tier], strict=True)
            tiers[tier] = tuple(state.seen(heads[at]) if at in heads else state for at, state in states)
            written = [heads[at].written_ms for at in self._partitions[tier] if at in heads]
            oldest_ms = min((each for each in written if each is not None), default=None)
            ages[tier] = None if oldest_ms is None else max(0.0, (now_ms - oldest_ms) / 1000)
        return replace(sample, tiers=tiers), ages


def partition_state(
    first: int, end: int, committed: TopicPartition | None, topic_id: int | None = None
) -> PartitionState:
    """The state by offsets and commit. ``topic_id``: of the present topic; None if unknown."""
    metadata = NOTHING if committed is None else decode_metadata(committed.offset, committed.metadata) or NOTHING
    is_of_another = None not in (topic_id, metadata.topic_id) and topic_id != metadata.topic_id
    if committed is None or is_of_another:
        return PartitionState(first=first, end=end, committed=None, finished_beyond=0)
    # Retention may have passed the commit, and the records that its metadata lists.
    head = max(first, committed.offset)
    return PartitionState(
        first=first,
        end=end,
        committed=committed.offset,
        finished_beyond=sum(max(0, at + length - max(at, head)) for at, length in metadata.finished),
        running=sum(offset >= head for offset, _ in metadata.running),
    )
