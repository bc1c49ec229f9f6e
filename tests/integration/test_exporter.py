"""`forebay exporter`: what waits in pools and who works there, whether a worker runs or not."""

from __future__ import annotations

import signal
import socket
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, TopicPartition
from prometheus_client.parser import text_string_to_metric_families

from forebay_producer.metrics import EXPORTER_METRICS
from forebay_schemas.contract.coordination import encode_capacity
from forebay_schemas.contract.offsets_metadata import CommitMetadata, encode_metadata
from forebay_schemas.contract.tiers import Tier
from harness.exporter_process import ExporterProcess, running_exporter
from harness.forebay_command import ForebayCommand
from harness.live_pool import LOG, LivePool, envelope
from harness.producer_pool import ProducerPool, unmade_pool
from harness.waiting import wait_until
from simulated.capacities import make_capacity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forebay_sandbox.kafka.access import KafkaAccess
    from forebay_sandbox.testing.pytest_plugin import NewKafka
    from harness.served import Served


def command(kafka: KafkaAccess, pool: str) -> ForebayCommand:
    return ForebayCommand(bootstrap_servers=kafka.bootstrap_servers, pool=pool)


def commit(pool: LivePool, tier: Tier, partition: int, offset: int, metadata: CommitMetadata) -> None:
    """Commits as a worker of the tier's group."""
    consumer = Consumer(
        {"bootstrap.servers": pool.kafka.bootstrap_servers, "group.id": pool.topics.group(tier), "logger": LOG}
    )
    text = encode_metadata(offset, metadata)
    consumer.commit(offsets=[TopicPartition(pool.topics.requests(tier), partition, offset, text)], asynchronous=False)
    consumer.close()


