"""Metadata of brokers that have just started: an answer that names no broker says nothing of topics either."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka.admin import AdminClient

from forebay_schemas.errors import BrokerUnreachableError
from forebay_schemas.kafka.connection import KafkaConnection
from forebay_schemas.kafka.metadata import ask_metadata, require_topics
from forebay_schemas.kafka.offsets_retention import ask_retention_minutes
from forebay_schemas.kafka.permissions import Operation

EMPTY = SimpleNamespace(brokers={}, topics={})
TOPIC = SimpleNamespace(error=None, partitions={0: None, 1: None})
FULL = SimpleNamespace(brokers={1: None}, topics={"requests": TOPIC})
NOWHERE = KafkaConnection(bootstrap_servers="127.0.0.1:1", properties={})


class StartingBroker:
    """Names no broker in its first answers."""

    def __init__(self, *, empty: int) -> None:
        self._empty = empty

    def list_topics(self, topic: str | None = None, *, timeout: float) -> Any:
        del topic
        assert timeout > 0
        self._empty -= 1
        return EMPTY if self._empty >= 0 else FULL

    def poll(self, timeout: float) -> int:
        del timeout
        return 0


def client(*, empty: int) -> AdminClient:
    return cast(AdminClient, StartingBroker(empty=empty))


def test_an_answer_that_names_no_broker_is_asked_for_again() -> None:
    assert ask_metadata(client(empty=2), connection=NOWHERE, doing="listing topics") is FULL
    found = require_topics(
        client(empty=1), ["requests"], connection=NOWHERE, pool="default", operation=Operation.DESCRIBE
    )
    assert found == {"requests": 2}


def test_brokers_that_name_none_for_good_count_as_unreachable() -> None:
    with pytest.raises(BrokerUnreachableError, match="listing topics"):
        ask_metadata(client(empty=1_000), connection=NOWHERE, doing="listing topics", timeout_seconds=0.3)


def test_how_long_commits_are_kept_is_not_known_of_brokers_that_name_none() -> None:
    assert ask_retention_minutes(client(empty=1), timeout_seconds=1.0) is None
