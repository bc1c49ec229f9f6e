"""The coordination topic: failures of the client are tried again, and a topic made anew is read from its start."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException
from structlog.testing import capture_logs

from forebay_schemas.contract.control import Control, ControlAction, encode_control
from forebay_worker.coordination.follower import RECOVERED_SECONDS
from simulated.coordination import CONTROL, FINISHED, TIMED_OUT, TOPIC, Post, says


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
    """Beginning at its end would pass over the latest notices."""
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


def test_closing_closes_the_client() -> None:
    post = Post()
    post.coordination.close()
    assert post.topic.closed


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
