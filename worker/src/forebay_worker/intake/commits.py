"""Commits of one consumer: due offsets, and the broker's answer for each partition. The consumer's thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import structlog
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from forebay_schemas.clock import Clock
from forebay_schemas.kafka.permissions import is_denied
from forebay_worker.intake.protocols import KafkaConsumer
from forebay_worker.partition.assignment import Assignment

COMMIT_SECONDS = 0.2
ANSWER_SECONDS_MAX = 10.0
"""A commit without an answer for this long is given up and sent again."""

LAST_COMMIT_SECONDS_MAX = 0.5
LAST_COMMIT_PAUSE_SECONDS = 0.05
_REBALANCING = frozenset({KafkaError.ILLEGAL_GENERATION, KafkaError.REBALANCE_IN_PROGRESS})
_NO_MEMBER = frozenset({KafkaError.UNKNOWN_MEMBER_ID, KafkaError.FENCED_MEMBER_EPOCH})

log = structlog.get_logger("forebay.commits")

PartitionKey = tuple[str, int]
_Commit = tuple[int, str]


@dataclass(frozen=True, slots=True)
class _Sent:
    """A partition's part of the commit in flight. ``says_alone``: it names a suspect that runs alone.
    ``finished_since``: when the oldest offset finished that it names."""

    assignment: Assignment
    commit: _Commit
    says_alone: bool
    finished_since: float | None


class Commits:
    """Sends one commit at a time; the answer arrives in `on_commit`. A failed commit becomes due again."""

    def __init__(
        self,
        *,
        name: str,
        assignments: dict[PartitionKey, Assignment],
        explain: Callable[[KafkaError, str], str],
    ) -> None:
        """``assignments``: the intake's own, read only. ``explain`` puts a commit error into words."""
        self._name = name
        self._explain = explain
        self.denied: str | None = None
        """The ACLs that commits lack, until one is confirmed."""
        self._assignments = assignments
        self._confirmed: dict[PartitionKey, _Commit] = {}
        self._metadata_bytes: dict[PartitionKey, int] = {}
        self._sent: dict[PartitionKey, _Sent] = {}
        self._sent_at: float | None = None
        self._next_at = 0.0
        self.confirmed_count = 0
        self.failed_count = 0

    def commit_when_due(self, consumer: KafkaConsumer, now: float, now_ms: int) -> None:
        """Commits all changes, at most five times a second unless a start waits for it. ``now_ms``: the brokers'
        time."""
        if self._sent_at is not None and now - self._sent_at < ANSWER_SECONDS_MAX:
            return
        if now < self._next_at and not any(each.claims.is_urgent for each in self._assignments.values()):
            return
        self._next_at = now + COMMIT_SECONDS
        self._put_back(self._sent)
        due: dict[PartitionKey, _Sent] = {}
        for key, assignment in self._assignments.items():
            assignment.claims.is_urgent = False  # before reading the claims: a later request is kept
            if not assignment.opened:
                continue  # its former owner's notices may be unread, and hold without this worker's commit
            commit = assignment.commit(now_ms)
            if commit is not None and self._confirmed.get(key) != commit:
                self._metadata_bytes[key] = len(commit[1])
                due[key] = _Sent(assignment, commit, assignment.says_alone, assignment.finished_since)
            assignment.finished_since = None
        self._sent = due
        if not due:
            return
        self._sent_at = now
        try:
            consumer.commit(
                offsets=[TopicPartition(*key, *sent.commit) for key, sent in due.items()], asynchronous=True
            )
        except KafkaException as error:
            self._sent_at = None
            self._failed(error.args[0], None)

    def commit_last(
        self, consumer: KafkaConsumer, clock: Clock, last: dict[PartitionKey, _Commit]
    ) -> dict[PartitionKey, _Commit] | None:
        """Commits before partitions are released, and waits for the answer. Returns the refused partitions, or None if
        this worker is no longer a member of the group, so that another one owns them.

        During a rebalance the broker refuses commits from a member without the new generation. The client receives the
        generation in the background, so the commit is retried for a moment.
        """
        end = clock.monotonic() + LAST_COMMIT_SECONDS_MAX
        while True:
            failed = self._commit_now(consumer, last)
            if any(error.code() in _NO_MEMBER for error in failed.values()):
                return None
            last = {key: commit for key, commit in last.items() if key in failed}
            passing = bool(failed) and all(error.code() in _REBALANCING for error in failed.values())
            if not passing or clock.monotonic() >= end:
                return last
            clock.sleep(LAST_COMMIT_PAUSE_SECONDS)

    def _commit_now(
        self, consumer: KafkaConsumer, commits: dict[PartitionKey, _Commit]
    ) -> dict[PartitionKey, KafkaError]:
        """Commits and waits. Returns the partitions that failed, each with its error."""
        try:
            answered = consumer.commit(
                offsets=[TopicPartition(*key, *commit) for key, commit in commits.items()], asynchronous=False
            )
        except KafkaException as error:
            self._failed(error.args[0], None)
            return dict.fromkeys(commits, error.args[0])
        failed = {}
        for partition in answered or ():
            key = (partition.topic, partition.partition)
            if partition.error is not None:
                self._failed(partition.error, key)
                failed[key] = partition.error
            else:
                self.confirmed_count += 1
        return failed

    def on_commit(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        """The client's commit callback, called inside poll. Never raises."""
        self._sent_at = None
        sent, self._sent = self._sent, {}
        if error is not None and error.code() != KafkaError._NO_OFFSET:
            self._failed(error, None)
        for partition in partitions or ():
            key = (partition.topic, partition.partition)
            if partition.error is not None:
                self._failed(partition.error, key)
            elif error is None and self._answers(partition, sent.get(key)):
                answered = sent.pop(key)
                self._confirmed[key] = answered.commit
                answered.assignment.acknowledge(answered.commit, says_alone=answered.says_alone)
                self.confirmed_count += 1
                self.denied = None
        self._put_back(sent)

    def lag_seconds(self, now: float) -> float:
        """Age of the oldest finished offset that no confirmed commit names; 0 if there is none.

        ``now``: monotonic seconds. From any thread.
        """
        waiting = [assignment.finished_since for assignment in self._assignments.copy().values()]
        waiting += [sent.finished_since for sent in self._sent.copy().values()]
        return max(0.0, now - min((since for since in waiting if since is not None), default=now))

    def metadata_bytes(self, key: PartitionKey) -> int:
        """Size of the metadata in the partition's latest commit."""
        return self._metadata_bytes.get(key, 0)

    def forget(self, key: PartitionKey) -> None:
        """Forgets a released partition."""
        self._confirmed.pop(key, None)
        self._metadata_bytes.pop(key, None)

    def _put_back(self, unconfirmed: dict[PartitionKey, _Sent]) -> None:
        """Marks offsets as waiting again, from when they finished. The commit may have succeeded all the same, so an
        earlier confirmation may no longer be the group's last commit."""
        for key, sent in unconfirmed.items():
            self._confirmed.pop(key, None)
            if sent.finished_since is not None:
                sent.assignment.finished_since = sent.finished_since

    def _answers(self, partition: TopicPartition, sent: _Sent | None) -> bool:
        """Whether an answer belongs to the latest commit. The answer to a commit that was given up may arrive late, or
        after the partition was released and assigned again."""
        if sent is None or self._assignments.get((partition.topic, partition.partition)) is not sent.assignment:
            return False
        return sent.commit == (partition.offset, partition.metadata or "")

    def _failed(self, error: KafkaError, key: PartitionKey | None) -> None:
        self.failed_count += 1
        topic = key[0] if key is not None else next((topic for topic, _ in self._assignments), "")
        why = self._explain(error, topic)
        if is_denied(error):
            self.denied = why
        # Expected during a rebalance.
        say = log.debug if error.code() in _REBALANCING else log.warning
        say("commit failed; retrying", intake=self._name, partition=key, error=why)
