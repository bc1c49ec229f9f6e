"""How much waits in a pool's request topics, how old it is, and how fast it comes and goes.

`BacklogReader` talks to the brokers; what it makes of their answers is pure. One thread at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from forebay_producer.topic_admin import Edge, TopicAdmin
from forebay_schemas.clock import Clock
from forebay_schemas.kafka import (
    METADATA_TIMEOUT_SECONDS,
    KafkaConnection,
    as_forebay_error,
    create_client,
    make_admin,
    reader_config,
    require_topics,
)
from forebay_schemas.offsets_metadata import decode_metadata
from forebay_schemas.passing import until_passed
from forebay_schemas.permissions import Operation, is_denied, on_group
from forebay_schemas.tiers import TIERS, Tier
from forebay_schemas.topics import Pool

# A head that has not come by then is left out of the age: its broker is away.
_HEADS_SECONDS_MAX: Final = 5.0
_POLL_SECONDS: Final = 0.1
_REFUSED_SECONDS: Final = 1.5
"""Without an answer until then, it is looked for what is in its way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """Offsets of one partition. ``committed``: None when the group has committed nothing there.

    ``finished_beyond``, ``running``: how many records from the committed offset on its metadata says are finished, or
    running.
    """

    first: int
    end: int
    committed: int | None
    finished_beyond: int
    running: int = 0

    @property
    def head(self) -> int:
        """The lowest offset that is not known to be finished."""
        return self.first if self.committed is None else max(self.first, self.committed)

    @property
    def done(self) -> int:
        """How many offsets are behind the group."""
        return self.head + self.finished_beyond

    @property
    def waiting(self) -> int:
        """Records not finished: waiting or being worked on."""
        return max(0, self.end - self.done)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """All partitions of each tier at one moment. ``at_seconds`` is monotonic."""

    at_seconds: float
    tiers: Mapping[Tier, tuple[PartitionState, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TierBacklog:
    """A tier's figures. ``oldest_age_seconds`` is None when nothing waits."""

    waiting: int
    oldest_age_seconds: float | None
    in_per_second: float
    out_per_second: float


def backlog_of(tier: Tier, *, before: Sample, after: Sample, oldest_age_seconds: float | None) -> TierBacklog:
    """The figures at ``after``; the rates since ``before``. Pure."""
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


class BacklogReader:
    """Asks the brokers. Made with ``TopicMissingError`` or ``BrokerUnreachableError`` if need be; must be closed."""

    def __init__(self, connection: KafkaConnection, *, pool: Pool, clock: Clock) -> None:
        self._connection = connection
        self._pool = pool
        self._clock = clock
        admin = make_admin(connection, client_id="forebay-backlog")
        self._topics = TopicAdmin(admin, connection=connection)
        names = {tier: pool.requests(tier) for tier in TIERS}
        counts = require_topics(admin, names.values(), connection=connection, pool=pool.name, operation=Operation.READ)
        self._partitions = {tier: [(names[tier], number) for number in range(counts[names[tier]])] for tier in TIERS}
        config = reader_config(connection, client_id="forebay-backlog") | {
            # One record of each partition is all that is wanted.
            "queued.min.messages": 1,
            "auto.offset.reset": "earliest",
        }
        self._consumer = create_client(Consumer, config)
        # They join nothing: an admin client could be asked the same, but one whose answer comes from a broker that no
        # longer coordinates the group ends the process (librdkafka 2.16.1: segmentation fault or failed assertion).
        self._groups = {tier: create_client(Consumer, config | {"group.id": pool.group(tier)}) for tier in TIERS}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Lets go of the brokers."""
        for consumer in (self._consumer, *self._groups.values()):
            consumer.close()

    def sample(self) -> Sample:
        """The state of all partitions now."""
        # What is committed comes first, so that it is never beyond the end.
        committed = {at: one for tier in TIERS for at, one in self._committed(tier).items()}
        everything = [at for tier in TIERS for at in self._partitions[tier]]
        first = self._topics.offsets(everything, at=Edge.FIRST)
        end = self._topics.offsets(everything, at=Edge.END)
        return Sample(
            at_seconds=self._clock.monotonic(),
            tiers={
                tier: tuple(_state(first[at], end[at], committed.get(at)) for at in self._partitions[tier])
                for tier in TIERS
            },
        )

    def oldest_ages(self, sample: Sample) -> dict[Tier, float | None]:
        """For each tier, how long its oldest record that is not finished has been there, in seconds.

        By the records' timestamps and this machine's clock. None when nothing waits.
        """
        heads = {
            at: state.head
            for tier in TIERS
            for at, state in zip(self._partitions[tier], sample.tiers[tier], strict=True)
            if state.waiting
        }
        times = self._times_at(heads)
        now_ms = self._clock.wall_ms()
        ages: dict[Tier, float | None] = {}
        for tier in TIERS:
            written = [times[at] for at in self._partitions[tier] if at in times]
            ages[tier] = max(0.0, (now_ms - min(written)) / 1000) if written else None
        return ages

    def _committed(self, tier: Tier) -> dict[tuple[str, int], TopicPartition]:
        wanted = [TopicPartition(topic, number) for topic, number in self._partitions[tier]]
        group = self._pool.group(tier)
        consumer = self._groups[tier]

        def ask() -> list[TopicPartition]:
            try:
                return consumer.committed(wanted, timeout=_REFUSED_SECONDS)
            except KafkaException as error:
                # One that may not see the group waits for its coordinator, and says why to whoever polls.
                said = consumer.poll(0)
                refusal = None if said is None else said.error()
                if refusal is not None and is_denied(refusal):
                    raise KafkaException(refusal) from None
                if error.args[0].code() != KafkaError._TIMED_OUT:
                    raise
            return consumer.committed(wanted, timeout=METADATA_TIMEOUT_SECONDS - _REFUSED_SECONDS)

        try:
            found = until_passed()(ask)
        except KafkaException as error:
            doing = f"reading what group {group} has committed"
            needs = on_group(Operation.DESCRIBE, group)
            raise as_forebay_error(error.args[0], connection=self._connection, doing=doing, needs=needs) from None
        return {(one.topic, one.partition): one for one in found if one.error is None and one.offset >= 0}

    def _times_at(self, heads: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], int]:
        if not heads:
            return {}
        self._consumer.assign([TopicPartition(topic, number, offset) for (topic, number), offset in heads.items()])
        times: dict[tuple[str, int], int] = {}
        give_up_at = self._clock.monotonic() + _HEADS_SECONDS_MAX
        while len(times) < len(heads) and self._clock.monotonic() < give_up_at:
            message = self._consumer.poll(_POLL_SECONDS)
            if message is None or message.error() is not None:
                continue
            topic, number = message.topic(), message.partition()
            assert topic is not None
            assert number is not None
            if (topic, number) not in times:
                times[topic, number] = message.timestamp()[1]
                self._consumer.pause([TopicPartition(topic, number)])
        # A pause outlives the assignment it was made in.
        self._consumer.resume([TopicPartition(topic, number) for topic, number in times])
        self._consumer.unassign()
        return times


def _state(first: int, end: int, committed: TopicPartition | None) -> PartitionState:
    if committed is None:
        return PartitionState(first=first, end=end, committed=None, finished_beyond=0)
    metadata = decode_metadata(committed.offset, committed.metadata)
    return PartitionState(
        first=first,
        end=end,
        committed=committed.offset,
        finished_beyond=metadata.finished_count if metadata is not None else 0,
        running=len(metadata.running) if metadata is not None else 0,
    )
