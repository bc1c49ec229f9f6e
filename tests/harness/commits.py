"""A pool's committed offsets: now, and whether they ever went back. Talks to the broker from a thread of its own."""

from __future__ import annotations

from confluent_kafka import Consumer, KafkaException, TopicPartition

from forebay_schemas.contract.offsets_metadata import CommitMetadata, decode_metadata
from forebay_schemas.contract.tiers import TIERS, Tier
from harness.background import Background
from harness.live_pool import LOG, LivePool, Place

_LOOK_SECONDS = 0.1
_ANSWER_SECONDS_MAX = 10.0


class Commits:
    """Reads the groups' commits; belongs to none of them. Close it."""

    def __init__(self, pool: LivePool) -> None:
        self._topics = {tier: pool.topics.requests(tier) for tier in TIERS}
        common = {**pool.kafka.connection.properties, "bootstrap.servers": pool.kafka.bootstrap_servers, "logger": LOG}
        self._consumers = {tier: Consumer({**common, "group.id": pool.topics.group(tier)}) for tier in TIERS}
        self._partitions = {
            tier: [
                TopicPartition(topic, partition)
                for partition in pool.kafka.admin().list_topics(topic).topics[topic].partitions
            ]
            for tier, topic in self._topics.items()
        }

    def read(self, tier: Tier) -> dict[int, tuple[int, CommitMetadata]]:
        """Offset and what the metadata says, of each partition that has a commit."""
        found = {}
        for one in self._consumers[tier].committed(self._partitions[tier], timeout=_ANSWER_SECONDS_MAX):
            if one.error is not None:
                raise KafkaException(one.error)
            if one.offset >= 0:
                metadata = decode_metadata(one.offset, one.metadata)
                assert metadata is not None
                found[one.partition] = (one.offset, metadata)
        return found

    def covered(self, places: dict[str, Place]) -> set[str]:
        """The requests that the commits call finished, at or beyond the committed offset."""
        commits = {tier: self.read(tier) for tier in TIERS}
        covered = set()
        for request_id, place in places.items():
            if place.partition not in commits[place.tier]:
                continue
            offset, metadata = commits[place.tier][place.partition]
            beyond = any(first <= place.offset < first + length for first, length in metadata.finished)
            if place.offset < offset or beyond:
                covered.add(request_id)
        return covered

    def close(self) -> None:
        for consumer in self._consumers.values():
            consumer.close()


class CommitWatch(Background):
    """Looks all the time while the block runs; ``steps_back`` says each commit that was lower than one before."""

    def __init__(self, pool: LivePool) -> None:
        super().__init__("commit-watch")
        self._commits = Commits(pool)
        self._highest: dict[tuple[Tier, int], int] = {}
        self.steps_back: list[str] = []
        self.looks = 0

    def _close(self) -> None:
        self._commits.close()

    def _work(self) -> None:
        while not self._stop.wait(_LOOK_SECONDS):
            for tier in TIERS:
                try:
                    commits = self._commits.read(tier)
                except KafkaException:
                    continue  # the coordinator is away for a moment
                self.looks += 1
                for partition, (offset, _) in commits.items():
                    before = self._highest.get((tier, partition), 0)
                    if offset < before:
                        self.steps_back.append(f"{tier}-{partition}: {before} -> {offset}")
                    self._highest[tier, partition] = max(before, offset)
