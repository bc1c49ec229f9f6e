"""Which topics the brokers have now, by Kafka's ids: the name of one that was made anew is the same. Asks brokers."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from forebay_schemas.contract.offsets_metadata import topic_mark

_GONE: Final = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_ID})


def topic_ids(admin: AdminClient, topics: Collection[str], *, timeout_seconds: float) -> dict[str, int]:
    """The id of each topic, as `topic_mark` makes it; without those that do not exist and those that have none.

    Raises ``KafkaException``.
    """
    ids: dict[str, int] = {}
    asked = admin.describe_topics(TopicCollection(list(topics)), request_timeout=timeout_seconds)
    for topic, answer in asked.items():
        try:
            found = answer.result().topic_id
        except KafkaException as error:
            if error.args[0].code() in _GONE:
                continue
            raise
        mark = topic_mark(found.get_most_significant_bits(), found.get_least_significant_bits())
        if mark is not None:
            ids[topic] = mark
    return ids
