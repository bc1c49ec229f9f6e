"""Times for which partitions stand still and finished offsets wait for their commit, and a GPU that does nothing."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from forebay_schemas.contract.tiers import Tier
from forebay_worker.intake.commits import ANSWER_SECONDS_MAX, Commits
from forebay_worker.intake.stalls import Stalls
from forebay_worker.partition.assignment import Assignment
from forebay_worker.signals.gpu_watch import SICK_SECONDS, GpuWatch
from forebay_worker.signals.readings import GpuReading
from simulated.ports import NOW_MS, plain
from simulated.works import make_assignment

KEY = ("requests", 0)


class SlowConsumer:
    """Takes commits; they are answered when the test says so."""

    def __init__(self) -> None:
        self.sent: list[TopicPartition] = []
        self.refuses = False

    def commit(self, *, offsets: list[TopicPartition], asynchronous: bool) -> None:
        assert asynchronous
        if self.refuses:
            raise KafkaException(KafkaError(KafkaError._STATE))
        self.sent = offsets


class CommitDesk:
    """One partition, its commits, and how far it has come."""

    def __init__(self) -> None:
        self.assignment: Assignment = make_assignment(Tier.HIGH)
        self.assignments = {KEY: self.assignment}
        self.commits = Commits(name="high", assignments=self.assignments, explain=plain)
        self.consumer = SlowConsumer()
        self.progress = Stalls()

    def receive(self, *offsets: int) -> None:
        for offset in offsets:
            self.assignment.receive(offset)

    def finish(self, offset: int, *, now: float) -> None:
        self.assignment.done.append(offset)
        self.assignment.drain_done(now)

    def commit(self, now: float) -> None:
        self.commits.commit_when_due(self.consumer, now, NOW_MS)  # type: ignore[arg-type]

    def answer(self, error: KafkaError | None = None) -> None:
        partitions = [TopicPartition(*KEY, each.offset, each.metadata) for each in self.consumer.sent]
        self.commits.on_commit(error, partitions)

    def age(self, now: float) -> float:
        self.progress.look(self.assignments, now)
        return self.progress.watermark_age_seconds(now)


def test_a_partition_stands_still_while_its_lowest_unfinished_offset_is_the_same() -> None:
    desk = CommitDesk()
    assert desk.age(5.0) == 0
    desk.receive(0, 1, 2)
    assert desk.age(10.0) == 0
    desk.finish(1, now=11.0)
    assert desk.age(14.0) == 4.0
    assert desk.progress.watermark_age_seconds(16.0) == 6.0
    desk.finish(0, now=16.0)
    assert desk.age(17.0) == 0
    assert desk.age(20.0) == 3.0
    desk.finish(2, now=20.0)
    assert desk.age(30.0) == 0
    desk.receive(3)
    assert desk.age(40.0) == 0


def test_the_partition_that_stands_longest_counts_and_one_that_came_back_begins_anew() -> None:
    desk = CommitDesk()
    desk.receive(0)
    desk.age(0.0)
    other = make_assignment(Tier.HIGH)
    other.receive(0)
    desk.assignments["requests", 1] = other
    assert desk.age(8.0) == 8.0
    del desk.assignments[KEY]
    assert desk.age(9.0) == 1.0
    desk.assignments[KEY] = make_assignment(Tier.HIGH)
    desk.assignments[KEY].receive(0)
    del desk.assignments["requests", 1]
    assert desk.age(10.0) == 0


def test_commit_lag_is_the_age_of_what_finished_and_no_confirmed_commit_tells_of() -> None:
    desk = CommitDesk()
    desk.receive(0, 1, 2)
    assert desk.commits.lag_seconds(1.0) == 0
    desk.finish(1, now=1.0)
    assert desk.commits.lag_seconds(1.5) == 0.5
    desk.commit(2.0)
    assert desk.commits.lag_seconds(3.0) == 2.0
    desk.finish(0, now=3.0)
    desk.answer()
    assert desk.commits.lag_seconds(4.0) == 1.0, "what finished after it was sent waits on"
    desk.commit(4.0)
    desk.answer()
    assert desk.commits.lag_seconds(9.0) == 0


@pytest.mark.parametrize("how", ["refused", "failed at once", "never answered"])
def test_what_was_not_committed_after_all_has_waited_since_it_finished(how: str) -> None:
    desk = CommitDesk()
    desk.receive(0)
    desk.finish(0, now=1.0)
    desk.consumer.refuses = how == "failed at once"
    desk.commit(2.0)
    if how == "refused":
        desk.answer(KafkaError(KafkaError.REBALANCE_IN_PROGRESS))
    assert desk.commits.lag_seconds(5.0) == 4.0
    desk.consumer.refuses = False
    later = 2.0 + ANSWER_SECONDS_MAX
    desk.commit(later)
    assert desk.commits.lag_seconds(later) == later - 1.0
    desk.answer()
    assert desk.commits.lag_seconds(later + 5) == 0


def gpu(utilisation: float | None) -> GpuReading:
    return GpuReading(at=0.0, utilisation=utilisation)


@pytest.mark.parametrize(
    ("in_flight", "readings", "is_sick"),
    [
        (4, [gpu(0.0)] * 6, True),
        (4, [gpu(0.0)] * 5, False),
        (0, [gpu(0.0)] * 9, False),
        (4, [gpu(0.01)] * 9, False),
        (4, [None] * 9, False),
        (4, [gpu(None)] * 9, False),
        (4, [*[gpu(0.0)] * 5, gpu(0.3), *[gpu(0.0)] * 5], False),
        (4, [*[gpu(0.0)] * 5, None, *[gpu(0.0)] * 6], True),
    ],
)
def test_a_gpu_is_sick_that_does_nothing_for_five_seconds_with_requests_in_flight(
    in_flight: int, readings: list[GpuReading | None], is_sick: bool
) -> None:
    assert SICK_SECONDS == 5.0
    watch = GpuWatch()
    for second, reading in enumerate(readings):
        watch.step(float(second), in_flight=in_flight, gpu=reading)
    assert watch.is_sick(len(readings) - 1.0) == is_sick
