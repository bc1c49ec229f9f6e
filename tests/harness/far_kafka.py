"""A broker that clients reach near and far: a second listener lies behind a proxy. Runs a broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from forebay_sandbox.kafka.access import KafkaAccess
from forebay_sandbox.kafka.local import LocalKafka, free_port, local_kafka
from forebay_sandbox.kafka.spec import BrokerSpec, ClusterSpec, Listener
from forebay_sandbox.testing.proxy import Link, TcpProxy
from forebay_schemas.kafka.connection import KafkaConnection

PROXIED = "PROXIED"


@dataclass(frozen=True, slots=True, kw_only=True)
class FarKafka:
    """``near``: the broker without the link. ``far``: the same by way of the link, which delays each way."""

    near: LocalKafka
    far: KafkaAccess


@contextmanager
def behind_proxy(make_kafka: Callable[[ClusterSpec], LocalKafka]) -> Iterator[tuple[LocalKafka, TcpProxy]]:
    """A broker whose second listener, `PROXIED`, is reached through the proxy only."""
    port = free_port()
    with TcpProxy(target_port=port) as proxy:
        listeners = (Listener(name="DIRECT"), Listener(name=PROXIED, port=port, advertised_port=proxy.port))
        yield make_kafka(ClusterSpec(brokers=(BrokerSpec(listeners=listeners),))), proxy


@contextmanager
def far_kafka(*, delay_seconds: float, log_dir: Path) -> Iterator[FarKafka]:
    """A broker of its own, ended with the block."""
    with ExitStack() as stack:
        cluster, link = stack.enter_context(
            behind_proxy(lambda spec: stack.enter_context(local_kafka(spec, log_dir=log_dir)))
        )
        link.set(Link(delay_seconds=delay_seconds))
        connection = KafkaConnection(bootstrap_servers=cluster.bootstrap_of(PROXIED), properties={})
        yield FarKafka(near=cluster, far=KafkaAccess(connection))
