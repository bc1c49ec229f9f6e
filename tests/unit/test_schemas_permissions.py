"""What a principal may do, asked of a broker that has just come up."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from forebay_schemas.permissions import Operation, missing, on_group


class YoungBroker:
    """Its groups are not loaded when it is first asked."""

    def __init__(self) -> None:
        self._errors = [KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.NOT_COORDINATOR]

    def describe_consumer_groups(self, names: list[str], **_: Any) -> dict[str, Future[Any]]:
        answer: Future[Any] = Future()
        if self._errors:
            answer.set_exception(KafkaException(KafkaError(self._errors.pop())))
        else:
            answer.set_result(SimpleNamespace(authorized_operations=[SimpleNamespace(name="READ")]))
        return dict.fromkeys(names, answer)


def test_groups_that_a_broker_has_not_loaded_yet_are_asked_about_again() -> None:
    admin = cast(AdminClient, YoungBroker())
    assert missing(admin, [on_group(Operation.READ, "forebay.default.high")]) == []
