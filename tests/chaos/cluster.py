"""Three brokers, each with a listener of its own for every worker slot, behind a proxy. Starts JVMs and proxies."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.cimpl import NewTopic

from chaos.facts import RunError
from chaos.plan import BROKERS, SLOTS
from forebay_sandbox.kafka.access import KafkaAccess
from forebay_sandbox.kafka.local import LocalKafka, free_port, local_kafka
from forebay_sandbox.kafka.spec import BrokerSpec, ClusterSpec, Listener
from forebay_sandbox.testing.proxy import Link, TcpProxy
from forebay_schemas.contract.topics import Pool

_ANSWER_SECONDS_MAX = 60.0
_IN_SYNC_SECONDS_MAX = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """``proxies``: by slot and broker, each from 1."""

    kafka: LocalKafka
    proxies: dict[tuple[int, int], TcpProxy]

    def servers_of(self, slot: int) -> str:
        """Bootstrap servers for the workers of a slot."""
        return self.kafka.bootstrap_of(_listener(slot))

    def set_link(self, link: Link, *, slot: int | None, broker: int | None) -> None:
        """Changes these links; None: of every slot, to every broker."""
        for (of_slot, of_broker), proxy in self.proxies.items():
            if slot in (None, of_slot) and broker in (None, of_broker):
                proxy.set(link)

    def wait_in_sync(self) -> None:
        """Returns when every partition has all its replicas in sync again, as before a broker left."""
        admin = self.kafka.admin()
        deadline = time.monotonic() + _IN_SYNC_SECONDS_MAX
        while time.monotonic() < deadline:
            with suppress(KafkaException):
                topics = admin.list_topics(timeout=5).topics.values()
                if all(
                    len(partition.isrs) == len(partition.replicas)
                    for topic in topics
                    for partition in topic.partitions.values()
                ):
                    return
            time.sleep(0.2)
        raise RunError(f"the replicas are not in sync within {_IN_SYNC_SECONDS_MAX:.0f} s")


def create_topics(kafka: KafkaAccess, pool: Pool, *, partitions: int, replication: int) -> None:
    """All topics of a pool."""
    admin = kafka.admin()  # must outlive what it was asked
    made = admin.create_topics(
        [
            NewTopic(spec.name, spec.partitions, spec.replication, config=spec.config)
            for spec in pool.specs(partitions=partitions, replication=replication)
        ]
    )
    for future in made.values():
        future.result(_ANSWER_SECONDS_MAX)


@contextmanager
def running_cluster(log_dir: Path) -> Iterator[Cluster]:
    """Ended with the block, and with this process however it ends."""
    with ExitStack() as stack:
        proxies = {}
        brokers = []
        for broker in range(1, BROKERS + 1):
            listeners = [Listener(name="DIRECT")]
            for slot in range(1, SLOTS + 1):
                port = free_port()
                proxy = stack.enter_context(TcpProxy(target_port=port))
                proxies[slot, broker] = proxy
                listeners.append(Listener(name=_listener(slot), port=port, advertised_port=proxy.port))
            # Two network threads for each of five listeners are too many for nothing to do.
            brokers.append(BrokerSpec(listeners=tuple(listeners), properties={"num.network.threads": "1"}))
        kafka = stack.enter_context(local_kafka(ClusterSpec(brokers=tuple(brokers), heap_mib=384), log_dir=log_dir))
        yield Cluster(kafka=kafka, proxies=proxies)


def _listener(slot: int) -> str:
    return f"SLOT{slot}"
