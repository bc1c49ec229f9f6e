"""A simulated producer with the interface of confluent-kafka's Producer. Delivery reports are served by `poll`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from forebay_worker.outcome.producer import BY_KEY
from simulation.broker import Broker, Connection, LogRecord
from simulation.scheduler import Process

LINGER_SECONDS = 0.005
RECORD_BYTES_MAX = 1_000_000

Delivered = Callable[[KafkaError | None, Any], None]


class SimulatedProducer:
    """Records leave after the linger; until then they die with the process."""

    def __init__(self, *, broker: Broker, process: Process) -> None:
        self._broker = broker
        self._process = process
        self._scheduler = broker.scheduler
        self._connection = Connection(broker, process)
        self._reports: deque[tuple[Delivered, KafkaError | None, LogRecord]] = deque()
        self._unreported = 0

    def produce(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int = BY_KEY,
        *,
        headers: Any,
        on_delivery: Delivered,
    ) -> None:
        self._scheduler.require(self._process.alive, "a dead process produces")
        rates, random = self._broker.rates, self._broker.random
        if len(value or b"") > RECORD_BYTES_MAX:
            raise KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
        self._broker.oracle.produced(self._process.name, topic, value, headers)
        if rates.produce_queue_full and random.random() < rates.produce_queue_full:
            raise BufferError("Local: Queue full")
        if partition >= len(self._broker.topics[topic]):
            raise KafkaException(KafkaError(KafkaError._UNKNOWN_PARTITION))
        record = LogRecord(topic, partition, 0, key, value, headers, 0)
        produced_at = self._scheduler.now

        def report(error: KafkaError | None, record: LogRecord) -> None:
            record.latency_seconds = self._scheduler.now - produced_at
            on_delivery(error, record)

        self._unreported += 1
        self._scheduler.later(LINGER_SECONDS * random.random(), self._process, self._leaves, record, report)

    def poll(self, timeout: float) -> int:
        self._scheduler.require(timeout == 0, "the event loop's thread must not wait")
        served = 0
        for _ in range(len(self._reports)):
            on_delivery, error, record = self._reports.popleft()
            self._unreported -= 1
            served += 1
            on_delivery(error, record)
        return served

    def flush(self, timeout: float) -> int:
        end = self._scheduler.now + timeout
        while self._unreported and self._scheduler.now < end:
            self._scheduler.sleep(0.02)
            self.poll(0)
        return self._unreported

    def _leaves(self, record: LogRecord, on_delivery: Delivered) -> None:
        rates, random = self._broker.rates, self._broker.random
        slow = random.random() * 8 if rates.produce_slow and random.random() < rates.produce_slow else 0.0
        self._connection.send(self._arrives, record, on_delivery, slow_seconds=slow)

    def _arrives(self, record: LogRecord, on_delivery: Delivered) -> None:
        rates, random = self._broker.rates, self._broker.random
        topic = record.topic_name
        if self._broker.is_refused(topic):
            error: KafkaError | None = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
        elif rates.produce_failed and random.random() < rates.produce_failed:
            error = KafkaError(KafkaError._MSG_TIMED_OUT)
        else:
            partition = None if record.partition_number == BY_KEY else record.partition_number
            written = self._broker.append(topic, record.key_bytes, record.value_bytes, record.header_list, partition)
            record.partition_number = written.partition_number
            record.timestamp_ms = written.timestamp_ms
            error = None
            if rates.produce_failed_but_written and random.random() < rates.produce_failed_but_written:
                self._broker.oracle.written_but_reported_failed(record)
                error = KafkaError(KafkaError._MSG_TIMED_OUT)
        self._connection.reply(self._report, on_delivery, error, record)

    def _report(self, on_delivery: Delivered, error: KafkaError | None, record: LogRecord) -> None:
        self._reports.append((on_delivery, error, record))
        self._process.loop.stir()
