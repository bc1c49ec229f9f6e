"""The local queue and the producer's settings; no broker is reached."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from forebay_producer import Producer, ProducerClosedError, ProducerSettings, QueueFullError
from forebay_producer.client.metrics import ProducerMetrics
from forebay_producer.client.prepare import prepare
from forebay_producer.client.sender import Sender
from forebay_schemas.contract.envelope import JsonCodec
from forebay_schemas.contract.tiers import Tier
from forebay_schemas.contract.topics import Pool
from forebay_schemas.errors import UsageError
from forebay_schemas.kafka.connection import KafkaConnection

CODECS = dict.fromkeys(Tier, JsonCodec())

NOBODY = "127.0.0.1:1"


class SteppingClock:
    """A second passes with each look."""

    def __init__(self) -> None:
        self._now = 0.0

    def monotonic(self) -> float:
        self._now += 1.0
        return self._now

    def wall_ms(self) -> int:
        return 1_900_000_000_000

    def sleep(self, seconds: float) -> None:
        self._now += seconds


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("FOREBAY_")]:
        monkeypatch.delenv(name)


def test_a_queue_that_stays_full_is_an_error_and_the_request_is_not_sent() -> None:
    clock = SteppingClock()
    sender = Sender(
        KafkaConnection(bootstrap_servers=NOBODY, properties={"queue.buffering.max.messages": "1"}),
        pool=Pool("p"),
        linger_ms=0,
        delivery_seconds=2.0,
        clock=clock,
        metrics=ProducerMetrics(),
    )
    request = prepare(
        {"biz_type": "x", "payload": {}}, tier=None, traceparent=None, codecs=CODECS, now_ms=clock.wall_ms()
    )
    first = sender.send(request)
    with pytest.raises(QueueFullError, match="the local queue was full for 2 s"):
        sender.send(request)
    assert sender.in_flight()
    assert sender.close() == [first.request_id]
    with pytest.raises(ProducerClosedError):
        sender.send(request)


def test_the_delivery_timeout_has_one_name(tmp_path: Path) -> None:
    properties = tmp_path / "kafka.properties"
    properties.write_text("message.timeout.ms=5\n")
    with pytest.raises(UsageError, match=r"sets message\.timeout\.ms; set FOREBAY_DELIVERY_TIMEOUT_SECONDS instead"):
        Producer(bootstrap_servers=NOBODY, kafka_properties=properties)


def test_settings_and_single_arguments_exclude_each_other() -> None:
    with pytest.raises(UsageError, match="settings: came with other arguments"):
        Producer(settings=ProducerSettings(), pool="p")


def test_a_bad_pool_name_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match=r"^pool: "):
        Producer(bootstrap_servers=NOBODY, pool="a b")


def test_a_closed_producer_says_so() -> None:
    producer = Producer(bootstrap_servers=NOBODY)
    assert producer.close() == []
    assert producer.close() == []
    for call in (
        lambda: producer.submit({}),
        lambda: producer.submit_batch([]),
        lambda: producer.outcome("x", timeout_seconds=1, since_ms=0),
        lambda: producer.outcomes(["x"], timeout_seconds=1, since_ms=0),
    ):
        with pytest.raises(ProducerClosedError, match="the producer is closed"):
            call()


def test_looking_for_an_outcome_needs_a_time_to_start_from() -> None:
    with Producer(bootstrap_servers=NOBODY) as producer, pytest.raises(UsageError, match="since_ms: is missing"):
        producer.outcome("x", timeout_seconds=1)
