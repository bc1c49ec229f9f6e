"""`forebay results` and `forebay backlog`: what the topics hold, as figures."""

from __future__ import annotations

import json
import signal
import time

import pytest
from confluent_kafka import Consumer, TopicPartition

from forebay_schemas.contract.offsets_metadata import CommitMetadata, encode_metadata
from forebay_schemas.contract.reasons import Status
from forebay_schemas.contract.tiers import TIERS, Tier
from forebay_schemas.kafka.clients import create_client
from forebay_schemas.kafka.configs import reader_config
from harness.forebay_command import ForebayCommand
from harness.producer_pool import ProducerPool
from harness.written_results import result_of, write_records, write_results


@pytest.fixture
def ended(producer_pool: ProducerPool) -> ProducerPool:
    """A pool with five outcomes, one of them told twice, and a record that is none."""
    write_results(
        producer_pool,
        result_of("a", body={"choices": ["x" * 500]}, attempt=2),
        result_of("b", status=Status.EXPIRED, error="too late"),
        result_of("c"),
        result_of("a", status=Status.FAILED),
        result_of("d", status=Status.REJECTED),
        result_of("e"),
    )
    write_records(producer_pool, (b"f", b"no result"))
    return producer_pool


def test_results_gives_every_first_outcome_and_ends(ended: ProducerPool) -> None:
    done = ended.forebay.run("results", "--output", "json")
    assert done.code == 0
    records = {record["request_id"]: record for record in done.records}
    assert len(done.records) == len(records) == 5
    assert (records["a"]["status"], records["a"]["attempt"]) == ("completed", 2)
    assert records["a"]["body"] == {"choices": ["x" * 500]}
    assert set(records["b"]) >= {
        "request_id",
        "status",
        "reason",
        "attempt",
        "worker",
        "queue_seconds",
        "service_seconds",
        "prompt_tokens",
        "output_tokens",
        "finished_at",
        "body",
    }


def test_what_is_no_result_is_told_of_once_in_a_line(ended: ProducerPool) -> None:
    write_records(ended, (b"g", b"{}"), (b"h", None), (b"i", b"x" * 5000))
    done = ended.forebay.run("results", "--output", "json")
    assert len(done.records) == 5
    [line] = done.err.splitlines()
    assert line.startswith(f"left out {ended.topics.results}:")
    assert len(line) < 200


def test_a_stream_of_few_characters_gets_an_id_escaped(producer_pool: ProducerPool) -> None:
    write_results(producer_pool, result_of("ü-😀"))
    few = {"PYTHONIOENCODING": "ascii"}
    forebay = ForebayCommand(bootstrap_servers=producer_pool.kafka.bootstrap_servers, pool=producer_pool.name, **few)
    assert forebay.run("results", "--output", "json").records[0]["request_id"] == "ü-😀"
    assert r"\u00fc-\ud83d\ude00" in forebay.run("results").out
    c_locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    in_c = ForebayCommand(bootstrap_servers=producer_pool.kafka.bootstrap_servers, pool=producer_pool.name, **c_locale)
    assert in_c.run("results", "--id", "ü-😀").code == 0


def test_results_of_an_empty_topic_are_none(producer_pool: ProducerPool) -> None:
    done = producer_pool.forebay.run("results", "--output", "json")
    assert (done.code, done.out, done.err) == (0, "", "")


def test_results_can_be_narrowed(ended: ProducerPool) -> None:
    def ids(*arguments: str) -> list[str]:
        done = ended.forebay.run("results", "--output", "json", *arguments)
        assert done.code == 0, done.err
        return sorted(record["request_id"] for record in done.records)

    assert ids("--status", "expired", "--status", "rejected") == ["b", "d"]
    assert ids("--id", "c", "--id", "a", "--follow") == ["a", "c"]
    assert len(ids("--limit", "2", "--since", "1h")) == 2
    assert ids("--since", "2999-01-01T00:00:00Z") == []
    assert "body" not in ended.forebay.run("results", "--output", "json", "--no-body").records[0]


def test_an_id_without_outcome_exits_1(ended: ProducerPool) -> None:
    done = ended.forebay.run("results", "--id", "a", "--id", "z")
    assert done.code == 1
    assert done.err.endswith("error: no outcome yet of z\n")


