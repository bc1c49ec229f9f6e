"""Looks through the results topic: everything that was there when it was asked for, in bounded time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, KafkaError, KafkaException, TopicPartition

from forebay_schemas.contract.reasons import Reason
from forebay_schemas.contract.results import Result, encode_result
from forebay_worker.intake import results_reader
from forebay_worker.intake.results_reader import (
    KEPT_SECONDS,
    NO_PROGRESS_SECONDS_MAX,
    POLL_SECONDS,
    ResultsLook,
    ResultsReader,
)
from forebay_worker.intake.settled import SeenOutcomes
from simulated.ports import NOW_MS, ManualClock, MemoryRecord, PartitionAnswer
from simulated.works import POOL

BROKEN = KafkaError(KafkaError._TRANSPORT)


@dataclass(slots=True)
class Listed:
    partitions: dict[int, None]
    error: KafkaError | None = None
    topics: dict[str, Any] = field(default_factory=dict)


class MemoryResults:
    """The results topic, read as the client reads it. ``ends``: where a partition ends, if behind its last record."""

    def __init__(self, clock: ManualClock, partitions: int = 2) -> None:
        self.logs: list[list[MemoryRecord]] = [[] for _ in range(partitions)]
        self.ends: dict[int, int] = {}
        self.firsts: dict[int, int] = {}
        self.fails: list[Exception] = []
        self.is_silent = False
        self.questions = 0
        self.read: list[int] = []
        self.during_lookup: list[Any] = []
        self._clock = clock
        self._positions: dict[int, int] = {}
        self._fetched: list[Any] = []

    def put(self, partition: int, request_id: str, *, at_ms: int, replay_count: int = 0, value: bytes = b"") -> None:
        result = Result(
            request_id=request_id,
            status=Reason.COMPLETED.status,
            reason=Reason.COMPLETED.code,
            replay_count=replay_count,
            finished_at=at_ms,
        )
        log = self.logs[partition]
        offset = max(self.ends.get(partition, 0), len(log) and log[-1].offset() + 1)
        log.append(
            MemoryRecord(
                topic_name=POOL.results,
                partition_number=partition,
                offset_number=offset,
                key_bytes=request_id.encode(),
                value_bytes=value or encode_result(result),
                timestamp_ms=at_ms,
            )
        )

    def list_topics(self, topic: str, timeout: float) -> Listed:
        assert timeout > 0
        if self.fails:
            raise self.fails.pop()
        one = Listed(dict.fromkeys(range(len(self.logs))))
        one.topics[topic] = one
        return one

    def end_of(self, partition: int) -> int:
        log = self.logs[partition]
        return max(log[-1].offset() + 1 if log else 0, self.ends.get(partition, 0))

    def offsets_for_times(self, partitions: list[TopicPartition], timeout: float) -> list[Any]:
        """By one question to each leader, for as many partitions as there are."""
        assert timeout > 0
        self.questions += 1
        found = []
        for each in partitions:
            if each.offset == OFFSET_BEGINNING:
                offset = self.firsts.get(each.partition, 0)
            elif each.offset == OFFSET_END:
                offset = self.end_of(each.partition)
            else:
                while self.during_lookup:
                    self.during_lookup.pop()()
                young = [record.offset() for record in self.logs[each.partition] if record.timestamp_ms >= each.offset]
                offset = young[0] if young else -1
            found.append(PartitionAnswer(each.topic, each.partition, offset))
        return found

    def assign(self, partitions: list[TopicPartition]) -> None:
        self._positions = {each.partition: each.offset for each in partitions}

    def unassign(self) -> None:
        self._positions = {}

    def poll(self, timeout: float) -> Any:
        if self.is_silent:
            self._clock.advance(timeout)
            return None
        self._fetched = self._fetch(results_reader.CONSUME_RECORDS_MAX)
        return self._fetched.pop(0)

    def consume(self, num_messages: int, timeout: float) -> list[Any]:
        assert timeout == 0, "consume with a timeout waits for all of it"
        assert len(self._fetched) <= num_messages or num_messages < 10
        return self._fetched

    def _fetch(self, num_messages: int) -> list[Any]:
        found: list[MemoryRecord] = []
        for partition, position in self._positions.items():
            records = [record for record in self.logs[partition] if record.offset() >= position][:num_messages]
            self.read += [record.offset() for record in records]
            end = self.end_of(partition)
            found += records
            if len(records) == num_messages:
                self._positions[partition] = records[-1].offset() + 1
                continue
            found.append(
                MemoryRecord(
                    topic_name=POOL.results,
                    partition_number=partition,
                    offset_number=end,
                    failure=KafkaError(KafkaError._PARTITION_EOF),
                )
            )
        return found

    def close(self) -> None:
        """Nothing is open."""


class LookDesk:
    def __init__(self, partitions: int = 2) -> None:
        self.clock = ManualClock()
        self.topic = MemoryResults(self.clock, partitions)
        self.made = 0
        self.topic_id = 1
        self.reader = ResultsReader(
            make_consumer=self._make, topic=POOL.results, topic_id=lambda: self.topic_id, clock=self.clock
        )

    def _make(self) -> MemoryResults:
        self.made += 1
        return self.topic

    def look(self, since_ms: int = NOW_MS, *, steps: int = 1) -> ResultsLook:
        look = self.reader.look(since_ms)
        for _ in range(steps):
            self.reader.step()
        return look


def test_a_look_sees_every_outcome_since_its_time_in_all_partitions() -> None:
    desk = LookDesk()
    desk.topic.put(0, "old", at_ms=NOW_MS - 1)
    desk.topic.put(0, "a", at_ms=NOW_MS)
    desk.topic.put(1, "b", at_ms=NOW_MS + 5, replay_count=2)
    desk.topic.put(1, "?", at_ms=NOW_MS + 6, value=b"no result")
    look = desk.look()
    assert look.is_over
    assert look.is_complete
    assert (look.has("a", 0), look.has("b", 2), look.has("b", 0), look.has("old", 0)) == (True, True, False, False)
    assert (desk.reader.completed_count, desk.reader.given_up_count) == (1, 0)


def test_all_partitions_are_asked_about_at_once() -> None:
    desk = LookDesk(partitions=12)
    desk.topic.put(11, "a", at_ms=NOW_MS)
    assert desk.look().has("a", 0)
    assert desk.topic.questions == 3, "where they begin and end, and where the time lies"
    assert desk.look().is_complete
    assert desk.topic.questions == 5, "the time is known"


def test_nothing_is_asked_of_the_brokers_before_somebody_looks() -> None:
    desk = LookDesk()
    desk.reader._was_asked.set()
    desk.reader.step()
    assert desk.made == 0


def test_what_no_consumer_sees_at_the_end_of_a_partition_holds_nothing_up() -> None:
    """A transaction's marker is the last thing in the log."""
    desk = LookDesk()
    desk.topic.put(0, "a", at_ms=NOW_MS)
    desk.topic.ends = {0: 2, 1: 7}
    look = desk.look()
    assert look.is_over
    assert look.is_complete
    assert look.has("a", 0)


