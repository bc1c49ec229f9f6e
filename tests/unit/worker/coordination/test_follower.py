"""The coordination topic: received notices, the moment until which all is received, and published notices."""

from __future__ import annotations

import threading

import pytest

from forebay_schemas.contract.control import Control, ControlAction, encode_control
from forebay_schemas.contract.coordination import (
    GONE_SECONDS,
    LEASE_SECONDS,
    Notice,
    NoticeKind,
    encode_capacity,
)
from forebay_worker.coordination import follower as coordination_module
from forebay_worker.coordination.follower import BATCH_RECORDS_MAX, LOOK_BACK_MS, NO_ROOM_SECONDS
from simulated.capacities import make_capacity
from simulated.coordination import CONTROL, FINISHED, RELEASED, RUNNING, TOPIC, Post, says


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
    for received in (1, 2):
        post.step()
        assert len(post.received) == received
        assert not post.has_heard_until(moment)
    post.step()
    assert len(post.received) == 3
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
    """A notice published between the two must not count as received by way of the first end."""
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


def test_a_worker_that_starts_hears_what_ended_in_the_last_ten_minutes() -> None:
    post = Post()
    began_ms = post.clock.wall_ms()
    post.step()
    assert post.topic.asked_since_ms == [began_ms - 600_000]


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
    assert post.coordination.read_at == float("-inf")
    post.coordination.listen_until(post.clock.monotonic())
    post.step()
    read_at = post.coordination.read_at
    assert read_at == post.clock.monotonic()
    post.clock.advance(1.0)
    post.step()
    assert post.coordination.read_at == read_at + 1.0
    post.clock.advance(1.0)
    post.topic.append(says(FINISHED, 2))
    post.step()
    assert post.coordination.read_at == read_at + 1.0, "all that was waited for had been heard"


# What is said


def tell_in_background(post: Post, notices: list[Notice]) -> tuple[threading.Thread, list[bool]]:
    told: list[bool] = []
    teller = threading.Thread(target=lambda: told.append(post.coordination.publish(notices)))
    teller.start()
    while len(post.sent) < len(notices):
        pass
    return teller, told


@pytest.mark.parametrize(("delivered", "is_published"), [([True, True], True), ([True, False], False)])
def test_telling_waits_for_every_delivery(
    delivered: list[bool], is_published: bool, monkeypatch: pytest.MonkeyPatch
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
    assert told == [is_published]


def test_telling_waits_no_longer_than_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """It stands between a rebalance and its end."""
    monkeypatch.setattr(coordination_module, "TELL_SECONDS_MAX", 0.05)
    assert not Post().coordination.publish([says(RUNNING, 1)])


def test_telling_nothing_is_done_at_once() -> None:
    assert Post().coordination.publish([])


def test_a_capacity_is_passed_on_with_its_age_and_one_of_a_worker_long_gone_is_not() -> None:
    post = Post()
    for sequence, seconds in enumerate((GONE_SECONDS, 3.0, 2.0)):
        post.topic.append(encode_capacity(make_capacity(sequence=sequence)))
        post.clock.advance(seconds)
    post.step(6)
    assert [capacity.sequence for capacity, _ in post.capacities] == [1, 2]
    assert [age for _, age in post.capacities] == pytest.approx([5.0, 2.0], abs=0.3)
    post.topic.append(encode_capacity(make_capacity(sequence=3)))
    post.clock.advance(4.0)
    post.step(3)
    assert [(capacity.sequence, age) for capacity, age in post.capacities[2:]] == [(3, 0.0)], "said since it listens"
    assert post.received == []
