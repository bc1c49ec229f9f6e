"""Fronts: groups of client processes (replicas) that share a name. Each follows its own partition of results. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import msgspec

from forebay_schemas.contract.envelope_problems import shown
from forebay_schemas.contract.topics import LATER_BYTES_MAX, TopicSpec, insync_replicas_min
from forebay_schemas.errors import UsageError

_FRONT: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")
_DAY_MS: Final = 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True)
class Front:
    """One front, of any number of replicas and pools, and the names of its topics.

    Raises ``UsageError`` for a name that is not 1 to 100 letters, digits, hyphens and underscores.
    """

    name: str

    def __post_init__(self) -> None:
        if not _FRONT.fullmatch(self.name):
            raise UsageError(
                "front",
                f"{shown(self.name)} is no name of a front",
                fix="use 1 to 100 letters, digits, hyphens and underscores",
            )

    @property
    def presence(self) -> str:
        """Which partition of results each live replica follows; compacted."""
        return f"forebay-front.{self.name}.presence"

    def specs(self, *, replication: int) -> list[TopicSpec]:
        """All topics of the front. Raises ``UsageError`` for ``replication`` outside 1 to 32767."""
        config = {
            "max.message.bytes": str(LATER_BYTES_MAX),
            "min.insync.replicas": str(insync_replicas_min(replication)),
            # Leases count on the brokers' clock.
            "message.timestamp.type": "LogAppendTime",
            "cleanup.policy": "compact,delete",
            "retention.ms": str(_DAY_MS),
            "segment.ms": "600000",
        }
        return [TopicSpec(name=self.presence, partitions=1, replication=replication, config=config)]


class Claim(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A replica's record on the presence topic: the partition of a pool's results that it follows.

    Its key is `claim_key`; a tombstone withdraws it. It is live for ``LEASE_MS`` after the broker's timestamp.
    """

    replica: str
    pool: str
    partition: int


LEASE_MS: Final = 30_000
"""A replica renews its claim three times in this time. Without a renewal its partition is free."""

_claim_encoder = msgspec.json.Encoder()
_claim_decoder = msgspec.json.Decoder(Claim)


def claim_key(claim: Claim) -> bytes:
    """The key of a claim's record."""
    return f"{claim.pool}/{claim.replica}".encode()


def encode_claim(claim: Claim) -> bytes:
    """The record value."""
    return _claim_encoder.encode(claim)


def decode_claim(value: bytes | None) -> Claim | None:
    """The claim in a record value; None for anything else."""
    if value is None:
        return None
    try:
        claim = _claim_decoder.decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return claim if claim.partition >= 0 else None
