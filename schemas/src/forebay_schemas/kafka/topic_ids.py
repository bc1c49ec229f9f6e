"""Kafka's ids of topics, which tell a recreated topic from the original. Asks brokers."""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import Future
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from forebay_schemas.clock import Clock
from forebay_schemas.contract.offsets_metadata import topic_mark

LOOK_SECONDS: Final = 2.0
ASK_SECONDS_MAX: Final = 2.0

_GONE: Final = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_ID})


def topic_ids(admin: AdminClient, topics: Collection[str], *, timeout_seconds: float) -> dict[str, int]:
    """The id of each topic, from `topic_mark`; without missing topics and those without an id. Raises
    ``KafkaException``."""
    ids: dict[str, int] = {}
    asked = admin.describe_topics(TopicCollection(list(topics)), request_timeout=timeout_seconds)
    for topic, answer in asked.items():
        try:
            mark = _mark(answer.result())
        except KafkaException as error:
            if error.args[0].code() in _GONE:
                continue
            raise
        if mark is not None:
            ids[topic] = mark
    return ids


class TopicIdentity:
    """Detects that a topic was recreated, for readers that keep offsets. One thread uses it.

    It asks the brokers every ``look_seconds``, the first time at once, and never waits for their answer.
    """

    def __init__(
        self, make_admin: Callable[[], AdminClient], *, topic: str, clock: Clock, look_seconds: float = LOOK_SECONDS
    ) -> None:
        self._make_admin = make_admin
        self._topic = topic
        self._clock = clock
        self._look_seconds = look_seconds
        self._admin: AdminClient | None = None
        self._answer: Future[Any] | None = None
        self._ask_at = 0.0
        self._known: int | None = None
        self._look()

    def _look(self) -> None:
        """Sends a request, unless one was sent lately or is still unanswered."""
        now = self._clock.monotonic()
        if self._answer is not None or now < self._ask_at:
            return
        self._ask_at = now + self._look_seconds
        if self._admin is None:
            self._admin = self._make_admin()
        asked = self._admin.describe_topics(TopicCollection([self._topic]), request_timeout=ASK_SECONDS_MAX)
        self._answer = asked[self._topic]

    def was_made_anew(self) -> bool:
        """Whether the topic was recreated since the last call."""
        self._look()
        assert self._admin is not None
        self._admin.poll(0)  # its log
        if self._answer is None or not self._answer.done():
            return False
        answer, self._answer = self._answer, None
        if answer.exception() is not None:
            return False  # missing, or unknown now: only another id counts
        topic_id = _mark(answer.result())
        before, self._known = self._known, topic_id or self._known
        return None not in (before, topic_id) and topic_id != before


def _mark(described: Any) -> int | None:
    found = described.topic_id
    return topic_mark(found.get_most_significant_bits(), found.get_least_significant_bits())
