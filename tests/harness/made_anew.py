"""Topics that are deleted and made anew under the same name, as an administrator may. Talks to the broker."""

from __future__ import annotations

from confluent_kafka import KafkaException
from confluent_kafka.cimpl import NewTopic

from forebay_sandbox.kafka.access import KafkaAccess
from forebay_schemas.contract.topics import Pool
from harness.waiting import wait_until

_ANSWER_SECONDS_MAX = 30.0


def make_anew(kafka: KafkaAccess, topics: Pool, topic: str) -> None:
    """Deletes a topic and makes it again at once, with as many partitions."""
    admin = kafka.admin()
    partitions = len(admin.list_topics(topic, timeout=_ANSWER_SECONDS_MAX).topics[topic].partitions)
    admin.delete_topics([topic])[topic].result(_ANSWER_SECONDS_MAX)
    [spec] = [spec for spec in topics.specs(partitions=partitions, replication=1) if spec.name == topic]
    new = NewTopic(topic, partitions, 1, config=spec.config)

    def made() -> bool:
        try:
            admin.create_topics([new])[topic].result(_ANSWER_SECONDS_MAX)
        except KafkaException:  # the old one is still being deleted
            return False
        return True

    wait_until("the topic made anew", made)
