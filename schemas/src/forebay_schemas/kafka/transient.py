"""Transient errors: a partition or group whose broker has not taken it over yet, or gives it up."""

from __future__ import annotations

from typing import Final

from confluent_kafka import KafkaError, KafkaException
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_fixed

SECONDS_MAX: Final = 10.0

# Metadata names the leader of a new partition, and its epoch, some milliseconds before that leader knows.
TRANSIENT: Final = {
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError.KAFKA_STORAGE_ERROR,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    # The client drops a broker's answers when it learns of another one in its place; the next request goes there
    # (librdkafka 2.16.1, seen when brokers were killed).
    KafkaError._DESTROY_BROKER,
    # "No leaders found": asked for offsets before it knew of any leader (2.16.1, seen on a busy machine).
    KafkaError._NOENT,
}


def is_transient(error: BaseException) -> bool:
    """Whether a ``KafkaException`` is worth a retry."""
    return isinstance(error, KafkaException) and error.args[0].code() in TRANSIENT


def until_passed(seconds: float = SECONDS_MAX) -> Retrying:
    """Repeats a request while its error is transient, for a bounded time; raises the last error."""
    return Retrying(
        retry=retry_if_exception(is_transient),
        stop=stop_after_delay(seconds),
        wait=wait_fixed(0.05),
        reraise=True,
    )
