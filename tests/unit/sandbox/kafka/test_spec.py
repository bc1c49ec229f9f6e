"""Property files of a cluster's value."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from forebay_sandbox.kafka.spec import (
    BrokerSpec,
    ClusterSpec,
    Listener,
    broker_properties,
    render_properties,
    with_ports,
)


def _properties(spec: ClusterSpec, node_id: int = 1) -> dict[str, str]:
    return broker_properties(with_ports(spec, count(20_000).__next__), node_id, data_dir=Path("data"))


def test_every_listener_is_on_this_machine_only() -> None:
    tls = Listener(name="TLS", protocol="SSL")
    properties = _properties(ClusterSpec(brokers=(BrokerSpec(listeners=(Listener(name="DIRECT"), tls)),)))

    assert properties["listeners"] == "DIRECT://127.0.0.1:20000,TLS://127.0.0.1:20001,CONTROLLER://127.0.0.1:20002"
    assert properties["advertised.listeners"] == "DIRECT://127.0.0.1:20000,TLS://127.0.0.1:20001"
    assert properties["listener.security.protocol.map"] == "DIRECT:PLAINTEXT,TLS:SSL,CONTROLLER:PLAINTEXT"
    assert properties["inter.broker.listener.name"] == "DIRECT"


def test_a_listener_can_advertise_the_port_of_a_proxy() -> None:
    proxied = Listener(name="PROXIED", port=15_001, advertised_port=15_002)
    properties = _properties(ClusterSpec(brokers=(BrokerSpec(listeners=(Listener(name="DIRECT"), proxied)),)))

    assert "PROXIED://127.0.0.1:15001" in properties["listeners"]
    assert "PROXIED://127.0.0.1:15002" in properties["advertised.listeners"]


@pytest.mark.parametrize(("brokers", "replicas", "min_isr"), [(1, "1", "1"), (2, "2", "2"), (3, "3", "2")])
def test_internal_topics_have_as_many_replicas_as_there_are_brokers(brokers: int, replicas: str, min_isr: str) -> None:
    properties = _properties(ClusterSpec(brokers=(BrokerSpec(),) * brokers))

    assert properties["offsets.topic.replication.factor"] == replicas
    assert properties["transaction.state.log.replication.factor"] == replicas
    assert properties["transaction.state.log.min.isr"] == min_isr


def test_all_brokers_are_one_quorum_and_share_no_port() -> None:
    spec = ClusterSpec(brokers=(BrokerSpec(),) * 3)
    each = [_properties(spec, node_id) for node_id in (1, 2, 3)]

    assert {one["controller.quorum.voters"] for one in each} == {
        "1@127.0.0.1:20001,2@127.0.0.1:20003,3@127.0.0.1:20005"
    }
    assert len({one["listeners"] for one in each}) == 3
    assert [one["node.id"] for one in each] == ["1", "2", "3"]


def test_a_brokers_own_property_wins_over_the_clusters_and_that_over_the_default() -> None:
    spec = ClusterSpec(
        brokers=(BrokerSpec(properties={"broker.rack": "a", "num.io.threads": "3"}), BrokerSpec()),
        properties={"num.io.threads": "2", "auto.create.topics.enable": "true"},
    )

    assert [_properties(spec, node_id)["num.io.threads"] for node_id in (1, 2)] == ["3", "2"]
    assert _properties(spec)["auto.create.topics.enable"] == "true"
    assert _properties(spec)["broker.rack"] == "a"


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("a=b:c d", "a=b:c d"),
        ("C:\\keys", "C:\\\\keys"),
        ("two\nlines", "two\\nlines"),
        ("  led by blanks", "\\  led by blanks"),
        ("pässword 🔑", "p\\u00e4ssword \\ud83d\\udd11"),
    ],
)
def test_a_property_survives_javas_file_format(value: str, written: str) -> None:
    assert render_properties({"key": value}) == f"key={written}\n"
