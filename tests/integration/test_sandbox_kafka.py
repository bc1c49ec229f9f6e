"""The sandbox's Kafka is a real one: it keeps what it acknowledged, breaks as told, and goes when its owner goes."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from forebay_sandbox.errors import BrokerStartError, PortTakenError, SandboxError
from forebay_sandbox.kafka import local as kafka_module
from forebay_sandbox.kafka.access import KafkaAccess
from forebay_sandbox.kafka.local import LocalKafka, free_port, running_kafka
from forebay_sandbox.kafka.spec import BrokerSpec, ClusterSpec, Listener
from forebay_sandbox.kafka.tools import console_producer, run_tool
from forebay_sandbox.process import processes_of
from forebay_sandbox.testing.proxy import BLACK_HOLE, CUT, PASS, Link, TcpProxy
from forebay_schemas.contract.topics import LATER_BYTES_MAX
from forebay_schemas.kafka.clients import create_client
from forebay_schemas.kafka.connection import KafkaConnection

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from forebay_sandbox.testing.pytest_plugin import NewKafka

_COMMAND = [sys.executable, "-c", "from forebay_sandbox.cli import main; main()", "kafka"]
_LONG_SECONDS = 60.0


def _producer(bootstrap_servers: str, **settings: Any) -> Producer:
    config = {"bootstrap.servers": bootstrap_servers, "acks": "all", "linger.ms": 0}
    return create_client(Producer, config | {name.replace("_", "."): value for name, value in settings.items()})


def _produce(producer: Producer, topic: str, value: bytes) -> KafkaError | None:
    """Produce one record and wait for what becomes of it."""
    outcomes: list[KafkaError | None] = []
    producer.produce(topic, value, on_delivery=lambda error, _message: outcomes.append(error))
    producer.flush(_LONG_SECONDS)
    assert outcomes, "no delivery report"
    return outcomes[0]


def _values(access: KafkaAccess, topic: str) -> list[bytes | None]:
    return [message.value() for message in access.read_all(topic)]


def _wait(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _LONG_SECONDS
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def test_what_is_acknowledged_can_be_read_in_order(kafka: KafkaAccess) -> None:
    topic = kafka.create_topic(partitions=3)
    producer = _producer(kafka.bootstrap_servers)
    for number in range(300):
        producer.produce(topic, str(number).encode(), partition=number % 3)
    producer.flush(_LONG_SECONDS)

    numbers = [int(value or b"") for value in _values(kafka, topic)]
    assert numbers == [*range(0, 300, 3), *range(1, 300, 3), *range(2, 300, 3)]


def test_an_empty_topic_reads_as_nothing(kafka: KafkaAccess) -> None:
    assert kafka.read_all(kafka.create_topic(partitions=2)) == []


def test_the_largest_record_of_the_contract_fits(kafka: KafkaAccess) -> None:
    topic = kafka.create_topic(config={"max.message.bytes": str(LATER_BYTES_MAX)})
    value = os.urandom(LATER_BYTES_MAX - 1024)
    producer = _producer(kafka.bootstrap_servers, message_max_bytes=LATER_BYTES_MAX)

    assert _produce(producer, topic, value) is None
    assert _values(kafka, topic) == [value]


def test_a_topic_is_not_made_by_writing_to_it(kafka: KafkaAccess) -> None:
    producer = _producer(kafka.bootstrap_servers, topic_metadata_propagation_max_ms=100)

    error = _produce(producer, "never-made", b"x")
    assert error is not None
    assert error.code() in {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC}
    assert "never-made" not in kafka.admin().list_topics(timeout=_LONG_SECONDS).topics


@pytest.mark.long
def test_kafkas_own_console_tools_run(kafka: KafkaAccess) -> None:
    topic = kafka.create_topic()
    lines = ['{"request_id": "1"}', '{"request_id": "ü"}']
    console_producer(topic, lines, bootstrap_servers=kafka.bootstrap_servers)

    messages = kafka.read_all(topic)
    assert [message.value() for message in messages] == [line.encode() for line in lines]
    assert [(message.key(), message.headers()) for message in messages] == [(None, None), (None, None)]
    found = run_tool("get-offsets", ["--topic", topic], bootstrap_servers=kafka.bootstrap_servers)
    assert found.strip() == f"{topic}:0:2"


def test_a_failing_tool_says_why(kafka: KafkaAccess) -> None:
    with pytest.raises(SandboxError, match=r"(?s)topics ended with status 1.*does not exist"):
        run_tool("topics", ["--describe", "--topic", "nowhere"], bootstrap_servers=kafka.bootstrap_servers)


@pytest.fixture(scope="module")
def trio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKafka]:
    """Three brokers, one quorum."""
    spec = ClusterSpec(brokers=(BrokerSpec(),) * 3)
    with kafka_module.local_kafka(spec, log_dir=tmp_path_factory.mktemp("trio-log")) as cluster:
        yield cluster


@pytest.mark.long
def test_three_brokers_lose_nothing_when_one_is_killed_and_comes_back(trio: LocalKafka) -> None:
    topic = trio.create_topic(partitions=3, config={"min.insync.replicas": "2"})
    producer = _producer(trio.bootstrap_servers)
    broker = trio.brokers[1]
    ports = dict(broker.ports)
    assert _produce(producer, topic, b"before") is None

    broker.kill()
    assert broker.pid is None
    assert all(_produce(producer, topic, f"while {i}".encode()) is None for i in range(10))
    broker.start()

    assert broker.ports == ports
    assert sorted(_values(trio, topic)) == sorted([b"before", *(f"while {i}".encode() for i in range(10))])  # type: ignore[type-var]


def test_a_broker_that_is_paused_answers_again_after_it_is_resumed(trio: LocalKafka) -> None:
    broker = trio.brokers[2]
    broker.pause()
    with pytest.raises(KafkaException):
        _only(broker.ports["DIRECT"]).admin().list_topics(timeout=1)
    broker.resume()

    broker.wait_ready(beside=trio.brokers)


@pytest.mark.long
def test_a_paused_broker_can_be_stopped_and_started_tidily(trio: LocalKafka) -> None:
    broker = trio.brokers[0]
    pid = broker.pid
    broker.pause()
    broker.stop()
    assert pid not in {process.pid for process in processes_of(trio.token)}
    broker.start()

    with pytest.raises(SandboxError, match="broker 1 runs already"):
        broker.start()


def _only(port: int) -> KafkaAccess:
    return KafkaAccess(KafkaConnection(bootstrap_servers=f"127.0.0.1:{port}", properties={}))


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


@pytest.mark.long
def test_brokers_take_any_properties_such_as_passwords_and_acls(new_kafka: NewKafka) -> None:
    listeners = (Listener(name="DIRECT"), Listener(name="SASL", protocol="SASL_PLAINTEXT"))
    jaas = (
        'org.apache.kafka.common.security.plain.PlainLoginModule required user_writer="pässword" user_stranger="other";'
    )
    cluster = new_kafka(
        ClusterSpec(
            brokers=(BrokerSpec(listeners=listeners),),
            properties={
                "sasl.enabled.mechanisms": "PLAIN",
                "listener.name.sasl.plain.sasl.jaas.config": jaas,
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "super.users": "User:ANONYMOUS;User:writer",
            },
        )
    )
    topic = cluster.create_topic()

    def outcome(user: str, password: str) -> KafkaError | None:
        settings = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN", "message_timeout_ms": 3000}
        producer = _producer(cluster.bootstrap_of("SASL"), sasl_username=user, sasl_password=password, **settings)
        return _produce(producer, topic, user.encode())

    assert outcome("writer", "pässword") is None
    refused = outcome("stranger", "other")
    assert refused is not None
    assert refused.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert outcome("writer", "wrong") is not None
    assert _values(cluster, topic) == [b"writer"]


@pytest.mark.long
def test_a_picked_port_that_someone_takes_first_is_picked_again(
    new_kafka: NewKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        picks = iter([stranger.getsockname()[1]])
        monkeypatch.setattr(kafka_module, "free_port", lambda: next(picks, None) or free_port())
        cluster = new_kafka()

    assert next(picks, None) is None
    assert cluster.admin().list_topics(timeout=_LONG_SECONDS).brokers


def test_a_port_that_was_asked_for_and_is_taken_is_named(new_kafka: NewKafka) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = stranger.getsockname()[1]
        with pytest.raises(PortTakenError, match=f"port {port} on 127.0.0.1 is in use"):
            new_kafka(ClusterSpec(brokers=(BrokerSpec(listeners=(Listener(name="DIRECT", port=port),)),)))


def test_a_broker_that_ends_beside_others_is_named_at_once(new_kafka: NewKafka) -> None:
    bad = BrokerSpec(properties={"num.io.threads": "none"})
    with pytest.raises(BrokerStartError, match=r"(?s)broker 2 ended.*num\.io\.threads"):
        new_kafka(ClusterSpec(brokers=(BrokerSpec(), bad)))


def test_a_broker_that_cannot_start_shows_its_last_words(new_kafka: NewKafka) -> None:
    with pytest.raises(BrokerStartError, match=r"(?s)num\.io\.threads"):
        new_kafka(ClusterSpec(properties={"num.io.threads": "none"}))


def test_a_cluster_that_is_given_is_used_and_left_alone(kafka: KafkaAccess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_BOOTSTRAP_SERVERS", kafka.bootstrap_servers)
    with running_kafka() as given:
        assert not isinstance(given, LocalKafka)
        topic = given.create_topic()

    assert topic in kafka.admin().list_topics(timeout=_LONG_SECONDS).topics


_OWNER = """
import sys, time
from forebay_sandbox.kafka.local import local_kafka
with local_kafka() as cluster:
    print(cluster.token, cluster.data_dir, flush=True)
    time.sleep(600)
