"""The specification of a local Kafka cluster, and the property files that follow from it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

HOST = "127.0.0.1"
# The largest records Forebay's topics accept are 8 MiB and 64 KiB; a batch adds a little around them.
RECORD_BYTES_MAX = 9 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """One address a broker listens on, always on 127.0.0.1.

    ``port`` 0: a free one is picked. ``advertised_port`` None: the port itself; give a proxy's port to have clients
    come through the proxy. ``protocol``: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL.
    """

    name: str
    port: int = 0
    advertised_port: int | None = None
    protocol: str = "PLAINTEXT"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSpec:
    """One broker, which is a controller as well. Its first listener is the one brokers use among themselves."""

    listeners: tuple[Listener, ...] = (Listener(name="DIRECT"),)
    controller_port: int = 0
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """A cluster: ``ClusterSpec(brokers=(BrokerSpec(),) * 3)`` is three brokers with nothing special.

    ``properties`` go to every broker and win over the defaults; a broker's own win over both. ``env`` is added to the
    brokers' environment (JAVA_TOOL_OPTIONS reaches the JVM). ``client_properties`` (librdkafka's) are what a client
    needs on the first listener when that is not PLAINTEXT. ``controller_protocol`` as of a listener.
    """

    brokers: tuple[BrokerSpec, ...] = (BrokerSpec(),)
    properties: Mapping[str, str] = field(default_factory=dict)
    heap_mib: int = 512
    env: Mapping[str, str] = field(default_factory=dict)
    client_properties: Mapping[str, str] = field(default_factory=dict)
    controller_protocol: str = "PLAINTEXT"


def with_ports(spec: ClusterSpec, pick: Callable[[], int]) -> ClusterSpec:
    """The same cluster with every port 0 replaced by one from ``pick``."""
    return replace(
        spec,
        brokers=tuple(
            replace(
                broker,
                listeners=tuple(replace(one, port=one.port or pick()) for one in broker.listeners),
                controller_port=broker.controller_port or pick(),
            )
            for broker in spec.brokers
        ),
    )


def broker_properties(spec: ClusterSpec, node_id: int, *, data_dir: Path) -> dict[str, str]:
    """The properties of broker ``node_id`` (1, 2, ...) of a cluster whose ports are all known."""
    broker = spec.brokers[node_id - 1]
    brokers = len(spec.brokers)
    replicas = str(min(3, brokers))
    min_isr = str(min(2, brokers))
    voters = ",".join(f"{i}@{HOST}:{each.controller_port}" for i, each in enumerate(spec.brokers, start=1))
    listeners = [f"{one.name}://{HOST}:{one.port}" for one in broker.listeners]
    advertised = [f"{one.name}://{HOST}:{one.advertised_port or one.port}" for one in broker.listeners]
    protocols = [f"{one.name}:{one.protocol}" for one in broker.listeners]
    return {
        "process.roles": "broker,controller",
        "node.id": str(node_id),
        "controller.quorum.voters": voters,
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": broker.listeners[0].name,
        "listeners": ",".join([*listeners, f"CONTROLLER://{HOST}:{broker.controller_port}"]),
        "advertised.listeners": ",".join(advertised),
        "listener.security.protocol.map": ",".join([*protocols, f"CONTROLLER:{spec.controller_protocol}"]),
        "log.dirs": str(data_dir),
        # As Forebay's deployables expect of a production cluster: a missing topic is an error.
        "auto.create.topics.enable": "false",
        "default.replication.factor": replicas,
        "message.max.bytes": str(RECORD_BYTES_MAX),
        "replica.fetch.max.bytes": str(RECORD_BYTES_MAX),
        "offsets.topic.num.partitions": "4",
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.num.partitions": "4",
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": min_isr,
        "share.coordinator.state.topic.num.partitions": "4",
        "share.coordinator.state.topic.replication.factor": replicas,
        "share.coordinator.state.topic.min.isr": min_isr,
        # A first join takes 10-60 ms instead of three seconds.
        "group.initial.rebalance.delay.ms": "0",
        # A broker that was killed may register again only when its old session is over: nine seconds by default.
        "broker.session.timeout.ms": "4000",
        # An idle broker takes a tenth of a core with these. By default it writes an empty record each half second, and
        # takes a quarter.
        "broker.heartbeat.interval.ms": "1000",
        "metadata.max.idle.interval.ms": "5000",
        # Deletes records soon after a retention of minutes.
        "log.retention.check.interval.ms": "10000",
        "log.initial.task.delay.ms": "5000",
        # Small machine, small broker: the cleaner alone would take 128 MiB of the heap.
        "log.cleaner.dedupe.buffer.size": str(16 * 1024 * 1024),
        "num.network.threads": "2",
        "num.io.threads": "4",
        **spec.properties,
        **broker.properties,
    }


def render_properties(properties: Mapping[str, str]) -> str:
    """The text of a Java property file, pure ASCII: Kafka reads such files as Latin-1."""
    return "".join(f"{key}={_escaped(value)}\n" for key, value in properties.items())


def _escaped(value: str) -> str:
    text = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    if text.startswith((" ", "\t", "\f")):
        text = "\\" + text
    units = text.encode("utf-16-be")
    codes = [int.from_bytes(units[i : i + 2], "big") for i in range(0, len(units), 2)]
    return "".join(chr(code) if code < 0x7F else f"\\u{code:04x}" for code in codes)
