"""Which partition of results a replica of a front follows: decided from the claims in the order of the log. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from forebay_schemas.contract.fronts import LEASE_MS, Claim


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadClaim:
    """A replica's last claim. ``written_ms``: the broker's timestamp; ``offset``: its place in the log."""

    claim: Claim
    written_ms: int
    offset: int


class Claims:
    """The last claim of each replica for one pool, from all records of the presence topic in their order."""

    def __init__(self, pool: str) -> None:
        self._pool = pool
        self._claims: dict[bytes, ReadClaim] = {}

    def add(self, key: bytes, claim: ReadClaim | None) -> None:
        """A record was read; None for a tombstone, and for what is no claim."""
        if claim is None:
            self._claims.pop(key, None)
        elif claim.claim.pool == self._pool:
            self._claims[key] = claim

    def live(self, now_ms: int, *, except_replica: str) -> list[ReadClaim]:
        """Claims of other replicas whose lease lasts. ``now_ms``: on the brokers' clock."""
        return [
            each
            for each in self._claims.values()
            if each.claim.replica != except_replica and now_ms - each.written_ms < LEASE_MS
        ]

    def by_key(self) -> Mapping[bytes, ReadClaim]:
        """All of them."""
        return self._claims


def choose_partition(live: Sequence[ReadClaim], *, partitions: int, pick: Callable[[Sequence[int]], int]) -> int:
    """A partition that the fewest live replicas follow. ``pick`` chooses one of several: at random, so that replicas
    that start together rarely meet."""
    followers = Counter(each.claim.partition for each in live)
    least = min(followers[number] for number in range(partitions))
    return pick([number for number in range(partitions) if followers[number] == least])


def is_taken(live: Sequence[ReadClaim], *, partition: int, offset: int, partitions: int) -> bool:
    """Whether another replica claimed the partition before ``offset``, and there is a free one to move to."""
    others = {each.claim.partition for each in live}
    has_free = any(number not in others for number in range(partitions))
    return has_free and any(each.claim.partition == partition and each.offset < offset for each in live)
