"""Reads a pool's results topic from its beginning, like any Kafka client. Its own thread owns the consumer."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from forebay_sandbox.kafka.access import ANSWER_SECONDS_MAX
from forebay_schemas.contract.results import Result, ResultError, decode_result
from forebay_schemas.kafka.clients import create_client
from forebay_schemas.kafka.configs import reader_config
from forebay_schemas.kafka.connection import KafkaConnection

_WAIT_SECONDS: Final = 0.2
_BATCH_RECORDS_MAX: Final = 500

_log = logging.getLogger("forebay.sandbox.demo")


class ResultsReader:
    """Passes on each result: ``with ResultsReader(...):``. ``take`` is called on the reader's thread."""

    def __init__(self, connection: KafkaConnection, *, topic: str, take: Callable[[list[Result]], None]) -> None:
        self._take = take
        self._stop = threading.Event()
        self._consumer = create_client(Consumer, reader_config(connection, client_id="forebay-demo-results"))
        partitions = self._consumer.list_topics(topic, timeout=ANSWER_SECONDS_MAX).topics[topic].partitions
        self._consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in partitions])
        self._thread = threading.Thread(target=self._run, name="demo-results")

    def __enter__(self) -> ResultsReader:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                first = self._consumer.poll(_WAIT_SECONDS)
                if first is None:
                    continue
                results = []
                for message in (first, *self._consumer.consume(_BATCH_RECORDS_MAX, 0)):
                    value = message.value()
                    if (problem := message.error()) is not None:
                        _log.warning("reading results: %s", problem)
                    elif value is not None:
                        try:
                            results.append(decode_result(value))
                        except ResultError as error:
                            _log.warning("%s", error)
                self._take(results)
        finally:
            self._consumer.close()
