"""The sandbox's Kafka is a real one: it keeps what it acknowledged, and breaks as told."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import KafkaError, KafkaException

from forebay_sandbox.errors import BrokerStartError, PortTakenError, SandboxError
from forebay_sandbox.kafka import local as kafka_module
from forebay_sandbox.kafka.access import KafkaAccess
from forebay_sandbox.kafka.local import LocalKafka, free_port, running_kafka
from forebay_sandbox.kafka.spec import BrokerSpec, ClusterSpec, Listener
from forebay_sandbox.kafka.tools import console_producer, run_tool
from forebay_sandbox.process import processes_of
from forebay_schemas.contract.topics import LATER_BYTES_MAX
from harness.records import LONG_SECONDS, one_broker, plain_producer, produce, values_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forebay_sandbox.testing.pytest_plugin import NewKafka


def test_what_is_acknowledged_can_be_read_in_order(kafka: KafkaAccess) -> None:
    topic = kafka.create_topic(partitions=3)
    producer = plain_producer(kafka.bootstrap_servers)
    for number in range(300):
        producer.produce(topic, str(number).encode(), partition=number % 3)
    producer.flush(LONG_SECONDS)

    numbers = [int(value or b"") for value in values_of(kafka, topic)]
    assert numbers == [*range(0, 300, 3), *range(1, 300, 3), *range(2, 300, 3)]


def test_an_empty_topic_reads_as_nothing(kafka: KafkaAccess) -> None:
    assert kafka.read_all(kafka.create_topic(partitions=2)) == []


def test_the_largest_record_of_the_contract_fits(kafka: KafkaAccess) -> None:
    topic = kafka.create_topic(config={"max.message.bytes": str(LATER_BYTES_MAX)})
    value = os.urandom(LATER_BYTES_MAX - 1024)
    producer = plain_producer(kafka.bootstrap_servers, message_max_bytes=LATER_BYTES_MAX)

    assert produce(producer, topic, value) is None
    assert values_of(kafka, topic) == [value]


def test_a_topic_is_not_made_by_writing_to_it(kafka: KafkaAccess) -> None:
    producer = plain_producer(kafka.bootstrap_servers, topic_metadata_propagation_max_ms=100)

    error = produce(producer, "never-made", b"x")
    assert error is not None
    assert error.code() in {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC}
    assert "never-made" not in kafka.admin().list_topics(timeout=LONG_SECONDS).topics


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
    producer = plain_producer(trio.bootstrap_servers)
    broker = trio.brokers[1]
    ports = dict(broker.ports)
    assert produce(producer, topic, b"before") is None

    broker.kill()
    assert broker.pid is None
    assert all(produce(producer, topic, f"while {i}".encode()) is None for i in range(10))
    broker.start()

    assert broker.ports == ports
    assert sorted(values_of(trio, topic)) == sorted([b"before", *(f"while {i}".encode() for i in range(10))])  # type: ignore[type-var]


def test_a_broker_that_is_paused_answers_again_after_it_is_resumed(trio: LocalKafka) -> None:
    broker = trio.brokers[2]
    broker.pause()
    with pytest.raises(KafkaException):
        one_broker(broker.ports["DIRECT"]).admin().list_topics(timeout=1)
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

    with pytest.raises(SandboxError, match="broker 1 is already running"):
        broker.start()


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
        producer = plain_producer(cluster.bootstrap_of("SASL"), sasl_username=user, sasl_password=password, **settings)
        return produce(producer, topic, user.encode())

    assert outcome("writer", "pässword") is None
    refused = outcome("stranger", "other")
    assert refused is not None
    assert refused.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert outcome("writer", "wrong") is not None
    assert values_of(cluster, topic) == [b"writer"]


@pytest.mark.long
def test_a_picked_port_that_someone_takes_first_is_picked_again(
    new_kafka: NewKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        picks = iter([stranger.getsockname()[1]])
        monkeypatch.setattr(kafka_module, "free_port", lambda: next(picks, None) or free_port())
        cluster = new_kafka()

    assert next(picks, None) is None
    assert cluster.admin().list_topics(timeout=LONG_SECONDS).brokers


def test_a_port_that_was_asked_for_and_is_taken_is_named(new_kafka: NewKafka) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = stranger.getsockname()[1]
        with pytest.raises(PortTakenError, match=f"port {port} on 127.0.0.1 is in use"):
            new_kafka(ClusterSpec(brokers=(BrokerSpec(listeners=(Listener(name="DIRECT", port=port),)),)))


def test_a_broker_that_ends_beside_others_is_named_at_once(new_kafka: NewKafka) -> None:
    # Its storage can be formatted: the class is first looked for when the broker starts.
    bad = BrokerSpec(properties={"authorizer.class.name": "no.such.Authorizer"})
    with pytest.raises(BrokerStartError, match=r"(?s)broker 2 ended.*no\.such\.Authorizer"):
        new_kafka(ClusterSpec(brokers=(BrokerSpec(), bad)))


def test_a_broker_that_cannot_start_shows_its_last_words(new_kafka: NewKafka) -> None:
    with pytest.raises(BrokerStartError, match=r"(?s)num\.io\.threads"):
        new_kafka(ClusterSpec(properties={"num.io.threads": "none"}))


def test_a_cluster_that_is_given_is_used_and_left_alone(kafka: KafkaAccess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_BOOTSTRAP_SERVERS", kafka.bootstrap_servers)
    with running_kafka() as given:
        assert not isinstance(given, LocalKafka)
        topic = given.create_topic()

    assert topic in kafka.admin().list_topics(timeout=LONG_SECONDS).topics