def says(pool: LivePool, worker: str, *, share: int, service_seconds: float | None, draining: bool = False) -> None:
    """Publishes a worker's capacity."""
    capacity = make_capacity(
        worker,
        limit_requests=8,
        share_requests=share,
        in_flight=share,
        wanted={Tier.HIGH: share},
        service_seconds=service_seconds,
        draining=draining,
    )
    pool.tell_workers(encode_capacity(capacity), key=worker.encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """One exporter of three pools, the last with a worker, and of one that has no topics yet."""

    one: LivePool
    other: LivePool
    worked: LivePool
    unmade: ProducerPool
    exporter: ExporterProcess

    def metric(self, name: str, pool: LivePool, **labels: str) -> float | None:
        return self.exporter.metric(name, pool=pool.name, **labels)


@pytest.fixture(scope="module")
def exported(kafka: KafkaAccess, session_served: Served) -> Iterator[Exported]:
    with ExitStack() as stack:
        one, other = (stack.enter_context(closing(LivePool(kafka, partitions=1))) for _ in range(2))
        unmade = unmade_pool(kafka)
        worked = session_served.pool
        names = one.name, other.name, worked.name, unmade.name
        exporter = stack.enter_context(running_exporter(command(kafka, "unused"), *names))
        wait_until("three pools that are read", lambda: sum(exporter.metrics("forebay_exporter_up")) == 3)
        yield Exported(one=one, other=other, worked=worked, unmade=unmade, exporter=exporter)


def test_it_shows_what_the_list_says(exported: Exported) -> None:
    families = [
        family
        for family in text_string_to_metric_families(exported.exporter.get("/metrics")[1])
        if family.name.startswith("forebay_")
    ]
    names = [f"{family.name}_total" if family.type == "counter" else family.name for family in families]
    assert names == [each.name for each in EXPORTER_METRICS]
    for each, family in zip(EXPORTER_METRICS, families, strict=True):
        assert family.type == each.kind.value
        assert all(set(sample.labels) == {"pool", *each.labels} for sample in family.samples)


def test_a_backlog_is_told_less_what_is_finished_beyond_the_commit_where_no_worker_runs(exported: Exported) -> None:
    pool = exported.one
    pool.submit(Tier.MID, *(envelope(f"mid-{number}") for number in range(10)))
    pool.submit(Tier.LOW, *(envelope(f"low-{number}") for number in range(3)))
    commit(pool, Tier.MID, 0, 2, CommitMetadata(finished=((4, 3),), running=((2, 0),)))
    wait_until(
        "the commit seen",
        lambda: (
            exported.metric("forebay_backlog_records", pool, tier="mid") == 5
            and exported.metric("forebay_backlog_records", pool, tier="low") == 3
        ),
    )
    assert exported.metric("forebay_enqueued_total", pool, tier="mid") == 10
    assert exported.metric("forebay_dequeued_total", pool, tier="mid") == 5
    assert exported.metric("forebay_partitions", pool, tier="mid") == 1
    age = exported.metric("forebay_oldest_age_seconds", pool, tier="mid")
    assert age is not None
    assert 0 < age < 120
    assert exported.metric("forebay_oldest_age_seconds", pool, tier="high") == 0
    assert exported.metric("forebay_backlog_records", exported.other, tier="mid") == 0
    # A commit that knows less takes nothing back from the counter.
    commit(pool, Tier.MID, 0, 2, CommitMetadata())
    wait_until("the backlog grown", lambda: exported.metric("forebay_backlog_records", pool, tier="mid") == 8)
    assert exported.metric("forebay_dequeued_total", pool, tier="mid") == 5


def test_workers_that_speak_make_a_rate_and_a_risk(exported: Exported) -> None:
    pool = exported.other
    pool.submit(Tier.HIGH, *(envelope(f"high-{number}") for number in range(12)))

    def spoken() -> bool:
        says(pool, "a", share=6, service_seconds=2.0)
        says(pool, "b", share=2, service_seconds=None)
        says(pool, "c", share=5, service_seconds=1.0, draining=True)
        return (
            exported.metric("forebay_workers", pool) == 3
            and exported.metric("forebay_backlog_records", pool, tier="high") == 12
        )

    wait_until("three workers heard", spoken)
    assert exported.metric("forebay_pool_limit_requests", pool) == 8
    assert exported.metric("forebay_pool_rate", pool) == 4.0
    assert exported.metric("forebay_backlog_wait_seconds", pool, tier="high") == 3.0
    assert exported.metric("forebay_allowed_wait_seconds", pool, tier="high") == 3.0
    assert exported.metric("forebay_deadline_risk_ratio", pool, tier="high") == 1.0
    # While high requests arrive mid may wait longer, but no longer than a request takes of its guaranteed share: 5 s.
    mid = exported.metric("forebay_deadline_risk_ratio", pool, tier="mid")
    assert mid is not None
    assert mid + 1e-9 >= 3 / 18
    assert mid <= 5 / 18 + 1e-9


def test_a_worker_is_heard_and_what_it_did_is_no_backlog(exported: Exported) -> None:
    pool = exported.worked
    pool.results(pool.submit(Tier.HIGH, *(envelope(f"exported-{number}") for number in range(5))))
    wait_until("the worker heard", lambda: exported.metric("forebay_workers", pool) == 1)
    assert exported.metric("forebay_pool_limit_requests", pool) == 4
    wait_until("its pace", lambda: exported.metric("forebay_pool_rate", pool))
    wait_until("all done", lambda: exported.metric("forebay_backlog_records", pool, tier="high") == 0)
    dequeued, enqueued = (
        exported.metric(f"forebay_{way}_total", pool, tier="high") for way in ("dequeued", "enqueued")
    )
    assert dequeued == enqueued
    assert exported.metric("forebay_deadline_risk_ratio", pool, tier="high") == 0


def test_a_pool_without_topics_is_named_and_keeps_nothing_from_the_others(exported: Exported) -> None:
    exporter, unmade = exported.exporter, exported.unmade
    assert exporter.metric("forebay_exporter_up", pool=unmade.name) == 0
    assert exporter.metric("forebay_exporter_age_seconds", pool=unmade.name) is None
    status, said = exporter.get("/readyz")
    assert status == 503
    assert f"pool {unmade.name}: missing topic " in said
    assert "forebay topics create" in said
    assert exported.one.name not in said
    assert exporter.get("/livez") == (200, "ok\n")
    assert unmade.forebay.run("topics", "create", "--partitions", "1", "--replication", "1").code == 0
    wait_until("readiness", lambda: exporter.get("/readyz")[0] == 200)
    assert exporter.metric("forebay_exporter_up", pool=unmade.name) == 1


def test_sigterm_ends_it_at_once(kafka: KafkaAccess) -> None:
    with running_exporter(command(kafka, "no-such-pool")) as exporter:
        assert exporter.get("/no-such-page")[0] == 404
        exporter.process.send_signal(signal.SIGTERM)
        assert exporter.process.wait(10) == 0
        assert exporter.process.stderr is not None
        assert "Traceback" not in exporter.process.stderr.read().decode()


def test_what_cannot_be_is_said_at_the_start(kafka: KafkaAccess) -> None:
    forebay = command(kafka, "any")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = forebay.run("exporter", "--host", "127.0.0.1", "--port", str(taken.getsockname()[1]))
    assert done.code == 2
    assert "FOREBAY_EXPORTER_PORT: cannot listen on" in done.err
    done = forebay.run("exporter", "--pool", "not a name")
    assert done.code == 2
    assert "pool: 'not a name' is no pool name" in done.err


@pytest.mark.long
def test_brokers_that_go_and_come_back_are_named_meanwhile(new_kafka: NewKafka) -> None:
    cluster = new_kafka()
    with (
        closing(LivePool(cluster, partitions=1)) as pool,
        running_exporter(command(cluster, pool.name)) as exporter,
    ):

        def up() -> float | None:
            return exporter.metric("forebay_exporter_up")

        wait_until("a pool that is read", lambda: up() == 1)
        cluster.brokers[0].stop()
        wait_until("a pool that is not", lambda: up() == 0)
        status, said = exporter.get("/readyz")
        assert status == 503
        assert f"pool {pool.name}: " in said
        assert exporter.get("/livez")[0] == 200
        cluster.brokers[0].start()
        wait_until("a pool that is read again", lambda: up() == 1)
        pool.submit(Tier.HIGH, envelope("after"))
        wait_until("it", lambda: exporter.metric("forebay_backlog_records", tier="high") == 1)
        # Nobody was heard for 15 s: what waits waits for ever.
        wait_until("a risk", lambda: exporter.metric("forebay_deadline_risk_ratio", tier="high") == 100)
        assert exporter.metric("forebay_backlog_wait_seconds", tier="high") == float("inf")