def test_retention_may_have_passed_the_time() -> None:
    desk = LookDesk()
    for number in range(3):
        desk.topic.put(0, f"r-{number}", at_ms=NOW_MS)
    desk.topic.firsts = {0: 1}
    assert desk.look().is_complete
    assert desk.topic.read == [1, 2]


def test_looks_that_are_asked_for_together_are_one_and_a_later_one_only_reads_on() -> None:
    desk = LookDesk()
    desk.topic.put(0, "a", at_ms=NOW_MS)
    first = desk.reader.look(NOW_MS + 1_000)
    second = desk.look(NOW_MS)
    assert first.is_over
    assert second.has("a", 0)
    desk.topic.put(0, "b", at_ms=NOW_MS + 10)
    third = desk.look(NOW_MS + 5)
    assert third.has("b", 0)
    assert desk.topic.read == [0, 1]
    earlier = desk.look(NOW_MS - 1_000)
    assert earlier.has("a", 0)
    assert desk.topic.read == [0, 1, 0, 1], "from an earlier time it is read again"


@pytest.mark.parametrize("outcomes", [1, 2, 5])
def test_of_a_topic_made_anew_all_is_read_however_long_it_is(outcomes: int) -> None:
    """Shorter than the old one, as long, and longer."""
    desk = LookDesk(partitions=1)
    for number in range(2):
        desk.topic.put(0, f"old-{number}", at_ms=NOW_MS)
    assert desk.look().has("old-1", 0)
    desk.topic.logs[0].clear()
    for number in range(outcomes):
        desk.topic.put(0, f"new-{number}", at_ms=NOW_MS + 1)
    desk.topic_id = 2
    look = desk.look()
    assert look.is_complete
    assert [look.has(f"new-{number}", 0) for number in range(outcomes)] == [True] * outcomes


