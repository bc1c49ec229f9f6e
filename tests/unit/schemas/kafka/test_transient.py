"""Errors of the brokers after which a question is repeated. Pure, but for a pause."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException

from forebay_schemas.kafka.transient import until_passed


class _Question:
    def __init__(self, code: int) -> None:
        self.asked = 0
        self._code = code

    def __call__(self) -> str:
        self.asked += 1
        if self.asked == 1:
            raise KafkaException(KafkaError(self._code))
        return "answer"


@pytest.mark.parametrize(
    "code",
    [KafkaError.NOT_COORDINATOR, KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError._DESTROY_BROKER, KafkaError._NOENT],
)
def test_a_question_that_meets_a_broker_that_is_going_is_asked_again(code: int) -> None:
    question = _Question(code)
    assert until_passed()(question) == "answer"
    assert question.asked == 2


def test_a_refusal_is_no_passing_error() -> None:
    question = _Question(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(KafkaException):
        until_passed()(question)
    assert question.asked == 1
