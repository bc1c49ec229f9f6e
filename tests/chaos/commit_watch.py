"""Looks at what the pool's groups have committed, all the time. One thread of its own; talks to the brokers."""

from __future__ import annotations

import logging

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]  # not in its __all__

from chaos.facts import PartitionKey, SeenCommit
from chaos.workers import now_ms
from forebay_sandbox.kafka.access import KafkaAccess
from forebay_schemas.contract.offsets_metadata import decode_metadata
from forebay_schemas.contract.tiers import TIERS
from forebay_schemas.contract.topics import Pool
from harness.background import Background

_LOOK_SECONDS = 0.4
_ANSWER_SECONDS_MAX = 3.0
_LOG = logging.getLogger("tests.kafka")


class CommitLog(Background):
    """``seen``: every commit that differs from the one before. ``steps_back``: those that were lower."""

    def __init__(self, kafka: KafkaAccess, pool: Pool) -> None:
        super().__init__("commit-watch")
        self.seen: dict[PartitionKey, list[SeenCommit]] = {}
        self.steps_back: list[str] = []
        self.damaged: list[str] = []
        self._kafka = kafka
        self._admin = kafka.admin()
        topics = {pool.group(tier): [pool.requests(tier)] for tier in TIERS} | {pool.retry_group: pool.retries}
        known = self._admin.list_topics(timeout=30).topics
        config = {**kafka.connection.properties, "bootstrap.servers": kafka.bootstrap_servers, "logger": _LOG}
        self._groups = [
            (
                Consumer({**config, "group.id": group}),
                [TopicPartition(topic, number) for topic in of_group for number in known[topic].partitions],
            )
            for group, of_group in topics.items()
        ]

    def _close(self) -> None:
        for consumer, _ in self._groups:
            consumer.close()

    def unfinished(self) -> dict[PartitionKey, int] | None:
        """Number of records of each partition beyond its last seen commit; empty: all is committed.

        None: the brokers do not answer just now.
        """
        partitions = [partition for _, of_group in self._groups for partition in of_group]
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        ends = self._admin.list_offsets(dict.fromkeys(partitions, latest), request_timeout=_ANSWER_SECONDS_MAX)
        left = {}
        for each, future in ends.items():
            key = (each.topic, each.partition)
            seen = self.seen.get(key)
            try:
                end = future.result(_ANSWER_SECONDS_MAX).offset
            except (KafkaException, TimeoutError):
                # Leaders have moved, and this client goes on asking with the epoch it knew (FENCED_LEADER_EPOCH, seen).
                self._admin = self._kafka.admin()
                return None
            behind = end - (seen[-1].offset if seen else 0)
            if behind > 0:
                left[key] = behind
        return left

    def _work(self) -> None:
        while not self._stop.wait(_LOOK_SECONDS):
            for consumer, partitions in self._groups:
                at_ms = now_ms()
                try:
                    answered = consumer.committed(partitions, timeout=_ANSWER_SECONDS_MAX)
                except KafkaException:
                    continue  # the coordinator is away for a moment
                for each in answered:
                    if each.error is None and each.offset >= 0:
                        self._note(each, at_ms)

    def _note(self, committed: TopicPartition, at_ms: int) -> None:
        key = (committed.topic, committed.partition)
        metadata = decode_metadata(committed.offset, committed.metadata)
        if metadata is None:
            self.damaged.append(f"{key}: {committed.metadata!r} beside {committed.offset}")
            return
        seen = self.seen.setdefault(key, [])
        commit = SeenCommit(at_ms=at_ms, offset=committed.offset, finished=metadata.finished)
        if seen and commit.offset < seen[-1].offset:
            self.steps_back.append(f"{key}: {seen[-1].offset} -> {commit.offset}")
        if not seen or (seen[-1].offset, seen[-1].finished) != (commit.offset, commit.finished):
            seen.append(commit)
