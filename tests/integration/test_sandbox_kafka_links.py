"""Cut, silent and slow links to the sandbox's Kafka, by a TCP proxy."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from forebay_sandbox.kafka import local as kafka_module
from forebay_sandbox.kafka.local import LocalKafka
from forebay_sandbox.testing.proxy import BLACK_HOLE, CUT, PASS, Link, TcpProxy
from harness.far_kafka import PROXIED, behind_proxy
from harness.records import LONG_SECONDS, plain_producer, produce, values_of

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalKafka, TcpProxy]]:
    """A broker whose second listener is reached through a proxy only."""
    with ExitStack() as stack:
        log_dir = tmp_path_factory.mktemp("proxied-log")
        yield stack.enter_context(
            behind_proxy(lambda spec: stack.enter_context(kafka_module.local_kafka(spec, log_dir=log_dir)))
        )


@pytest.fixture
def through_proxy(proxied: tuple[LocalKafka, TcpProxy]) -> Iterator[tuple[LocalKafka, TcpProxy, Producer]]:
    """The cluster, its proxy letting everything pass, and a producer that has just written through it."""
    cluster, proxy = proxied
    proxy.set(PASS)
    assert cluster.bootstrap_of(PROXIED) == f"127.0.0.1:{proxy.port}"
    settings = {"reconnect_backoff_ms": 20, "reconnect_backoff_max_ms": 100, "enable_idempotence": True}
    producer = plain_producer(cluster.bootstrap_of(PROXIED), **settings)
    assert produce(producer, cluster.create_topic(), b"warm") is None
    yield cluster, proxy, producer
    proxy.set(PASS)


def test_a_producer_waits_out_a_cut_link(through_proxy: tuple[LocalKafka, TcpProxy, Producer]) -> None:
    cluster, proxy, producer = through_proxy
    topic = cluster.create_topic()
    assert produce(producer, topic, b"before") is None

    proxy.set(CUT)
    producer.produce(topic, b"during")
    assert producer.flush(0.5) == 1
    assert values_of(cluster, topic) == [b"before"]
    proxy.set(PASS)

    assert producer.flush(LONG_SECONDS) == 0
    assert values_of(cluster, topic) == [b"before", b"during"]


def test_a_producer_waits_out_a_black_hole(through_proxy: tuple[LocalKafka, TcpProxy, Producer]) -> None:
    cluster, proxy, producer = through_proxy
    topic = cluster.create_topic()
    assert produce(producer, topic, b"before") is None

    proxy.set(BLACK_HOLE)
    producer.produce(topic, b"during")
    assert producer.flush(0.5) == 1
    assert values_of(cluster, topic) == [b"before"]
    proxy.set(PASS)

    assert producer.flush(LONG_SECONDS) == 0
    assert values_of(cluster, topic) == [b"before", b"during"]


def test_a_delay_is_seen_by_a_producer_each_way(through_proxy: tuple[LocalKafka, TcpProxy, Producer]) -> None:
    cluster, proxy, producer = through_proxy
    topic = cluster.create_topic()
    assert produce(producer, topic, b"before") is None

    proxy.set(Link(delay_seconds=0.25))
    start = time.monotonic()
    assert produce(producer, topic, b"slow") is None
    assert time.monotonic() - start >= 0.5
