"""Replicas of a front choose partitions by the order of the log: none shares one while another is free."""

from __future__ import annotations

from random import Random

import pytest

from forebay_producer.replies.claims import Claims, ReadClaim, choose_partition, is_taken
from forebay_schemas.contract.fronts import LEASE_MS, Claim, claim_key, decode_claim, encode_claim

NOW = 1_000_000


def read(replica: str, partition: int, *, offset: int = 0, age_ms: int = 0, pool: str = "p") -> ReadClaim:
    claim = Claim(replica=replica, pool=pool, partition=partition)
    return ReadClaim(claim=claim, written_ms=NOW - age_ms, offset=offset)


def add(claims: Claims, one: ReadClaim) -> None:
    claims.add(claim_key(one.claim), one)


def test_only_other_replicas_whose_lease_lasts_are_live() -> None:
    claims = Claims("p")
    for one in (
        read("self", 0),
        read("live", 1, age_ms=LEASE_MS - 1),
        read("gone", 2, age_ms=LEASE_MS),
        read("elsewhere", 3, pool="q"),
        read("withdrawn", 4),
    ):
        add(claims, one)
    claims.add(claim_key(read("withdrawn", 4).claim), None)
    assert [each.claim.replica for each in claims.live(NOW, except_replica="self")] == ["live"]


@pytest.mark.parametrize(
    ("taken", "chosen"),
    [([], 0), ([0], 1), ([1], 0), ([0, 1, 2], 0), ([0, 0, 1, 2], 1), ([0, 1], 2)],
)
def test_the_partition_with_the_fewest_followers_is_chosen(taken: list[int], chosen: int) -> None:
    live = [read(f"r{number}", partition) for number, partition in enumerate(taken)]
    assert choose_partition(live, partitions=3, pick=min) == chosen


@pytest.mark.parametrize(
    ("others", "taken"),
    [
        ([], False),
        ([(0, 5)], True),
        ([(0, 15)], False),
        ([(1, 5)], False),
        ([(0, 5), (1, 6), (2, 7)], False),
    ],
    ids=["alone", "claimed before", "claimed after", "another", "no partition is free"],
)
def test_the_first_claim_in_the_log_holds(others: list[tuple[int, int]], taken: bool) -> None:
    live = [read(f"r{offset}", partition, offset=offset) for partition, offset in others]
    assert is_taken(live, partition=0, offset=10, partitions=3) is taken


def test_replicas_that_start_together_end_on_partitions_of_their_own() -> None:
    for seed in range(200):
        random, holds = Random(seed), dict.fromkeys(range(6), -1)
        log: list[ReadClaim] = []
        for number in random.sample(range(6), 6) * 12:
            claims = Claims("p")
            for one in log:
                add(claims, one)
            live = claims.live(NOW, except_replica=str(number))
            own = next((one for one in reversed(log) if one.claim.replica == str(number)), None)
            if own is None or is_taken(live, partition=own.claim.partition, offset=own.offset, partitions=6):
                holds[number] = choose_partition(live, partitions=6, pick=random.choice)
                log.append(read(str(number), holds[number], offset=len(log)))
        assert sorted(holds.values()) == list(range(6)), seed


@pytest.mark.parametrize("value", [None, b"", b"\xff", b"{}", b'{"replica":"r","pool":"p","partition":-1}', b"[1]"])
def test_what_is_no_claim_counts_for_nothing(value: bytes | None) -> None:
    assert decode_claim(value) is None


def test_a_claim_is_read_back() -> None:
    claim = Claim(replica="r", pool="p", partition=3)
    assert decode_claim(encode_claim(claim)) == claim