"""


@pytest.mark.long
def test_a_killed_owner_leaves_no_broker_and_no_data_even_if_the_broker_is_paused() -> None:
    with subprocess.Popen([sys.executable, "-c", _OWNER], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        token, data_dir = owner.stdout.readline().split()
        assert Path(data_dir).is_dir()
        (broker,) = processes_of(token)
        broker.suspend()
        owner.kill()

    _wait(lambda: not processes_of(token), "the broker is killed")
    _wait(lambda: not Path(data_dir).exists(), "its data is deleted")


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Callable[..., subprocess.CompletedProcess[str]]]:
    """Runs `forebay-sandbox kafka` with arguments in a folder of its own; at the end nothing of it is left."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}

    def run(*args: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*_COMMAND, *args],
            cwd=tmp_path,
            env=environment,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    with ExitStack() as stack:
        stack.callback(run, "down", "--delete")
        yield run


@pytest.mark.long
def test_a_kafka_that_is_up_outlives_the_command_and_keeps_its_data(
    service: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    nothing = service("status")
    assert nothing.returncode == 1
    assert nothing.stderr.startswith(f"looked in {tmp_path / '.sandbox/kafka'};")
    first = service("up", "--port", "0")
    assert (first.returncode, first.stderr) == (0, f"Kafka is up; logs and data: {tmp_path / '.sandbox/kafka'}\n")
    servers = first.stdout.strip()
    again = service("up", "--output", "json")
    assert again.returncode == 0
    assert json.loads(again.stdout)["started"] is False
    assert json.loads(again.stdout)["bootstrap_servers"] == servers

    topic = _only(int(servers.rpartition(":")[2])).create_topic()
    assert service("tool", "console-producer", "--topic", topic, stdin="kept\n").returncode == 0
    answer = service("status", "--output", "json")
    assert answer.returncode == 0
    (pid,) = json.loads(answer.stdout)["pids"]

    psutil.Process(pid).kill()
    _wait(lambda: service("status").returncode == 1, "the death is noticed")
    assert service("up", "--port", servers.rpartition(":")[2]).stdout.strip() == servers
    assert _values(_only(int(servers.rpartition(":")[2])), topic) == [b"kept"]

    assert service("down").stdout == "stopped\n"
    assert service("down").stdout.startswith(f"was not running; looked in {tmp_path / '.sandbox/kafka'}")
    assert (tmp_path / ".sandbox/kafka/broker-1.log").stat().st_size > 0
    assert service("down", "--delete").returncode == 0
    assert not (tmp_path / ".sandbox/kafka").exists()


def test_up_refuses_what_cannot_be(service: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = stranger.getsockname()[1]
        refused = service("up", "--port", str(port))
    assert refused.returncode == 1
    assert refused.stderr.startswith(f"forebay-sandbox: port {port} on 127.0.0.1 is in use")
    assert "--port" in refused.stderr

    refused = service("up", "--brokers", "2")
    assert refused.returncode == 2
    assert refused.stderr == "forebay-sandbox: --brokers: 2 is not possible; give 1 or 3\n"

    refused = service("tool", "topik")
    assert refused.returncode == 2
    assert "did you mean topics?" in refused.stderr


def test_a_folder_that_is_not_ours_is_not_deleted(
    service: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").touch()

    refused = service("down", "--delete", "--data-dir", "precious")

    assert refused.returncode == 2
    assert (tmp_path / "precious" / "file").exists()
