"""A broker that clients reach near and far: a second listener lies behind a link with a delay. Runs a broker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from forebay_sandbox.kafka.access import KafkaAccess
from forebay_sandbox.kafka.local import LocalKafka, free_port, local_kafka
from forebay_sandbox.kafka.spec import BrokerSpec, ClusterSpec, Listener
from forebay_sandbox.testing.proxy import Link, TcpProxy
from forebay_schemas.kafka.connection import KafkaConnection

_FAR = "FAR"


@dataclass(frozen=True, slots=True, kw_only=True)
class FarKafka:
    """``near``: the broker without the link. ``far``: the same by way of the link, which delays each way."""

    near: LocalKafka
    far: KafkaAccess


@contextmanager
def far_kafka(*, delay_seconds: float, log_dir: Path) -> Iterator[FarKafka]:
    """A broker of its own, ended with the block."""
    port = free_port()
    with TcpProxy(target_port=port) as link:
        link.set(Link(delay_seconds=delay_seconds))
        listeners = (Listener(name="DIRECT"), Listener(name=_FAR, port=port, advertised_port=link.port))
        with local_kafka(ClusterSpec(brokers=(BrokerSpec(listeners=listeners),)), log_dir=log_dir) as cluster:
            connection = KafkaConnection(bootstrap_servers=cluster.bootstrap_of(_FAR), properties={})
            yield FarKafka(near=cluster, far=KafkaAccess(connection))
