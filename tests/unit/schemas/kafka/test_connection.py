"""Kafka client settings: the properties file, what is fixed, what is hidden, and what people are told.

Makes real clients; the only broker is librdkafka's own mock, inside the process.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer

from forebay_schemas.contract.topics import LATER_BYTES_MAX, REQUEST_BYTES_MAX
from forebay_schemas.errors import (
    BrokerUnreachableError,
    ExitCode,
    KafkaFailedError,
    TopicMissingError,
    UsageError,
)
from forebay_schemas.kafka.clients import create_client, make_admin
from forebay_schemas.kafka.configs import READ_BY_ALL, consumer_config, producer_config, reader_config
from forebay_schemas.kafka.connection import KafkaConnection, check_bootstrap_servers
from forebay_schemas.kafka.errors import as_forebay_error
from forebay_schemas.kafka.metadata import require_topics
from forebay_schemas.kafka.permissions import Operation
from forebay_schemas.kafka.properties_file import PROPERTIES_FIELD, read_properties, redacted

NOBODY = "127.0.0.1:1"


def connection(**properties: str) -> KafkaConnection:
    named = {name.replace("_", "."): value for name, value in properties.items()}
    return KafkaConnection(bootstrap_servers=NOBODY, properties=named)


def write(folder: Path, text: str | bytes) -> Path:
    path = folder / "client.properties"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def refused(path: Path) -> UsageError:
    with pytest.raises(UsageError) as caught:
        read_properties(path)
    assert caught.value.field == PROPERTIES_FIELD
    assert caught.value.exit_code is ExitCode.USAGE
    return caught.value


def test_a_properties_file_is_read_line_by_line(tmp_path: Path) -> None:
    text = (
        "\ufeff# TLS\r\n"
        "security.protocol = SASL_SSL\r\n"
        "! also a comment\n\n"
        "  sasl.username=user=with=equals \n"
        "sasl.password=pa#ss\\word!\n"
        "ssl.endpoint.identification.algorithm="
    )
    assert read_properties(write(tmp_path, text)) == {
        "security.protocol": "SASL_SSL",
        "sasl.username": "user=with=equals",
        "sasl.password": "pa#ss\\word!",
        "ssl.endpoint.identification.algorithm": "",
    }
    assert read_properties(write(tmp_path, "")) == {}


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("hunter2", "is not name=value"),
        ("=hunter2", "is not name=value"),
        ("sasl.password: hunter2", "is not name=value"),
        ("sasl.password=hunter2\0more", "holds a control character"),
        ("sasl.password=a\tb", "holds a control character"),
        ("enable.auto.commit=true", "sets enable.auto.commit, which is fixed because offsets are committed only after"),
        ("auto.commit.enable=true", "which is fixed because"),
        ("acks=1", "sets acks, which is fixed because results must be on every in-sync replica"),
        ("group.id=hunter2", "which is fixed because the groups' names"),
        ("group.instance.id=a", "which is fixed because"),
        ("partitioner=random", "which is fixed because the same key"),
        ("message.max.bytes=1000", "which is fixed because the topics' size limits"),
        ("delivery.report.only.error=true", "which is fixed because"),
        ("enable.partition.eof=true", "which is fixed because"),
        ("allow.auto.create.topics=true", "which is fixed because"),
        (
            "partition.assignment.strategy=range",
            "which is fixed because partitions are assigned and revoked one by one",
        ),
        ("isolation.level=read_uncommitted", "which is fixed because requests of an aborted transaction must not run"),
        ("topic.blacklist=.*", "which is fixed because"),
        ("test.mock.num.brokers=3", "which is fixed because"),
        ("connections.max.idle.ms=5.4e+06", "sets connections.max.idle.ms to '5.4e+06', which is no whole number"),
        ("receive.message.max.bytes=1.34217728e+08", "which is no whole number"),
        ("session.timeout.ms=10s", "which is no whole number"),
        ("retries=many", "which is no whole number"),
        ("transactional.id=x", "which is fixed because"),
        ("error_cb=hunter2", "sets error_cb, which a file cannot"),
        ("logger=hunter2", "sets logger, which a file cannot"),
        ("default.topic.config=hunter2", "which a file cannot"),
        ("metadata.broker.list=a:1", "call it bootstrap.servers"),
        ("client.id=a", "sets client.id a second time"),
    ],
)
def test_a_line_that_will_not_do_is_named_and_its_value_is_not(tmp_path: Path, line: str, problem: str) -> None:
    path = write(tmp_path, f"# first\nclient.id=x\n{line}\nretries=3\n")
    error = refused(path)
    assert f"{path}:3 " in str(error)
    assert problem in str(error)
    assert "hunter2" not in str(error)


def test_a_secret_lies_in_a_file_of_its_own_and_is_read_anew_each_time(tmp_path: Path) -> None:
    secret, file = tmp_path / "password", tmp_path / "client.properties"
    file.write_text(f"sasl.username=alice\nsasl.password=${{directory:{tmp_path}:password}}\n")
    for held, value in (("first\n", "first"), (" a b=c ", " a b=c "), ("other\r\n", "other"), ("two\n\n", "two\n")):
        secret.write_bytes(held.encode())
        assert read_properties(file) == {"sasl.username": "alice", "sasl.password": value}


@pytest.mark.parametrize(
    ("reference", "problem"),
    [
        ("${directory:%s:absent}", "No such file or directory"),
        ("${directory:%s:}", "it is not ${directory:/a/folder:file}"),
        ("${directory:%s}", "it is not ${directory:/a/folder:file}"),
        ("${directory:%s:../secret}", "it is not ${directory:/a/folder:file}"),
        ("${directory:%s:large}", "it is too large for a secret"),
    ],
)
def test_a_secret_that_cannot_be_had_is_named_with_its_place(tmp_path: Path, reference: str, problem: str) -> None:
    (tmp_path / "large").write_bytes(b"s" * 65_537)
    file = tmp_path / "client.properties"
    value = reference % tmp_path
    file.write_text(f"# comment\nsasl.password={value}\n")
    with pytest.raises(UsageError) as caught:
        read_properties(file)
    assert f"{file}:2 takes sasl.password from {value}: {problem}" in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    assert "No such file" in str(refused(tmp_path / "absent"))
    assert "Is a directory" in str(refused(tmp_path))
    assert "is not UTF-8" in str(refused(write(tmp_path, b"sasl.password=\xff")))


SECRETS = {
    "sasl.password": "hunter2",
    "sasl.passwrod": "hunter2",
    "sasl.username": "hunter2",
    "ssl.key.password": "hunter2",
    "ssl.key.pem": "hunter2",
    "ssl.keystore.password": "hunter2",
    "sasl.oauthbearer.client.secret": "hunter2",
    "sasl.oauthbearer.config": "hunter2",
    "sasl.oauthbearer.assertion.private.key.passphrase": "hunter2",
    "sasl.jaas.config": "hunter2",
    "invented.later": "hunter2",
}


def test_only_what_is_known_to_be_harmless_is_ever_printed() -> None:
    shown = {"security.protocol": "SASL_SSL", "socket.timeout.ms": "5000", "ssl.ca.location": "/ca.pem", "debug": "all"}
    assert redacted(SECRETS | shown) == dict.fromkeys(SECRETS, "[hidden]") | shown
    text = repr(KafkaConnection(bootstrap_servers="a:1", properties=SECRETS | shown))
    assert "hunter2" not in text
    assert "a:1" in text
    assert "SASL_SSL" in text


def test_what_our_own_clients_set_is_fit_to_be_printed() -> None:
    for config in (
        producer_config(connection(), client_id="c", record_bytes_max=REQUEST_BYTES_MAX),
        consumer_config(connection(), client_id="c", group="g"),
        reader_config(connection(), client_id="c"),
    ):
        assert redacted(config) == {**config, "error_cb": "[hidden]"}


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("no.such.thing", "hunter2", 'No such configuration property: "no.such.thing"'),
        ("security.protocol", "SALS", 'Invalid value "SALS" for configuration property "security.protocol"'),
        ("socket.timeout.ms", "soon", "socket.timeout.ms"),
        ("socket.timeout.ms", "1", "outside allowed range"),
        ("key.serializer", "x", "No such configuration property"),
        ("ssl.keystore.type", "hunter2", ""),
    ],
)
def test_a_property_that_librdkafka_refuses_is_bad_usage(name: str, value: str, problem: str) -> None:
    with pytest.raises(UsageError) as caught:
        make_admin(KafkaConnection(bootstrap_servers=NOBODY, properties={name: value}), client_id="c")
    assert caught.value.field == PROPERTIES_FIELD
    assert problem in caught.value.problem
    assert "hunter2" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_makes_the_guarantees_true_cannot_be_changed_by_properties() -> None:
    hostile = connection(
        acks="1",
        enable_idempotence="false",
        enable_auto_commit="true",
        enable_auto_offset_store="true",
        auto_offset_reset="latest",
        group_id="other",
        partitioner="random",
        message_max_bytes="1",
        bootstrap_servers="elsewhere:1",
    )
    produces = producer_config(hostile, client_id="c", record_bytes_max=LATER_BYTES_MAX)
    assert produces["acks"] == "all"
    assert produces["enable.idempotence"] is True
    assert produces["partitioner"] == "murmur2_random"
    assert produces["message.max.bytes"] == LATER_BYTES_MAX
    consumes = consumer_config(hostile, client_id="c", group="g")
    assert consumes["group.id"] == "g"
    assert consumes["auto.offset.reset"] == "earliest"
    assert consumes["enable.auto.commit"] is consumes["enable.auto.offset.store"] is False
    assert reader_config(hostile, client_id="c")["enable.auto.commit"] is False
    for config in (produces, consumes):
        assert config["bootstrap.servers"] == NOBODY


def test_properties_change_everything_else() -> None:
    tuned = connection(linger_ms="50", compression_codec="zstd", session_timeout_ms="30000", client_rack="r1")
    assert producer_config(tuned, client_id="c", record_bytes_max=REQUEST_BYTES_MAX)["linger.ms"] == "50"
    assert consumer_config(tuned, client_id="c", group="g")["session.timeout.ms"] == "30000"
    assert reader_config(tuned, client_id="c")["client.rack"] == "r1"


def test_what_others_read_is_in_no_codec_that_they_may_lack_unless_the_properties_say_so() -> None:
    def codec(to: KafkaConnection) -> Any:
        config = producer_config(to, client_id="c", record_bytes_max=LATER_BYTES_MAX, compression=READ_BY_ALL)
        return config["compression.type"]

    assert codec(connection()) in ("none", "gzip")
    assert codec(connection(compression_type="zstd")) == "zstd"


@pytest.mark.parametrize("properties", [{}, {"group.protocol": "classic"}, {"group.protocol": "consumer"}])
def test_librdkafka_takes_every_config_of_ours(properties: dict[str, str]) -> None:
    to = KafkaConnection(bootstrap_servers=NOBODY, properties=properties)
    create_client(Producer, producer_config(to, client_id="c", record_bytes_max=REQUEST_BYTES_MAX))
    make_admin(to, client_id="c")
    for config in (consumer_config(to, client_id="c", group="g"), reader_config(to, client_id="c")):
        create_client(Consumer, config).close()


def test_the_consumer_protocol_leaves_sessions_and_assignment_to_the_broker() -> None:
    config = consumer_config(connection(group_protocol="CONSUMER"), client_id="c", group="g")
    assert not config.keys() & {"session.timeout.ms", "heartbeat.interval.ms", "partition.assignment.strategy"}


@pytest.mark.parametrize(
    ("given", "servers"),
    [
        ("127.0.0.1:9092", "127.0.0.1:9092"),
        (" a.b-c_d:1 ,  [::1]:65535", "a.b-c_d:1,[::1]:65535"),
    ],
)
def test_bootstrap_servers_are_host_and_port(given: str, servers: str) -> None:
    assert check_bootstrap_servers(given) == servers


@pytest.mark.parametrize(
    "given", ["", "a", "a:", ":1", "a:0", "a:65536", "a:1,", "a:1;b:2", "kafka://a:1", "a:1/x", "a b:1"]
)
def test_anything_else_is_refused(given: str) -> None:
    with pytest.raises(ValueError, match="is not host:port"):
        check_bootstrap_servers(given)


def test_an_unreachable_broker_and_a_refusal_are_told_apart() -> None:
    where = connection()
    gone = as_forebay_error(KafkaError(KafkaError._TRANSPORT), connection=where, doing="listing topics", needs=None)
    assert isinstance(gone, BrokerUnreachableError)
    assert gone.exit_code is ExitCode.UNREACHABLE
    assert NOBODY in str(gone)
    assert "FOREBAY_BOOTSTRAP_SERVERS" in str(gone)
    for code in (KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC):
        forgotten = as_forebay_error(KafkaError(code), connection=where, doing="reading x", needs=None, known=True)
        assert str(forgotten).startswith("no broker answered at ")
    refusal = as_forebay_error(
        KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED), connection=where, doing="reading", needs=None
    )
    assert isinstance(refusal, KafkaFailedError)
    assert refusal.exit_code is ExitCode.FAILED
    assert "while reading" in str(refusal)


def test_nobody_at_the_address_is_said_within_the_time_given() -> None:
    admin = make_admin(connection(), client_id="c")
    with pytest.raises(BrokerUnreachableError, match=f"no broker answered at {NOBODY} while listing topics"):
        require_topics(admin, ["a"], connection=connection(), pool="p", operation=Operation.READ, timeout_seconds=0.3)


@pytest.fixture
def mock_broker() -> Iterator[KafkaConnection]:
    config: dict[str, Any] = {"bootstrap.servers": NOBODY, "test.mock.num.brokers": 1}
    owner = create_client(Producer, config)
    owner.produce("there", b"makes the topic")
    assert owner.flush(10) == 0
    broker = next(iter(owner.list_topics(timeout=10).brokers.values()))
    yield KafkaConnection(bootstrap_servers=f"{broker.host}:{broker.port}", properties={})
    owner.purge()


def test_missing_topics_are_all_named_with_the_command_that_makes_them(mock_broker: KafkaConnection) -> None:
    admin = make_admin(mock_broker, client_id="c")
    assert require_topics(admin, ["there"], connection=mock_broker, pool="p", operation=Operation.READ).keys() == {
        "there"
    }
    with pytest.raises(TopicMissingError, match=r"missing topic absent, lost; create it with: .* --pool p$") as caught:
        require_topics(admin, ["lost", "there", "absent"], connection=mock_broker, pool="p", operation=Operation.READ)
    assert caught.value.topics == ["lost", "absent"]
