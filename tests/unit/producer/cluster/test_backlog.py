"""The backlog's figures, and what counts as drift of a topic."""

from __future__ import annotations

import pytest
from confluent_kafka import TopicPartition

from forebay_producer.client.results_reader import FirstOutcomes
from forebay_producer.cluster.backlog import PartitionState, Sample, TierBacklog, backlog_of, partition_state
from forebay_producer.cluster.offsets_reader import Head
from forebay_schemas.contract.offsets_metadata import CommitMetadata, encode_metadata
from forebay_schemas.contract.tiers import TIERS, Tier
from forebay_schemas.contract.topics import TopicSpec
from forebay_schemas.kafka.topic_drift import Drift, drift_of


def state(first: int, end: int, committed: int | None = None, beyond: int = 0) -> PartitionState:
    return PartitionState(first=first, end=end, committed=committed, finished_beyond=beyond)


def sample(at_seconds: float, *high: PartitionState) -> Sample:
    return Sample(at_seconds=at_seconds, tiers={tier: high if tier is Tier.HIGH else () for tier in TIERS})


@pytest.mark.parametrize(
    ("partition", "waiting", "head"),
    [
        (state(0, 0), 0, 0),
        (state(0, 10), 10, 0),
        (state(4, 10), 6, 4),
        (state(0, 10, committed=7), 3, 7),
        (state(0, 10, committed=7, beyond=2), 1, 7),
        (state(8, 10, committed=7), 2, 8),
        (state(0, 10, committed=10), 0, 10),
        # Taken a moment apart, the figures may contradict each other.
        (state(0, 10, committed=9, beyond=3), 0, 9),
    ],
)
def test_what_waits_is_neither_committed_nor_finished_beyond_that(
    partition: PartitionState, waiting: int, head: int
) -> None:
    assert (partition.waiting, partition.head) == (waiting, head)


@pytest.mark.parametrize(
    ("partition", "head", "waiting"),
    [
        # Up to the end there is no record.
        (state(0, 8, committed=5), Head(offset=8, written_ms=None), 0),
        (state(0, 8), Head(offset=8, written_ms=None), 0),
        # The end may have moved on since, or the next record come.
        (state(0, 8, committed=5), Head(offset=9, written_ms=1), 0),
        (state(0, 9, committed=5), Head(offset=8, written_ms=None), 1),
        (state(0, 9, committed=5), Head(offset=7, written_ms=1), 2),
        (state(0, 9, committed=5), Head(offset=5, written_ms=1), 4),
        (state(0, 9, committed=5, beyond=2), Head(offset=5, written_ms=1), 2),
    ],
)
def test_offsets_without_a_record_do_not_wait(partition: PartitionState, head: Head, waiting: int) -> None:
    assert partition.seen(head).waiting == waiting


def test_what_a_commit_says_of_deleted_records_does_not_count() -> None:
    """Finished 5 to 14, running 3 and 20; what lies below 10 has been deleted since."""
    metadata = CommitMetadata(finished=((5, 10),), running=((3, 0), (20, 0)))
    partition = partition_state(10, 30, TopicPartition("t", 0, 3, encode_metadata(3, metadata)))
    assert (partition.head, partition.waiting, partition.running) == (10, 15, 1)


def test_rates_are_counted_over_all_partitions_of_the_tier() -> None:
    before = sample(100.0, state(0, 10, committed=4), state(0, 10))
    after = sample(102.0, state(0, 20, committed=8, beyond=2), state(0, 14, committed=4))
    figures = backlog_of(Tier.HIGH, before=before, after=after, oldest_age_seconds=3.0)
    assert figures == TierBacklog(waiting=20, oldest_age_seconds=3.0, in_per_second=7.0, out_per_second=5.0)


def test_an_empty_tier_has_no_oldest_request() -> None:
    empty = sample(1.0, state(5, 5, committed=5))
    figures = backlog_of(Tier.HIGH, before=empty, after=empty, oldest_age_seconds=9.0)
    assert figures == TierBacklog(waiting=0, oldest_age_seconds=None, in_per_second=0.0, out_per_second=0.0)


def test_the_first_outcome_of_a_request_counts_and_memory_is_bounded() -> None:
    firsts = FirstOutcomes(ids_max=3)
    assert [firsts.is_first(one, 0) for one in "abacb"] == [True, True, False, True, False]
    assert firsts.is_first("d", 0)
    assert firsts.is_first("a", 0)
    assert not firsts.is_first("d", 0)
    assert firsts.is_first("d", 1)


def test_drift_names_each_setting_that_differs() -> None:
    spec = TopicSpec(name="t", partitions=3, replication=1, config={"retention.ms": "5", "segment.ms": "7"})
    assert drift_of(spec, partitions=3, replication=1, settings={"retention.ms": "5", "segment.ms": "7"}) == ()
    drift = drift_of(spec, partitions=2, replication=1, settings={"retention.ms": "6"})
    assert drift == (
        Drift(setting="partitions", actual="2", wanted="3"),
        Drift(setting="retention.ms", actual="6", wanted="5"),
        Drift(setting="segment.ms", actual="not known", wanted="7"),
    )
    assert str(drift[1]) == "retention.ms is 6, should be 5"
