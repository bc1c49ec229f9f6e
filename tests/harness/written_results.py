"""Results as a worker would write them, by a plain Kafka client. Talks to the broker."""

from __future__ import annotations

from typing import Any

from confluent_kafka import Producer

from forebay_schemas.contract.reasons import Status
from forebay_schemas.contract.results import Result, encode_result
from harness.producer_pool import ProducerPool


def result_of(request_id: str, *, status: Status = Status.COMPLETED, **more: Any) -> Result:
    """A result with what it must have."""
    return Result(request_id=request_id, status=status, reason=status.value, finished_at=1_900_000_000_000, **more)


def write_results(pool: ProducerPool, *results: Result) -> None:
    """Returns when the broker has them, in this order."""
    write_records(pool, *((result.request_id.encode(), encode_result(result)) for result in results))


def write_records(pool: ProducerPool, *records: tuple[bytes, bytes | None]) -> None:
    """Returns when the broker has these keys and values on the results topic."""
    kafka = pool.kafka
    config = {**kafka.connection.properties, "bootstrap.servers": kafka.bootstrap_servers}
    producer = Producer({**config, "acks": "all", "partitioner": "murmur2_random"})
    errors: list[str] = []
    for key, value in records:
        while True:
            try:
                producer.produce(
                    pool.topics.results,
                    value,
                    key,
                    on_delivery=lambda error, _: errors.append(error.str()) if error is not None else None,
                )
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(30) == 0
    assert errors == []
