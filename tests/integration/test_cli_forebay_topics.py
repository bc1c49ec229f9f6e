"""`forebay topics`, and what all commands share: settings, errors, exit codes."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stubs leave these names out
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from forebay_sandbox.kafka.local import free_port
from harness.forebay_command import ForebayCommand
from harness.producer_pool import ProducerPool


def test_topics_are_created_once_and_can_be_used_at_once(unmade_producer_pool: ProducerPool) -> None:
    pool = unmade_producer_pool
    first = pool.forebay.run("topics", "create", "--partitions", "5", "--output", "json")
    assert (first.code, first.err) == (0, "")
    specs = {spec.name: spec for spec in pool.topics.specs(partitions=5, replication=1)}
    assert {record["topic"]: record["partitions"] for record in first.records} == {
        name: spec.partitions for name, spec in specs.items()
    }
    assert {(record["state"], record["replication"]) for record in first.records} == {("created", 1)}
    assert all(record["drift"] == [] for record in first.records)
    with pool.producer() as producer:
        producer.submit({"biz_type": "x", "payload": {}})
    second = pool.forebay.run("topics", "create", "--output", "json")
    assert (second.code, second.err) == (0, "")
    assert {record["state"] for record in second.records} == {"exists"}
    assert all(record["drift"] == [] for record in second.records)


def test_only_what_is_missing_is_created(unmade_producer_pool: ProducerPool) -> None:
    pool = unmade_producer_pool
    pool.kafka.create_topic(pool.topics.results, partitions=1)
    records = {record["topic"]: record for record in pool.forebay.run("topics", "create", "--output", "json").records}
    assert records[pool.topics.results]["state"] == "exists"
    assert records[pool.topics.audit]["state"] == "created"
    drift = {one["setting"]: (one["actual"], one["wanted"]) for one in records[pool.topics.results]["drift"]}
    assert drift["partitions"] == ("1", "12")
    assert drift["message.timestamp.type"] == ("CreateTime", "LogAppendTime")


def test_drift_is_shown_and_left_as_it_is(producer_pool: ProducerPool) -> None:
    pool = producer_pool
    topic = pool.topics.results
    entry = ConfigEntry("retention.ms", "60000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = pool.kafka.admin()
    admin.incremental_alter_configs([resource])[resource].result(30)
    shown = pool.forebay.run("topics", "create", "--partitions", "4")
    assert shown.code == 0
    [line] = [line for line in shown.out.splitlines() if line.startswith(topic)]
    assert "partitions is 3, should be 4; " in line
    assert "retention.ms is 60000, should be 604800000" in line
    assert "warning: " in shown.err
    assert "nothing was changed" in shown.err
    described = pool.forebay.run("topics", "describe", "--output", "json")
    assert described.code == 0
    [record] = [record for record in described.records if record["topic"] == topic]
    assert record["drift"] == [{"setting": "retention.ms", "actual": "60000", "wanted": "604800000"}]


def test_describe_shows_settings_and_records(producer_pool: ProducerPool) -> None:
    pool = producer_pool
    with pool.producer() as producer:
        producer.submit_batch([{"biz_type": "x", "priority": "high", "payload": {}}] * 7)
    described = pool.forebay.run("topics", "describe", "--output", "json")
    assert described.code == 0
    records = {record["topic"]: record for record in described.records}
    assert len(records) == len(pool.topics.specs(partitions=3, replication=1))
    high = records["forebay." + pool.name + ".requests.high"]
    assert (high["state"], high["partitions"], high["replication"], high["records"]) == ("exists", 3, 1, 7)
    assert high["settings"]["max.message.bytes"] == "8388608"
    assert records[pool.topics.results]["records"] == 0


def test_describe_names_what_is_missing_and_exits_1(unmade_producer_pool: ProducerPool) -> None:
    pool = unmade_producer_pool
    described = pool.forebay.run("topics", "describe", "--output", "json")
    assert described.code == 1
    assert {record["state"] for record in described.records} == {"missing"}
    assert pool.topics.results in described.err
    assert f"forebay topics create --pool {pool.name}" in described.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--partitions", "0"), "error: partitions: is 0; give 1 to 10000\n"),
        (("--replication", "3"), "error: --replication: is 3, more than there are brokers; give less"),
        (("--pool", "a b"), "error: --pool: is 'a b'"),
        (
            ("--kafka-properties", "/nowhere"),
            "error: --kafka-properties / FOREBAY_KAFKA_PROPERTIES: /nowhere: No such file",
        ),
        (("--unknown",), "No such option"),
    ],
)
def test_bad_input_is_named_and_exits_2(
    unmade_producer_pool: ProducerPool, arguments: tuple[str, ...], message: str
) -> None:
    done = unmade_producer_pool.forebay.run("topics", "create", *arguments)
    assert message in done.err
    assert (done.code, done.out) == (2, "")


def test_a_misspelt_variable_is_refused() -> None:
    forebay = ForebayCommand(bootstrap_servers="127.0.0.1:1", pool="p", FOREBAY_POLL="x")
    done = forebay.run("topics", "create")
    assert (done.code, done.err) == (2, "error: FOREBAY_POLL: is no setting; did you mean FOREBAY_POOL?\n")


def test_flag_beats_environment_beats_file(producer_pool: ProducerPool, tmp_path: Path) -> None:
    config = tmp_path / "forebay.toml"
    config.write_text('pool = "from-the-file"\nlog_level = "error"\n')
    environment = producer_pool.forebay.run("topics", "describe", "--config", config)
    assert environment.code == 0
    flag = producer_pool.forebay.run("topics", "describe", "--config", config, "--pool", "from-the-flag")
    assert flag.code == 1
    assert "forebay.from-the-flag.results" in flag.err


def test_an_unreachable_broker_exits_3_in_ten_seconds_with_one_line() -> None:
    server = f"127.0.0.1:{free_port()}"
    forebay = ForebayCommand(bootstrap_servers=server, pool="p")
    commands = (
        ("topics", "create"),
        ("topics", "describe"),
        ("submit", "-"),
        ("results",),
        ("backlog",),
        ("dead-letters", "list"),
    )
    started = time.monotonic()
    with ExitStack() as stack:
        for process in [stack.enter_context(forebay.running(*arguments)) for arguments in commands]:
            out, raw = process.communicate(b"{}\n", timeout=60)
            err = raw.decode()
            assert (process.returncode, out) == (3, b"")
            assert err.startswith(f"error: no broker answered at {server} while ")
            assert "FOREBAY_BOOTSTRAP_SERVERS" in err
            assert err.count("\n") == 1
    assert time.monotonic() - started < 40


@pytest.mark.parametrize("arguments", [("submit", "-"), ("results",), ("backlog",)])
def test_missing_topics_are_named_with_the_command_that_makes_them(
    unmade_producer_pool: ProducerPool, arguments: tuple[str, ...]
) -> None:
    pool = unmade_producer_pool
    done = pool.forebay.run(*arguments, stdin=b'{"messages":[]}\n')
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("error: missing topic forebay." + pool.name)
    assert done.err.endswith(f"create it with: forebay topics create --pool {pool.name}\n")


def test_help_is_given_for_every_command() -> None:
    forebay = ForebayCommand(bootstrap_servers="127.0.0.1:1", pool="p")
    for arguments in (("topics", "create"), ("topics", "describe"), ("submit",), ("results",), ("backlog",)):
        done = forebay.run(*arguments, "--help")
        assert (done.code, done.err) == (0, "")
        assert " ".join(("Usage: forebay", *arguments)) in done.out
