"""The identity of a topic, for readers that remember offsets."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection, Uuid

from forebay_schemas.kafka.topic_ids import LOOK_SECONDS, TopicIdentity
from simulated.ports import ManualClock


class HeldAdmin:
    """An admin client whose questions are answered when a test does it."""

    def __init__(self) -> None:
        self.asked: list[Future[Any]] = []

    def describe_topics(self, topics: TopicCollection, *, request_timeout: float) -> dict[str, Future[Any]]:
        assert request_timeout > 0
        self.asked.append(Future())
        return dict.fromkeys(topics.topic_names, self.asked[-1])

    def poll(self, timeout: float) -> int:
        assert timeout == 0
        return 0

    def say(self, topic_id: int | None) -> None:
        """None: it is gone."""
        if topic_id is None:
            self.asked[-1].set_exception(KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)))
        else:
            self.asked[-1].set_result(SimpleNamespace(topic_id=Uuid(0, topic_id)))


def identity() -> tuple[TopicIdentity, HeldAdmin, ManualClock]:
    brokers, clock = HeldAdmin(), ManualClock()
    made: Any = lambda: brokers  # noqa: E731 - as `make_admin` is bound
    return TopicIdentity(made, topic="t", clock=clock), brokers, clock


def test_the_same_topic_is_the_same_and_is_asked_for_every_few_seconds() -> None:
    same, brokers, clock = identity()
    brokers.say(5)
    assert [same.was_made_anew() for _ in range(3)] == [False] * 3
    assert len(brokers.asked) == 1
    for count in (2, 3):
        clock.advance(LOOK_SECONDS)
        assert not same.was_made_anew()
        assert len(brokers.asked) == count
        brokers.say(5)
        assert not same.was_made_anew()


def test_another_topic_of_the_name_is_told_once() -> None:
    topic, brokers, clock = identity()
    told = []
    for topic_id in (5, None, 5, 6, 6, None, 7):
        brokers.say(topic_id)
        told.append(topic.was_made_anew())
        clock.advance(LOOK_SECONDS)
        assert not topic.was_made_anew()
    assert told == [False, False, False, True, False, False, True]


def test_an_answer_that_does_not_come_is_not_waited_for_and_brokers_without_ids_say_nothing() -> None:
    topic, brokers, clock = identity()
    clock.advance(LOOK_SECONDS * 10)
    assert not topic.was_made_anew()
    assert len(brokers.asked) == 1
    brokers.say(0)
    assert not topic.was_made_anew()
    clock.advance(LOOK_SECONDS)
    assert not topic.was_made_anew()
    brokers.say(9)
    assert not topic.was_made_anew(), "before, nobody could tell"
