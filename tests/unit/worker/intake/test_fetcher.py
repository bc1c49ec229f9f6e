"""Records fetched out of turn: one of each partition a round, in the order in which they were asked for."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

from confluent_kafka import TopicPartition

from forebay_worker.intake.fetcher import Fetched, Fetcher
from simulated.ports import ManualClock, MemoryRecord
from simulated.works import make_assignment


class AnyRecord:
    """A consumer of a topic that has a record at each offset."""

    def __init__(self) -> None:
        self._next: deque[MemoryRecord] = deque()

    def assign(self, partitions: list[TopicPartition]) -> None:
        self._next.extend(
            MemoryRecord(topic_name=each.topic, partition_number=each.partition, offset_number=each.offset)
            for each in partitions
        )

    def unassign(self) -> None:
        self._next.clear()

    def poll(self, timeout: float) -> Any:
        assert timeout > 0
        return self._next.popleft() if self._next else None

    def get_watermark_offsets(self, partition: TopicPartition, timeout: float) -> tuple[int, int]:
        assert timeout > 0
        return 0, partition.partition

    def close(self) -> None:
        self._next.clear()


def test_each_round_takes_one_of_each_partition_in_the_order_in_which_they_were_asked_for() -> None:
    fetcher = Fetcher(make_consumer=AnyRecord, clock=ManualClock())
    first, second = make_assignment(partition=0), make_assignment(partition=1)
    answers: deque[Fetched] = deque()
    for assignment, offset in ((first, 5), (first, 3), (second, 9)):
        fetcher.fetch(assignment, offset, answers)
    fetcher.step()
    assert [(each.assignment.partition, each.offset) for each in answers] == [(0, 5), (1, 9)]
    fetcher.step()
    assert [(each.assignment.partition, each.offset) for each in answers] == [(0, 5), (1, 9), (0, 3)]
    assert all(each.record is not None for each in answers)


def test_a_round_costs_the_same_however_many_are_asked_for() -> None:
    def cpu_seconds_a_round(wanted: int) -> float:
        fetcher = Fetcher(make_consumer=AnyRecord, clock=ManualClock())
        assignment = make_assignment(partition=0)
        answers: deque[Fetched] = deque()
        for offset in range(wanted):
            fetcher.fetch(assignment, offset, answers)
        fetcher.step()
        began = time.thread_time()
        for _ in range(200):
            fetcher.step()
        assert len(answers) == 201
        return (time.thread_time() - began) / 200

    assert cpu_seconds_a_round(20_000) < 8 * cpu_seconds_a_round(300)
