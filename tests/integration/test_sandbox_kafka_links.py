"""Cut, silent and slow links to the sandbox's Kafka, by a TCP proxy."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from forebay_sandbox.kafka import local as kafka_module
from forebay_sandbox.kafka.local import LocalKafka, free_port
from forebay_sandbox.kafka.spec import BrokerSpec, ClusterSpec, Listener
from forebay_sandbox.testing.proxy import BLACK_HOLE, CUT, PASS, Link, TcpProxy

if TYPE_CHECKING:
    from collections.abc import Iterator

from harness.records import _LONG_SECONDS, _produce, _producer, _values


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalKafka, TcpProxy]]:
    """A broker whose second listener is reached through a proxy only."""
    port = free_port()
    with TcpProxy(target_port=port) as proxy:
        listener = Listener(name="PROXIED", port=port, advertised_port=proxy.port)
        spec = ClusterSpec(brokers=(BrokerSpec(listeners=(Listener(name="DIRECT"), listener)),))
        with kafka_module.local_kafka(spec, log_dir=tmp_path_factory.mktemp("proxied-log")) as cluster:
            yield cluster, proxy


@pytest.fixture
def through_proxy(proxied: tuple[LocalKafka, TcpProxy]) -> Iterator[tuple[LocalKafka, TcpProxy, Producer]]:
    """The cluster, its proxy letting everything pass, and a producer that has just written through it."""
    cluster, proxy = proxied
    proxy.set(PASS)
    assert cluster.bootstrap_of("PROXIED") == f"127.0.0.1:{proxy.port}"
    settings = {"reconnect_backoff_ms": 20, "reconnect_backoff_max_ms": 100, "enable_idempotence": True}
    producer = _producer(cluster.bootstrap_of("PROXIED"), **settings)
    assert _produce(producer, cluster.create_topic(), b"warm") is None
    yield cluster, proxy, producer
    proxy.set(PASS)


def test_a_producer_waits_out_a_cut_link(through_proxy: tuple[LocalKafka, TcpProxy, Producer]) -> None:
    cluster, proxy, producer = through_proxy
    topic = cluster.create_topic()
    assert _produce(producer, topic, b"before") is None

    proxy.set(CUT)
    producer.produce(topic, b"during")
    assert producer.flush(0.5) == 1
    assert _values(cluster, topic) == [b"before"]
    proxy.set(PASS)

    assert producer.flush(_LONG_SECONDS) == 0
    assert _values(cluster, topic) == [b"before", b"during"]


def test_a_producer_waits_out_a_black_hole(through_proxy: tuple[LocalKafka, TcpProxy, Producer]) -> None:
    cluster, proxy, producer = through_proxy
    topic = cluster.create_topic()
    assert _produce(producer, topic, b"before") is None

    proxy.set(BLACK_HOLE)
    producer.produce(topic, b"during")
    assert producer.flush(0.5) == 1
    assert _values(cluster, topic) == [b"before"]
    proxy.set(PASS)

    assert producer.flush(_LONG_SECONDS) == 0
    assert _values(cluster, topic) == [b"before", b"during"]


def test_a_delay_is_seen_by_a_producer_each_way(through_proxy: tuple[LocalKafka, TcpProxy, Producer]) -> None:
    cluster, proxy, producer = through_proxy
    topic = cluster.create_topic()
    assert _produce(producer, topic, b"before") is None

    proxy.set(Link(delay_seconds=0.25))
    start = time.monotonic()
    assert _produce(producer, topic, b"slow") is None
    assert time.monotonic() - start >= 0.5
