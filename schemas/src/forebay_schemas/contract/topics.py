"""A pool's topics, their settings and size limits, and the names of its consumer groups. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from forebay_schemas.contract.envelope_problems import shown
from forebay_schemas.contract.tiers import TIERS, TTL_MS_MAX, Tier
from forebay_schemas.errors import UsageError

RETRY_DELAYS_SECONDS: Final = (1, 5, 30)

REQUEST_BYTES_MAX: Final = 8 * 1024 * 1024
"""The largest batch of the request topics, uncompressed. A single record must fit with its key and headers."""

LATER_BYTES_MAX: Final = REQUEST_BYTES_MAX + 64 * 1024
"""The limit of all other topics: an accepted record fits there with the headers that hops add."""

UNPACKED_BYTES_MAX: Final = 64 * 1024 * 1024
"""The largest record, uncompressed, that a worker tries to keep as a dead letter: it may be small enough where it is
compressed, which the properties decide. Such a record comes only through request topics that were made otherwise than
`Pool.specs` says."""

PARTITIONS_MAX: Final = 10_000

_DAY_MS = 24 * 60 * 60 * 1000
_POOL = re.compile(r"[A-Za-z0-9_-]{1,100}")


PartitionKey = tuple[str, int]
"""A topic and a partition of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSpec:
    """The specification of a topic: ``config`` has Kafka's own names and values."""

    name: str
    partitions: int
    replication: int
    config: dict[str, str]


def insync_replicas_min(replication: int) -> int:
    """``min.insync.replicas`` of a topic with so many replicas. Raises ``UsageError`` outside 1 to 32767."""
    if not 1 <= replication <= 32767:
        raise UsageError("replication", f"is {replication}", fix="give 1 for one broker, 3 in production")
    return 2 if replication >= 3 else 1


@dataclass(frozen=True, slots=True)
class Pool:
    """One pool: the workers that serve a model or a family of models, and the names of its topics.

    Raises ``UsageError`` for a name that is not 1 to 100 letters, digits, hyphens and underscores.
    """

    name: str

    def __post_init__(self) -> None:
        if not _POOL.fullmatch(self.name):
            raise UsageError(
                "pool",
                f"{shown(self.name)} is no pool name",
                fix="use 1 to 100 letters, digits, hyphens and underscores",
            )

    def requests(self, tier: Tier) -> str:
        """The topic of a tier's requests."""
        return f"forebay.{self.name}.requests.{tier}"

    def retry(self, tier: Tier, delay_seconds: int) -> str:
        """A topic of a tier's failed requests; ``delay_seconds`` is one of ``RETRY_DELAYS_SECONDS``."""
        return f"forebay.{self.name}.retry.{tier}.{delay_seconds}s"

    @property
    def retries(self) -> list[str]:
        """Every retry topic, most urgent tier first, shortest delay first."""
        return [self.retry(tier, delay) for tier in TIERS for delay in RETRY_DELAYS_SECONDS]

    @property
    def dead_letter(self) -> str:
        """Dead letters: requests that failed for good or could not be decoded, unchanged."""
        return f"forebay.{self.name}.dead-letter"

    @property
    def results(self) -> str:
        """Results, keyed by request id."""
        return f"forebay.{self.name}.results"

    @property
    def streams(self) -> str:
        """Pieces of streamed answers, keyed by request id, in the partitions of their results; kept for minutes."""
        return f"forebay.{self.name}.streams"

    @property
    def control(self) -> str:
        """Cancels and expedites, keyed by action and request id; compacted."""
        return f"forebay.{self.name}.control"

    @property
    def coordination(self) -> str:
        """Records among workers; kept for minutes."""
        return f"forebay.{self.name}.coordination"

    @property
    def audit(self) -> str:
        """The audit of replays and other changes."""
        return f"forebay.{self.name}.audit"

    def group(self, tier: Tier) -> str:
        """The consumer group for a tier's requests."""
        return f"forebay.{self.name}.{tier}"

    @property
    def retry_group(self) -> str:
        """The consumer group for the retries of all tiers."""
        return f"forebay.{self.name}.retry"

    def specs(self, *, partitions: int, replication: int) -> list[TopicSpec]:
        """All topics of the pool. ``partitions`` is that of each request topic: it bounds the number of workers.

        Raises ``UsageError`` for ``partitions`` outside 1 to ``PARTITIONS_MAX`` or ``replication`` outside 1 to 32767.
        """
        if not 1 <= partitions <= PARTITIONS_MAX:
            raise UsageError("partitions", f"is {partitions}", fix=f"give 1 to {PARTITIONS_MAX}")
        insync_min = insync_replicas_min(replication)
        few = -(-partitions // 4)

        def spec(name: str, partitions: int, size: int, **config: str | int) -> TopicSpec:
            # Records are acknowledged by two replicas, so that one may die; a single broker has no second replica.
            common = {"max.message.bytes": size, "min.insync.replicas": insync_min}
            named = {key.replace("_", "."): str(value) for key, value in {**common, **config}.items()}
            return TopicSpec(name=name, partitions=partitions, replication=replication, config=named)

        on_append = "LogAppendTime"
        # Brokers unpack what clients write and check the real size against the limit. With "producer", the default, 300
        # MiB of gzip passed through a topic of 8 MiB (measured), and 8 MiB can be gigabytes.
        unpacked = "uncompressed"
        # A request that expires at the last moment must still be readable to be reported.
        waiting = TTL_MS_MAX + _DAY_MS
        week, month = 7 * _DAY_MS, 30 * _DAY_MS
        return [
            *(
                spec(
                    self.requests(tier),
                    partitions,
                    REQUEST_BYTES_MAX,
                    message_timestamp_type=on_append,
                    retention_ms=waiting,
                    compression_type=unpacked,
                )
                for tier in TIERS
            ),
            *(
                spec(name, few, LATER_BYTES_MAX, message_timestamp_type=on_append, retention_ms=waiting)
                for name in self.retries
            ),
            spec(self.results, partitions, LATER_BYTES_MAX, message_timestamp_type=on_append, retention_ms=week),
            # What is read while it is written; short segments, so that the disk holds little more than the retention.
            spec(
                self.streams,
                partitions,
                LATER_BYTES_MAX,
                message_timestamp_type=on_append,
                retention_ms=600_000,
                segment_ms=120_000,
            ),
            spec(self.dead_letter, few, LATER_BYTES_MAX, retention_ms=month),
            # Longer than the longest deadline: a cancel must still exist when its request is read.
            spec(
                self.control,
                1,
                LATER_BYTES_MAX,
                message_timestamp_type=on_append,
                cleanup_policy="compact,delete",
                retention_ms=waiting,
                compression_type=unpacked,
            ),
            # A worker learns its own clock's error from the brokers' time here, before it has any result.
            spec(
                self.coordination,
                1,
                LATER_BYTES_MAX,
                message_timestamp_type=on_append,
                retention_ms=600_000,
                segment_ms=600_000,
            ),
            spec(self.audit, 1, LATER_BYTES_MAX, retention_ms=3 * month),
        ]