def test_what_is_written_while_the_ends_are_looked_up_is_not_missed_by_the_next_look() -> None:
    desk = LookDesk()
    desk.topic.during_lookup.append(lambda: desk.topic.put(0, "between", at_ms=NOW_MS + 1))
    desk.look()
    assert desk.look().has("between", 0)


def test_a_partition_that_the_topic_got_meanwhile_is_looked_through_too() -> None:
    desk = LookDesk(partitions=1)
    desk.look()
    desk.topic.logs.append([])
    desk.topic.put(1, "a", at_ms=NOW_MS)
    assert desk.look().has("a", 0)


def test_what_fails_is_tried_again() -> None:
    desk = LookDesk()
    desk.topic.put(0, "a", at_ms=NOW_MS)
    desk.topic.fails = [KafkaException(BROKEN)] * 3
    look = desk.look(steps=3)
    over = [look.is_over]
    desk.reader.step()
    assert [*over, look.is_over] == [False, True]
    assert look.has("a", 0)
    assert look.is_complete


@pytest.mark.parametrize("how", ["silent", "failing"])
def test_a_topic_that_cannot_be_read_holds_requests_up_for_ten_seconds_and_no_longer(how: str) -> None:
    desk = LookDesk()
    desk.topic.put(0, "a", at_ms=NOW_MS)
    desk.topic.is_silent = how == "silent"
    desk.topic.fails += [KafkaException(BROKEN)] * 1_000 * (how == "failing")
    began = desk.clock.monotonic()
    look = desk.look()
    while not look.is_over:
        desk.reader.step()
        assert desk.clock.monotonic() - began < NO_PROGRESS_SECONDS_MAX + 1.0
    assert desk.clock.monotonic() - began >= NO_PROGRESS_SECONDS_MAX
    assert not look.is_complete
    assert not look.has("a", 0)
    assert (desk.reader.completed_count, desk.reader.given_up_count) == (0, 1)
    assert desk.reader.look_seconds >= NO_PROGRESS_SECONDS_MAX
    desk.topic.is_silent, desk.topic.fails = False, []
    assert desk.look().has("a", 0), "the next one may be luckier"


def test_more_outcomes_than_memory_is_given_for_end_a_look_that_is_not_complete(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(SeenOutcomes, "is_full", property(lambda seen: seen.count >= 3))
    monkeypatch.setattr(results_reader, "CONSUME_RECORDS_MAX", 2)
    desk = LookDesk(partitions=1)
    for number in range(9):
        desk.topic.put(0, f"r-{number}", at_ms=NOW_MS)
    look = desk.look()
    assert look.is_over
    assert not look.is_complete
    assert look.has("r-0", 0)


def test_what_was_seen_is_kept_for_a_minute_only() -> None:
    desk = LookDesk()
    desk.topic.put(0, "a", at_ms=NOW_MS)
    desk.look()
    desk.clock.advance(KEPT_SECONDS + POLL_SECONDS)
    desk.reader._was_asked.set()
    desk.reader.step()
    assert desk.reader._reading is None
