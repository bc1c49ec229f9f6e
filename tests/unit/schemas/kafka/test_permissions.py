"""Permissions of a principal, by the brokers' answers."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AclOperation, AdminClient  # type: ignore[attr-defined]  # not in its stubs

from forebay_schemas.kafka.permissions import (
    Access,
    Operation,
    Resource,
    ask_topics,
    error_text,
    lacks,
    missing_of_topics,
    on_group,
    on_topic,
)

READ, WRITE, DESCRIBE = Operation.READ, Operation.WRITE, Operation.DESCRIBE


def answered(answer: list[AclOperation] | int | None) -> Future[Any]:
    """The client's answer: a description with the allowed operations, or a Kafka error's code."""
    future: Future[Any] = Future()
    if isinstance(answer, int):
        future.set_exception(KafkaException(KafkaError(answer)))
    else:
        future.set_result(SimpleNamespace(authorized_operations=answer))
    return future


class AnsweringAdmin:
    """Answer from a table of names; first with some errors that pass."""

    def __init__(self, answers: dict[str, Any], *, passing: tuple[int, ...] = ()) -> None:
        self._answers = answers
        self._passing = list(passing)

    def describe_topics(self, topics: TopicCollection, **_: Any) -> dict[str, Future[Any]]:
        if self._passing:
            code = self._passing.pop()
            return {name: answered(code) for name in topics.topic_names}
        return {name: answered(self._answers[name]) for name in topics.topic_names}


def admin(answers: dict[str, Any], *, passing: tuple[int, ...] = ()) -> AdminClient:
    return cast(AdminClient, AnsweringAdmin(answers, passing=passing))


def test_topics_that_a_broker_has_not_taken_over_yet_are_asked_about_again() -> None:
    young = admin(
        {"t": [AclOperation.READ]}, passing=(KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION)
    )
    assert missing_of_topics(young, [on_topic(READ, "t")]) == []


def test_what_lacks_is_named_in_the_order_in_which_it_was_asked_for() -> None:
    brokers = admin(
        {
            "readable": [AclOperation.READ, AclOperation.DESCRIBE],
            "hidden": KafkaError.TOPIC_AUTHORIZATION_FAILED,
            "absent": KafkaError.UNKNOWN_TOPIC_OR_PART,
            "silent": None,
        }
    )
    needed = [
        on_group(READ, "a-group"),
        on_topic(WRITE, "readable"),
        on_topic(READ, "readable"),
        on_topic(DESCRIBE, "hidden"),
        on_topic(READ, "absent"),
        on_topic(READ, "silent"),
    ]
    assert missing_of_topics(brokers, needed) == [needed[1], needed[3]]


def test_kafkas_words_are_taken_from_the_clients() -> None:
    permitted = ask_topics(
        admin({"t": [AclOperation.DESCRIBE_CONFIGS, AclOperation.IDEMPOTENT_WRITE]}), [on_topic(READ, "t")]
    )
    assert permitted == {(Resource.TOPIC, "t"): {Operation.DESCRIBE_CONFIGS}}


def test_brokers_that_do_not_answer_are_an_error_and_not_a_permission() -> None:
    with pytest.raises(KafkaException):
        missing_of_topics(admin({"t": KafkaError._TIMED_OUT}), [on_topic(READ, "t")])


def test_nothing_is_asked_about_nothing() -> None:
    assert missing_of_topics(cast(AdminClient, None), [on_group(READ, "g")]) == []


def test_of_what_is_not_known_nothing_lacks() -> None:
    assert not lacks({}, on_topic(READ, "t"))
    assert lacks({(Resource.TOPIC, "t"): ()}, on_topic(READ, "t"))
    assert not lacks({(Resource.TOPIC, "t"): ()}, on_group(READ, "t"))


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, "denied: User:a may not Read topic t"),
        (KafkaError.GROUP_AUTHORIZATION_FAILED, "denied: User:a may not Read group g"),
        (KafkaError.CLUSTER_AUTHORIZATION_FAILED, "Broker: Cluster authorization failed"),
        (KafkaError._TIMED_OUT, "Local: Timed out"),
    ],
)
def test_a_denial_is_told_by_the_kind_of_resource_and_anything_else_by_the_client(code: int, text: str) -> None:
    needs: tuple[Access, ...] = (on_topic(READ, "t"), on_group(READ, "g"))
    assert error_text(KafkaError(code), *needs, principal="User:a") == text
