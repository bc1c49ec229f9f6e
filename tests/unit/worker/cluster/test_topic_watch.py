"""Ids of topics: when they are known, and when they change."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from structlog.testing import capture_logs

from forebay_worker.cluster.topic_watch import TopicWatch
from simulated.ports import NOW_MS, ManualClock


class TopicIds:
    """``ids`` are what they say; an exception in their place is raised."""

    def __init__(self, **ids: int) -> None:
        self.ids: Mapping[str, int] | Exception = ids

    def __call__(self, topics: Collection[str]) -> Mapping[str, int]:
        assert list(topics) == ["a", "b"]
        if isinstance(self.ids, Exception):
            raise self.ids
        return self.ids


def watch(brokers: TopicIds) -> tuple[TopicWatch, ManualClock]:
    clock = ManualClock()
    return TopicWatch(topics=["a", "b"], ask=brokers, clock=clock), clock


def test_nothing_is_known_before_the_brokers_have_said_it() -> None:
    brokers = TopicIds(a=1)
    brokers.ids = RuntimeError("away")
    topics, clock = watch(brokers)
    with capture_logs() as logged:
        topics.look()
        topics.look()
    assert (topics.id_of("a"), topics.known_until, topics.changes) == (None, float("-inf"), 0)
    assert [event["event"] for event in logged] == ["the ids of topics are not known; asking again"]
    brokers.ids = {"a": 1}
    topics.look()
    assert (topics.id_of("a"), topics.id_of("b"), topics.known_until) == (1, None, clock.monotonic())


def test_a_topic_that_is_gone_for_a_while_is_the_same_and_another_of_its_name_is_not() -> None:
    brokers = TopicIds(a=1, b=2)
    topics, clock = watch(brokers)
    with capture_logs() as logged:
        topics.look()
        seen = topics.changes
        clock.advance(2)
        brokers.ids = {"b": 2}
        topics.look()
        clock.advance(2)
        brokers.ids = {"a": 1, "b": 2}
        topics.look()
        assert (topics.changes, topics.id_of("a"), logged) == (seen, 1, [])
        clock.advance(2)
        brokers.ids = {"a": 7, "b": 2}
        topics.look()
    assert (topics.changes, topics.id_of("a"), topics.id_of("b")) == (seen + 1, 7, 2)
    assert [(event["log_level"], event["topic"]) for event in logged] == [("error", "a")]
    # Two seconds before that it was still the old one.
    assert topics.changed_after_ms("a") == NOW_MS + 4_000
    assert topics.changed_after_ms("b") == 0