def test_a_table_row_is_one_line_with_the_error_or_the_start_of_the_body(ended: ProducerPool) -> None:
    done = ended.forebay.run("results")
    header, *rows = done.out.splitlines()
    assert header.split()[:3] == ["request_id", "status", "reason"]
    found = {row.split()[0]: row for row in rows}
    assert set(found) == {"a", "b", "c", "d", "e"}
    assert found["b"].endswith("too late")
    assert found["a"].endswith("x...")
    assert len(found["a"]) < 300


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--since", "yesterday"), "error: --since: is 'yesterday'; give a time back from now (10m)"),
        (("--status", "done"), "Invalid value for '--status'"),
        (("--limit", "0"), "Invalid value for '--limit'"),
    ],
)
def test_bad_options_are_named(producer_pool: ProducerPool, arguments: tuple[str, ...], message: str) -> None:
    done = producer_pool.forebay.run("results", *arguments)
    assert message in done.err
    assert done.code == 2


def test_follow_goes_on_until_ctrl_c(ended: ProducerPool) -> None:
    with ended.forebay.running("results", "--follow", "--output", "json") as process:
        assert process.stdout is not None
        first = {json.loads(process.stdout.readline())["request_id"] for _ in range(5)}
        assert first == {"a", "b", "c", "d", "e"}
        write_results(ended, result_of("later"))
        assert json.loads(process.stdout.readline())["request_id"] == "later"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert out == b""
    assert b"Traceback" not in err


def commit(pool: ProducerPool, tier: Tier, *offsets: TopicPartition) -> None:
    config = reader_config(pool.kafka.connection, client_id="test") | {"group.id": pool.topics.group(tier)}
    consumer = create_client(Consumer, config)
    try:
        consumer.commit(offsets=list(offsets), asynchronous=False)
    finally:
        consumer.close()


def test_backlog_counts_what_is_neither_committed_nor_finished_beyond_it(producer_pool: ProducerPool) -> None:
    pool = producer_pool
    empty = pool.forebay.run("backlog", "--output", "json", "--interval", "0.1")
    assert empty.code == 0
    [record] = empty.records
    assert set(record["tiers"]) == set(TIERS)
    for figures in record["tiers"].values():
        assert figures == {"waiting": 0, "oldest_age_seconds": None, "in_per_second": 0.0, "out_per_second": 0.0}

    with pool.producer() as producer:
        # One key, so that all of a tier lie in one partition.
        first = producer.submit_batch([{"request_id": "k", "biz_type": "x", "payload": {}}] * 20, tier=Tier.HIGH)
        [place] = {(one.topic, one.partition) for one in first}  # type: ignore[union-attr]
        producer.submit_batch([{"biz_type": "x", "payload": {}}] * 30, tier=Tier.LOW)
    submitted_at = time.time()
    finished = CommitMetadata(finished=((9, 2), (15, 1)), running=((8, 0),))
    commit(pool, Tier.HIGH, TopicPartition(*place, 8, encode_metadata(8, finished)))
    [record] = pool.forebay.run("backlog", "--output", "json", "--interval", "0.1").records
    waiting = {tier: figures["waiting"] for tier, figures in record["tiers"].items()}
    assert waiting == {"high": 20 - 8 - 3, "mid": 0, "low": 30}
    for tier in ("high", "low"):
        age = record["tiers"][tier]["oldest_age_seconds"]
        assert 0 <= age <= time.time() - submitted_at + 60
    table = pool.forebay.run("backlog", "--interval", "0.1").out.splitlines()
    assert [line.split()[:2] for line in table] == [["tier", "waiting"], ["high", "9"], ["mid", "0"], ["low", "30"]]

    commit(pool, Tier.HIGH, TopicPartition(*place, 20, "not ours"))
    [record] = pool.forebay.run("backlog", "--output", "json", "--interval", "0.1").records
    assert record["tiers"]["high"]["waiting"] == 0
    assert record["tiers"]["high"]["oldest_age_seconds"] is None


def test_backlog_watches_the_rates_and_the_age(producer_pool: ProducerPool) -> None:
    pool = producer_pool
    with pool.forebay.running("backlog", "--watch", "--output", "json", "--interval", "0.3") as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["tiers"]["mid"]["waiting"] == 0
        with pool.producer() as producer:
            producer.submit_batch([{"biz_type": "x", "payload": {}}] * 300)
        came = 0.0
        ages: list[float] = []
        while came < 299 or len(ages) < 3:
            record = json.loads(process.stdout.readline())
            mid = record["tiers"]["mid"]
            came += mid["in_per_second"] * record["interval_seconds"]
            if mid["waiting"]:
                ages.append(mid["oldest_age_seconds"])
        assert came == pytest.approx(300, rel=0.05)
        assert ages == sorted(ages)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert b"Traceback" not in err


def test_a_bad_interval_is_named(producer_pool: ProducerPool) -> None:
    done = producer_pool.forebay.run("backlog", "--interval", "never")
    assert (done.code, done.err) == (
        2,
        "error: --interval: is 'never'; give seconds, or a number with ms, s, m, h or d: 5s, 2m\n",
    )
