"""Permissions on groups, by the errors that a consumer gets which joins none of them. No broker."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from forebay_schemas.kafka import group_access as module
from forebay_schemas.kafka.connection import KafkaConnection
from forebay_schemas.kafka.group_access import ask_groups, denied_groups
from forebay_schemas.kafka.permissions import Access, Operation, Resource, on_group, on_topic

DESCRIBE, READ = Operation.DESCRIBE, Operation.READ
DENIED, HIDDEN = KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError.TOPIC_AUTHORIZATION_FAILED
ABSENT, SILENT, LOADING = (
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._TIMED_OUT,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
)

Say = Callable[[int | None, int | None], None]


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch) -> Say:
    """Has every group answer with these codes to what it has committed and to a commit; None: without an error. One
    that passes is said once."""

    def set_answers(described: int | None, committed: int | None) -> None:
        monkeypatch.setattr(module, "create_client", lambda _, config: Group(config, described, committed))

    return set_answers


class Group:
    """A consumer, as far as it is asked here."""

    def __init__(self, config: dict[str, Any], described: int | None, committed: int | None) -> None:
        self._on_commit = config["on_commit"]
        self._described, self._committed = described, committed
        self._commits: list[int | None] = []

    def committed(self, _partitions: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        assert timeout > 0
        code = self._described
        if code == LOADING:
            self._described = None
        if code is not None:
            raise KafkaException(KafkaError(code))
        return []

    def commit(self, *, offsets: list[TopicPartition], asynchronous: bool) -> None:
        assert asynchronous, "the other way waits for ever"
        assert offsets[0].topic not in ("a-topic", ""), "nothing may be committed"
        self._commits.append(self._committed)
        if self._committed == LOADING:
            self._committed = ABSENT

    def poll(self, _timeout: float) -> None:
        for code in self._commits:
            self._on_commit(None if code is None else KafkaError(code), [])
        self._commits.clear()

    def close(self) -> None:
        """Nothing is open."""


def ask(*needed: Access) -> Any:
    connection = KafkaConnection(bootstrap_servers="127.0.0.1:1", properties={})
    return ask_groups(connection, needed, topic="a-topic", client_id="c", timeout_seconds=0.5)


@pytest.mark.parametrize(
    ("described", "committed", "permitted"),
    [
        (DENIED, None, set()),
        (None, DENIED, {DESCRIBE}),
        (None, ABSENT, {DESCRIBE, READ}),
        (None, HIDDEN, {DESCRIBE, READ}),
        (None, None, {DESCRIBE, READ}),
        (HIDDEN, ABSENT, {DESCRIBE, READ}),  # the topic's matter, and not the group's
        (LOADING, LOADING, {DESCRIBE, READ}),
    ],
)
def test_what_is_permitted_is_what_the_brokers_do_not_refuse(
    say: Say, described: int | None, committed: int | None, permitted: set[Operation]
) -> None:
    say(described, committed)
    assert ask(on_group(READ, "g"), on_topic(READ, "a-topic")) == {(Resource.GROUP, "g"): permitted}


def test_nothing_is_committed_for_who_need_not_read(say: Say) -> None:
    say(None, DENIED)
    assert ask(on_group(DESCRIBE, "g")) == {(Resource.GROUP, "g"): {DESCRIBE}}


@pytest.mark.parametrize(("described", "committed"), [(SILENT, None), (None, SILENT)])
def test_a_coordinator_that_is_silent_is_an_error_and_not_a_permission(
    say: Say, described: int | None, committed: int | None
) -> None:
    say(described, committed)
    with pytest.raises(KafkaException):
        ask(on_group(READ, "g"))


def test_one_that_is_silent_is_not_said_to_deny(say: Say) -> None:
    connection = KafkaConnection(bootstrap_servers="127.0.0.1:1", properties={})
    for described, denied in ((SILENT, set()), (DENIED, {"g"}), (None, set())):
        say(described, None)
        assert denied_groups(connection, ["g"], topic="a-topic", client_id="c", timeout_seconds=0.5) == denied


def test_nothing_is_asked_of_no_group() -> None:
    assert ask(on_topic(READ, "a-topic")) == {}


def test_no_deployable_asks_an_admin_client_about_groups() -> None:
    root = Path(__file__).parents[4]
    sources = [path for package in ("schemas", "producer", "worker") for path in (root / package / "src").rglob("*.py")]
    assert len(sources) > 100
    asking = ("_consumer_groups(", "_consumer_group_offsets(")
    assert [path.name for path in sources if any(words in path.read_text() for words in asking)] == []
