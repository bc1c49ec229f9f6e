"""Records that this worker publishes on the coordination topic: notices, capacities, clock probes, answers to
controls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import structlog
from confluent_kafka import KafkaError, KafkaException

from forebay_schemas.contract.control import Controlled, encode_controlled
from forebay_schemas.contract.coordination import Capacity, Notice, encode_capacity, encode_clock_probe, encode_notice
from forebay_worker.cluster.broker_clock import Acknowledged
from forebay_worker.outcome.producer import KafkaProducer

log = structlog.get_logger("forebay.outcome")

OnDelivery = Callable[[bool], None]
"""Given whether the record is durable."""


class Announcer:
    """Publishes each record once; the sender learns of a failed delivery. From any thread.

    ``on_acknowledged`` gets the report of each delivered record, which shows the brokers' time.
    """

    def __init__(
        self,
        *,
        producer: KafkaProducer,
        topic: str,
        worker_id: str,
        on_acknowledged: Callable[[Acknowledged], None],
        explain: Callable[[KafkaError, str], str],
    ) -> None:
        self._producer = producer
        self._topic = topic
        self._worker_id = worker_id
        self._on_acknowledged = on_acknowledged
        self._explain = explain

    def send_notice(self, notice: Notice, on_delivery: OnDelivery = lambda _: None) -> None:
        """Publishes how requests ended."""
        self._publish(encode_notice(notice), on_delivery)

    def send_capacity(self, capacity: Capacity, on_delivery: OnDelivery) -> None:
        """Publishes this worker's share of the backend."""
        self._publish(encode_capacity(capacity), on_delivery)

    def send_answer(self, answer: Controlled) -> None:
        """Publishes the answer to a cancel or an expedite."""
        self._publish(encode_controlled(answer), lambda _: None)

    def probe_clock(self, on_delivery: OnDelivery = lambda _: None) -> None:
        """Probes the brokers' clock with a record that readers ignore."""
        self._publish(encode_clock_probe(self._worker_id), on_delivery)

    def _publish(self, value: bytes, on_delivery: OnDelivery) -> None:
        def delivered(error: KafkaError | None, message: Any) -> None:
            if error is not None:
                log.warning("notice not delivered", error=self._explain(error, self._topic))
            else:
                self._on_acknowledged(message)
            on_delivery(error is None)

        try:
            self._producer.produce(self._topic, value, self._worker_id.encode(), headers=None, on_delivery=delivered)
        except (BufferError, KafkaException) as error:
            log.warning("notice not sent", error=str(error))
            on_delivery(False)
