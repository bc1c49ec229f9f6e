"""Executions that came too late: of requests whose outcome was on the results topic before. Reads that topic."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition

from harness.executions import Execution
from harness.live_pool import LivePool

SECONDS_MAX = 30.0


def outcomes_written_ms(pool: LivePool) -> dict[str, int]:
    """Time at which the broker wrote the first outcome of each request, in epoch milliseconds."""
    config: dict[str, Any] = {**pool.kafka.connection.properties, "bootstrap.servers": pool.kafka.bootstrap_servers}
    config |= {"group.id": "tests", "enable.auto.commit": False, "enable.partition.eof": True}
    written: dict[str, int] = {}
    with closing(Consumer(config)) as reader:
        topic = reader.list_topics(pool.topics.results, timeout=SECONDS_MAX).topics[pool.topics.results]
        left = set(topic.partitions)
        reader.assign([TopicPartition(pool.topics.results, number, OFFSET_BEGINNING) for number in left])
        while left:
            record = reader.poll(SECONDS_MAX)
            assert record is not None, f"nothing came of {len(left)} partitions"
            error = record.error()
            if error is None:
                request_id = (record.key() or b"").decode()
                written[request_id] = min(record.timestamp()[1], written.get(request_id, record.timestamp()[1]))
            elif error.name() == "_PARTITION_EOF":
                left.discard(record.partition())
            else:
                raise KafkaException(error)
    return written


def run_after_outcome(executions: Iterable[Execution], written_ms: dict[str, int]) -> list[Execution]:
    """Those that began when the outcome of their request had been written."""
    return [one for one in executions if one.started_at_ms > written_ms[one.request_id]]
