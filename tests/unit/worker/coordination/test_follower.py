"""The coordination topic: what is passed on, when all that was said until a moment has been heard, and what is said."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from structlog.testing import capture_logs

from forebay_schemas.contract.control import Control, ControlAction, encode_control
from forebay_schemas.contract.coordination import (
    GONE_SECONDS,
    LEASE_SECONDS,
    Capacity,
    Notice,
    NoticeKind,
    encode_capacity,
    encode_notice,
)
from forebay_worker.coordination import follower as coordination_module
from forebay_worker.coordination.follower import (
    BATCH_RECORDS_MAX,
    LOOK_BACK_MS,
    NO_ROOM_SECONDS,
    RECOVERED_SECONDS,
    Coordination,
)
from forebay_worker.request.work import Record
from simulated.ports import ManualClock, MemoryRecord, MemoryTopics, PartitionAnswer
from simulated.works import POOL

TOPIC, CONTROL = POOL.coordination, POOL.control
Key = tuple[str, int]
RUNNING, FINISHED, RELEASED = NoticeKind.RUNNING, NoticeKind.FINISHED, NoticeKind.RELEASED
TIMED_OUT = KafkaException(KafkaError(KafkaError._TIMED_OUT))


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with capture_logs():
        yield


class MemoryTopic:
    """A topic in memory, the control topic beside it, and one follower of both, with the interface of confluent-kafka's
    Consumer."""

    def __init__(self, *, clock: ManualClock, partitions: int) -> None:
        self.logs: dict[Key, list[MemoryRecord | None]] = {(TOPIC, number): [] for number in range(partitions)}
        self.logs[CONTROL, 0] = []
        self.failing: deque[Exception] = deque()
        self.poll_failing: deque[Exception | KafkaError] = deque()
        self.partition_error: KafkaError | None = None
        self.metadata_asked = 0
        self.closed = False
        self.batch_max = 1_000
        self._clock = clock
        self._positions: dict[Key, int] | None = None

    def append(self, notice: Notice | bytes | None, *, partition: int = 0, topic: str = TOPIC) -> None:
        log = self.logs[topic, partition]
        log.append(
            MemoryRecord(
                topic_name=topic,
                partition_number=partition,
                offset_number=len(log),
                value_bytes=encode_notice(notice) if isinstance(notice, Notice) else notice,
                timestamp_ms=self._clock.wall_ms(),
            )
        )

    def assign(self, partitions: list[TopicPartition]) -> None:
        assert [(each.topic, each.partition) for each in partitions] == list(self.logs)
        assert all(each.offset >= 0 for each in partitions)
        self._positions = {(each.topic, each.partition): each.offset for each in partitions}

    def offsets_for_times(self, partitions: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        self._ask(timeout)
        found = []
        for each in partitions:
            log = self.logs[each.topic, each.partition]
            offset = next((one.offset() for one in log if one is not None and one.timestamp()[1] >= each.offset), -1)
            found.append(PartitionAnswer(each.topic, each.partition, offset, error=self.partition_error))
        return found  # type: ignore[return-value] # only confluent-kafka can set the error of its own

    def get_watermark_offsets(self, partition: TopicPartition, timeout: float) -> tuple[int, int]:
        self._ask(timeout)
        return 0, len(self.logs[partition.topic, partition.partition])

    def list_topics(self, topic: str, timeout: float) -> None:
        assert timeout > 0
        self.metadata_asked += topic == TOPIC

    def poll(self, timeout: float) -> MemoryRecord | None:
        record = self._next()
        if record is None:
            self._clock.advance(timeout)
        return record

    def _next(self) -> MemoryRecord | None:
        assert self._positions is not None, "polled before it was assigned"
        for (topic, partition), log in self.logs.items():
            position = self._positions[topic, partition]
            if position < len(log):
                self._positions[topic, partition] += 1
                failing = self.poll_failing.popleft() if self.poll_failing else None
                if isinstance(failing, Exception):
                    raise failing
                if failing is not None:
                    return MemoryRecord(topic_name=topic, partition_number=partition, failure=failing)
                if log[position] is not None:
                    return log[position]
                end = KafkaError(KafkaError._PARTITION_EOF)
                return MemoryRecord(
                    topic_name=topic, partition_number=partition, offset_number=position + 1, failure=end
                )
        return None

    def consume(self, num_messages: int, timeout: float) -> list[Record]:
        assert timeout == 0, "consume with a timeout waits for all of it"
        records: list[Record] = []
        while len(records) < min(num_messages, self.batch_max) and (record := self._next()) is not None:
            records.append(record)
        return records

    def close(self) -> None:
        self.closed = True

    def _ask(self, timeout: float) -> None:
        assert timeout > 0
        if self.failing:
            raise self.failing.popleft()


class Post:
    """A coordination over a topic in memory; ``heard`` are the notices it passed on."""

    def __init__(self, *, partitions: int = 1) -> None:
        self.clock = ManualClock()
        self.topic = MemoryTopic(clock=self.clock, partitions=partitions)
        self.topics = MemoryTopics()
        self.heard: list[Notice] = []
        self.batches: list[list[tuple[Control, int]]] = []
        self.has_room = True
        self.capacities: list[tuple[Capacity, float]] = []
        self.sent: list[tuple[Notice, Callable[[bool], None]]] = []
        self.coordination = Coordination(
            consumer=self.topic,
            topic=TOPIC,
            control_topic=CONTROL,
            partitions={TOPIC: partitions, CONTROL: 1},
            worker_id="w-1",
            clock=self.clock,
            topic_ids=self.topics,
            hear=lambda notice, _: self.heard.append(notice),
            hear_controls=self.batches.append,
            has_room=lambda: self.has_room,
            hear_capacity=lambda capacity, age_seconds: self.capacities.append((capacity, age_seconds)),
            send=lambda notice, on_delivery: self.sent.append((notice, on_delivery)),
            explain=lambda error, topic: f"{topic}: {error.name()}",
        )

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            self.coordination.step()

    @property
    def controls(self) -> list[tuple[Control, int]]:
        return [each for batch in self.batches for each in batch]

    def offsets(self) -> list[int]:
        """Those that the heard notices speak of."""
        return [offset for notice in self.heard for offset in notice.offsets]

    def has_heard_until(self, moment: float) -> bool:
        return self.coordination.heard_until >= moment


def says(kind: NoticeKind, *offsets: int) -> Notice:
    return Notice(kind=kind, worker="other", topic="t", partition=0, offsets=list(offsets))


# What is passed on


def test_every_notice_is_passed_on_once_in_order() -> None:
    post = Post()
    post.step()
    for offset in range(3):
        post.topic.append(says(FINISHED, offset))
    post.step(5)
    assert post.offsets() == [0, 1, 2]


@pytest.mark.parametrize("value", [None, b"", b"\xff", b"{}", b'{"kind": "rate", "worker": "w"}', b"[" * 10_000])
def test_what_is_no_notice_is_passed_over(value: bytes | None) -> None:
    post = Post()
    post.topic.append(value)
    post.topic.append(says(FINISHED, 1))
    post.step(4)
    assert post.offsets() == [1]


@pytest.mark.parametrize(
    ("kind", "seconds_before", "is_heard"),
    [
        (FINISHED, LEASE_SECONDS + 60, True),
        (RELEASED, LEASE_SECONDS + 60, True),
        # As old as that by this clock, which may be an hour ahead and not know it yet.
        (FINISHED, LOOK_BACK_MS / 1000 + 1, True),
        (RUNNING, LEASE_SECONDS - 1, True),
        (RUNNING, LEASE_SECONDS + 1, False),
        (NoticeKind.LAST_COMMIT, LEASE_SECONDS + 60, True),
    ],
)
def test_what_was_said_before_this_worker_began_counts_as_long_as_it_means_something(
    kind: NoticeKind, seconds_before: float, is_heard: bool
) -> None:
    post = Post()
    post.topic.append(says(kind, 7))
    post.clock.advance(seconds_before)
    post.step(3)
    assert post.offsets() == ([7] if is_heard else [])


def test_what_is_said_while_it_listens_is_passed_on_however_late_it_comes() -> None:
    """Clocks differ: that a record looks old says nothing when it has just come."""
    post = Post()
    post.step()
    post.topic.append(says(RUNNING, 7))
    post.clock.advance(LEASE_SECONDS + 60)
    post.step(2)
    assert post.offsets() == [7]


# Heard until


def test_a_moment_is_heard_only_after_the_end_that_was_asked_for_was_read() -> None:
    post = Post(partitions=2)
    post.topic.batch_max = 0
    post.step()
    moment = post.clock.monotonic()
    for offset in range(3):
        post.topic.append(says(FINISHED, offset), partition=offset % 2)
    post.coordination.listen_until(moment)
    for heard in (1, 2):
        post.step()
        assert len(post.heard) == heard
        assert not post.has_heard_until(moment)
    post.step()
    assert len(post.heard) == 3
    assert post.has_heard_until(moment)


def test_nothing_is_heard_until_a_moment_that_nobody_asked_for() -> None:
    post = Post()
    post.step(3)
    assert not post.has_heard_until(0.0)


def test_an_empty_topic_is_heard_at_once() -> None:
    post = Post()
    moment = post.clock.monotonic()
    post.coordination.listen_until(moment)
    post.step()
    assert post.has_heard_until(moment)


@pytest.mark.parametrize("topic", [TOPIC, CONTROL])
def test_a_marker_at_the_end_holds_nothing_up(topic: str) -> None:
    """Of a transaction: no record is ever read at that offset."""
    post = Post()
    post.topic.batch_max = 0
    post.topic.append(encode_control(Control(action=ControlAction.CANCEL, request_id="r", at=0, by="t")), topic=topic)
    post.topic.logs[topic, 0].append(None)
    moment = post.clock.monotonic()
    post.coordination.listen_until(moment)
    post.step()
    assert not post.has_heard_until(moment)
    post.step()
    assert post.has_heard_until(moment)


def test_what_comes_after_the_end_was_asked_for_does_not_hold_it_up() -> None:
    post = Post()
    post.step()
    moment = post.clock.monotonic()
    post.topic.append(says(FINISHED, 0))
    post.topic.append(says(FINISHED, 1))
    post.coordination.listen_until(moment)
    post.step()
    for offset in range(2, 50):
        post.topic.append(says(FINISHED, offset))
    post.step()
    assert post.has_heard_until(moment)


def test_a_later_moment_is_asked_for_anew() -> None:
    """What was said between the two must not be taken for heard by way of the first end."""
    post = Post()
    post.topic.batch_max = 0
    post.topic.append(says(FINISHED, 0))
    first = post.clock.monotonic()
    post.coordination.listen_until(first)
    post.topic.append(says(FINISHED, 1))
    post.step()
    post.clock.advance(1.0)
    second = post.clock.monotonic()
    post.topic.append(says(FINISHED, 2))
    post.coordination.listen_until(second)
    post.coordination.listen_until(first)
    post.step()
    assert (post.has_heard_until(first), post.has_heard_until(second)) == (True, False)
    post.step(2)
    assert post.has_heard_until(second)
    assert post.offsets() == [0, 1, 2]


def cancels(request_id: str) -> bytes:
    return encode_control(Control(action=ControlAction.CANCEL, request_id=request_id, at=0, by="me"))


def test_what_was_asked_for_is_heard_however_long_ago_and_before_a_partition_is_opened() -> None:
    post = Post()
    post.topic.batch_max = 0
    post.topic.append(cancels("r-1"), topic=CONTROL)
    stamped_ms = post.clock.wall_ms()
    post.clock.advance(LOOK_BACK_MS / 1000 + 60)
    post.topic.append(b"no control", topic=CONTROL)
    moment = post.clock.monotonic()
    post.coordination.listen_until(moment)
    post.step()
    assert not post.has_heard_until(moment)
    post.step()
    assert post.has_heard_until(moment)
    assert [(each.request_id, at) for each, at in post.controls] == [("r-1", stamped_ms)]


def test_controls_are_handed_on_in_batches_and_nothing_is_read_while_there_is_no_room_for_more() -> None:
    post = Post()
    for number in range(2_500):
        post.topic.append(cancels(f"r-{number}"), topic=CONTROL)
    moment = post.clock.monotonic()
    post.coordination.listen_until(moment)
    post.step()
    assert [len(batch) for batch in post.batches] == [BATCH_RECORDS_MAX]
    post.has_room = False
    before = post.clock.monotonic()
    post.step(3)
    assert len(post.controls) == BATCH_RECORDS_MAX
    assert post.clock.monotonic() - before == pytest.approx(3 * NO_ROOM_SECONDS)
    post.has_room = True
    post.step(2)
    assert [each.request_id for each, _ in post.controls] == [f"r-{number}" for number in range(2_500)]
    assert post.has_heard_until(moment)


def test_it_is_known_when_something_was_last_heard_that_is_waited_for_and_what_came_later_does_not_count() -> None:
    post = Post()
    post.topic.batch_max = 0
    for offset in range(2):
        post.topic.append(says(FINISHED, offset))
    assert post.coordination.heard_at == float("-inf")
    post.coordination.listen_until(post.clock.monotonic())
    post.step()
    heard_at = post.coordination.heard_at
    assert heard_at == post.clock.monotonic()
    post.clock.advance(1.0)
    post.step()
    assert post.coordination.heard_at == heard_at + 1.0
    post.clock.advance(1.0)
    post.topic.append(says(FINISHED, 2))
    post.step()
    assert post.coordination.heard_at == heard_at + 1.0, "all that was waited for had been heard"


# What fails is tried again


@pytest.mark.parametrize("failures", [1, 2, 3])
def test_it_begins_where_it_should_although_asking_fails_first(failures: int) -> None:
    post = Post()
    post.topic.append(says(FINISHED, 0))
    post.topic.failing.extend([TIMED_OUT] * failures)
    moment = post.clock.monotonic()
    post.coordination.listen_until(moment)
    post.step(failures)
    assert not post.has_heard_until(moment)
    assert post.topic.metadata_asked == failures, "the leader may be another one now"
    post.step(3)
    assert post.has_heard_until(moment)
    assert post.offsets() == [0]


def test_a_partition_that_cannot_say_where_to_begin_is_asked_again() -> None:
    """Beginning at its end would pass over what was said just before."""
    post = Post()
    post.topic.append(says(FINISHED, 0))
    post.topic.partition_error = KafkaError(KafkaError.NOT_LEADER_FOR_PARTITION)
    post.step(2)
    post.topic.partition_error = None
    post.step(3)
    assert post.offsets() == [0]


def test_an_end_that_cannot_be_asked_for_is_asked_for_again() -> None:
    post = Post()
    post.step()
    post.topic.append(says(FINISHED, 0))
    moment = post.clock.monotonic()
    post.coordination.listen_until(moment)
    post.topic.failing.append(TIMED_OUT)
    post.step()
    assert not post.has_heard_until(moment)
    post.step(3)
    assert post.has_heard_until(moment)
    assert post.offsets() == [0]


@pytest.mark.parametrize(
    "failing",
    [
        TIMED_OUT,
        SystemError("returned a result with an exception set"),
        KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED),
        KafkaError(KafkaError._TRANSPORT),
    ],
    ids=["an exception of the client", "an odd exception", "an error event", "a broken connection"],
)
def test_a_notice_that_the_client_frees_unseen_is_read_again_and_no_other_twice(
    failing: Exception | KafkaError,
) -> None:
    post = Post(partitions=2)
    post.step()
    post.topic.append(says(FINISHED, 0))
    post.step()
    moment = post.clock.monotonic()
    post.coordination.listen_until(moment)
    for offset in (1, 2):
        post.topic.append(says(FINISHED, offset))
    post.topic.poll_failing.append(failing)
    post.step()
    assert not post.has_heard_until(moment)
    post.step(5)
    assert post.offsets() == [0, 1, 2]
    assert post.has_heard_until(moment)


def test_an_error_that_repeats_does_not_turn_hot() -> None:
    post = Post()
    post.topic.failing.extend([TIMED_OUT] * 1_000)
    began = post.clock.monotonic()
    post.step(10)
    assert post.clock.monotonic() - began >= 1.0
    assert post.coordination.heartbeat >= began, "it is alive all the same"


def test_closing_closes_the_client() -> None:
    post = Post()
    post.coordination.close()
    assert post.topic.closed


# What is said


def tell_in_background(post: Post, notices: list[Notice]) -> tuple[threading.Thread, list[bool]]:
    told: list[bool] = []
    teller = threading.Thread(target=lambda: told.append(post.coordination.tell(notices)))
    teller.start()
    while len(post.sent) < len(notices):
        pass
    return teller, told


@pytest.mark.parametrize(("delivered", "is_told"), [([True, True], True), ([True, False], False)])
def test_telling_waits_for_every_delivery(
    delivered: list[bool], is_told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordination_module, "TELL_SECONDS_MAX", 60.0)
    post = Post()
    notices = [says(RUNNING, 1), says(RUNNING, 2)]
    teller, told = tell_in_background(post, notices)
    assert [notice for notice, _ in post.sent] == notices
    assert told == []
    for (_, on_delivery), success in zip(post.sent, delivered, strict=True):
        on_delivery(success)
    teller.join(60)
    assert told == [is_told]


def test_telling_waits_no_longer_than_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """It stands between a rebalance and its end."""
    monkeypatch.setattr(coordination_module, "TELL_SECONDS_MAX", 0.05)
    assert not Post().coordination.tell([says(RUNNING, 1)])


def test_telling_nothing_is_done_at_once() -> None:
    assert Post().coordination.tell([])


def test_a_capacity_is_passed_on_with_its_age_and_one_of_a_worker_long_gone_is_not() -> None:
    post = Post()
    for sequence, seconds in enumerate((GONE_SECONDS, 3.0, 2.0)):
        post.topic.append(encode_capacity(_capacity(sequence)))
        post.clock.advance(seconds)
    post.step(6)
    assert [capacity.sequence for capacity, _ in post.capacities] == [1, 2]
    assert [age for _, age in post.capacities] == pytest.approx([5.0, 2.0], abs=0.3)
    post.topic.append(encode_capacity(_capacity(3)))
    post.clock.advance(4.0)
    post.step(3)
    assert [(capacity.sequence, age) for capacity, age in post.capacities[2:]] == [(3, 0.0)], "said since it listens"
    assert post.heard == []


def _capacity(sequence: int) -> Capacity:
    return Capacity(
        worker="w1",
        backend="b",
        limit_requests=1,
        share_requests=1,
        in_flight=0,
        wanted={},
        ended_per_second=0,
        service_seconds=None,
        draining=False,
        sequence=sequence,
    )


def test_a_topic_that_may_not_be_read_is_named_until_it_may_and_logged_once_a_while() -> None:
    post = Post()
    post.step()
    assert post.coordination.troubles == []
    denied = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    with capture_logs() as logs:
        for _ in range(40):
            post.coordination.listen_until(post.clock.monotonic())
            post.topic.failing.append(KafkaException(denied))
            post.step()
            if post.coordination.troubles:
                break
            post.clock.advance(0.2)
    assert post.coordination.troubles == [f"coordination: {TOPIC}: TOPIC_AUTHORIZATION_FAILED"]
    assert len(logs) == 1
    post.clock.advance(RECOVERED_SECONDS + 0.1)
    post.step()
    assert post.coordination.troubles == []


def test_a_topic_made_anew_is_read_from_its_first_record() -> None:
    post = Post()
    post.topics.learn(CONTROL, 1)
    for number in range(3):
        control = Control(action=ControlAction.CANCEL, request_id=f"old-{number}", at=0, by="t")
        post.topic.append(encode_control(control), topic=CONTROL)
    post.step(4)
    assert len(post.controls) == 3
    post.topic.logs[CONTROL, 0].clear()
    post.topic.append(
        encode_control(Control(action=ControlAction.CANCEL, request_id="new", at=0, by="t")), topic=CONTROL
    )
    post.step(2)
    assert len(post.controls) == 3
    post.topics.learn(CONTROL, 2)
    post.step(2)
    assert [control.request_id for control, _ in post.controls[3:]] == ["new"]
