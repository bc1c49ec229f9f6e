"""A pool's topics: names, settings, and sizes that let what was accepted fit further on. Pure."""

from __future__ import annotations

import pytest

from forebay_schemas.contract.headers import HEADERS_BYTES_MAX
from forebay_schemas.contract.tiers import TIERS, TTL_MS_MAX, Tier
from forebay_schemas.contract.topics import LATER_BYTES_MAX, REQUEST_BYTES_MAX, Pool, TopicSpec
from forebay_schemas.errors import ExitCode, UsageError

DAY_MS = 86_400_000
# A record's own frame in a batch, and the batch's header: at most this much (KIP-98's format, generously).
FRAME_BYTES_MAX = 512


def specs(*, partitions: int = 8, replication: int = 3) -> dict[str, TopicSpec]:
    return {spec.name: spec for spec in Pool("p").specs(partitions=partitions, replication=replication)}


def test_a_pool_has_these_topics_and_no_other() -> None:
    tiers = ("high", "mid", "low")
    assert set(specs()) == {
        *(f"forebay.p.requests.{tier}" for tier in tiers),
        *(f"forebay.p.retry.{tier}.{delay}" for tier in tiers for delay in ("1s", "5s", "30s")),
        *(f"forebay.p.{name}" for name in ("dead-letter", "results", "streams", "control", "coordination", "audit")),
    }


def test_every_name_the_pool_gives_is_one_of_its_topics() -> None:
    pool = Pool("p")
    named = {pool.dead_letter, pool.results, pool.streams, pool.control, pool.coordination, pool.audit, *pool.retries}
    assert named | {pool.requests(tier) for tier in TIERS} == set(specs())
    assert [pool.group(tier) for tier in TIERS] == ["forebay.p.high", "forebay.p.mid", "forebay.p.low"]


@pytest.mark.parametrize("name", ["a", "default", "Qwen2-5_72b", "0", "x" * 100])
def test_a_pool_name_that_is_one(name: str) -> None:
    assert Pool(name).requests(Tier.HIGH) == f"forebay.{name}.requests.high"
    # Kafka's own limit.
    assert max(len(spec.name) for spec in Pool(name).specs(partitions=1, replication=1)) <= 249


@pytest.mark.parametrize("name", ["", "a.b", "a b", "ü", "a/b", "a\n", "x" * 101, "..", "x" * 10_000])
def test_a_pool_name_that_is_none_is_refused_with_what_may_be_in_one(name: str) -> None:
    with pytest.raises(UsageError, match=r"^pool: .* is no pool name; use 1 to 100 letters") as caught:
        Pool(name)
    assert caught.value.exit_code is ExitCode.USAGE
    assert len(str(caught.value)) < 250


def test_what_was_accepted_fits_further_on() -> None:
    for name, spec in specs().items():
        is_request = ".requests." in name
        assert spec.config["max.message.bytes"] == str(REQUEST_BYTES_MAX if is_request else LATER_BYTES_MAX)
        # Else a batch of a client counts by its size on the wire, and what it unpacks to is not known.
        is_of_clients = is_request or name.endswith(".control")
        assert spec.config.get("compression.type") == ("uncompressed" if is_of_clients else None)
    assert LATER_BYTES_MAX - REQUEST_BYTES_MAX >= HEADERS_BYTES_MAX + FRAME_BYTES_MAX


def test_a_request_is_kept_longer_than_its_deadline_can_be() -> None:
    for name, spec in specs().items():
        if ".requests." in name or ".retry." in name or name.endswith(".control"):
            assert int(spec.config["retention.ms"]) >= TTL_MS_MAX + DAY_MS


def test_request_retry_results_streams_coordination_and_control_topics_have_the_brokers_time() -> None:
    for name, spec in specs().items():
        ends = (".results", ".streams", ".coordination", ".control")
        on_append = ".requests." in name or ".retry." in name or name.endswith(ends)
        assert (spec.config.get("message.timestamp.type") == "LogAppendTime") is on_append


def test_control_is_compacted_and_coordination_and_streams_forget_within_minutes() -> None:
    assert specs()["forebay.p.control"].config["cleanup.policy"] == "compact,delete"
    coordination = specs()["forebay.p.coordination"].config
    assert (coordination["retention.ms"], coordination["segment.ms"]) == ("600000", "600000")
    streams = specs()["forebay.p.streams"].config
    assert (streams["retention.ms"], streams["segment.ms"]) == ("600000", "120000")


@pytest.mark.parametrize(("replication", "in_sync"), [(1, "1"), (2, "1"), (3, "2"), (5, "2")])
def test_one_replica_may_die_where_there_are_three(replication: int, in_sync: str) -> None:
    for spec in specs(replication=replication).values():
        assert (spec.replication, spec.config["min.insync.replicas"]) == (replication, in_sync)


def test_partitions_are_those_of_a_request_topic_and_fewer_elsewhere() -> None:
    found = specs(partitions=9)
    assert found["forebay.p.requests.low"].partitions == found["forebay.p.results"].partitions == 9
    # The pieces of an answer lie in the partition of its result.
    assert found["forebay.p.streams"].partitions == 9
    assert found["forebay.p.retry.low.5s"].partitions == found["forebay.p.dead-letter"].partitions == 3
    assert found["forebay.p.control"].partitions == 1
    assert all(spec.partitions == 1 for spec in specs(partitions=1).values())


@pytest.mark.parametrize(("field", "value"), [("partitions", 0), ("partitions", 10_001), ("replication", 0)])
def test_a_number_of_partitions_or_replicas_that_cannot_be_is_refused(field: str, value: int) -> None:
    with pytest.raises(UsageError, match=rf"^{field}: is {value}; give 1 ") as caught:
        specs(**{field: value})
    assert caught.value.field == field
