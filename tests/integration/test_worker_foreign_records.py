"""Records that a stranger made: by schemas of a registry that anybody may write to, and larger than they seem."""

from __future__ import annotations

import base64
import io
import json
import random
from pathlib import Path
from typing import Any

import fastavro
import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType

from forebay_schemas.contract.headers import record_headers
from forebay_schemas.contract.reasons import Status
from forebay_schemas.contract.tiers import Tier
from forebay_schemas.formats.avro import latest_schema
from harness.fake_registry import fake_registry
from harness.live_pool import LOG, LivePool, envelope
from harness.waiting import wait_until
from harness.workers import NewWorker

HANDLER = "harness.handlers:obey"
MIB = 2**20
OURS: dict[str, Any] = json.loads(latest_schema().text)
NODE = {
    "type": "record",
    "name": "Node",
    "fields": [{"name": "label", "type": "string"}, {"name": "child", "type": ["null", "Node"]}],
}
META = {"type": "record", "name": "Meta", "namespace": "com.acme", "fields": [{"name": "unit", "type": "Unit"}]}
UNIT = {"type": "enum", "name": "Unit", "namespace": "com.acme", "symbols": ["A", "B"]}


def with_field(kind: Any) -> dict[str, Any]:
    return OURS | {"fields": [*OURS["fields"], {"name": "context", "type": kind}]}


def written(schema: Any, *named: Any, context: Any = None, **fields: Any) -> bytes:
    """The Avro of a request. ``named``: schemas that the schema refers to, first those that need no other."""
    known: dict[str, Any] = {}
    for each in named:
        fastavro.parse_schema(each, named_schemas=known)
    out = io.BytesIO()
    datum = {"request_id": "r", "biz_type": "b", "payload": b'{"do": "answer"}', "ttl_ms": 60_000, **fields}
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema, named_schemas=known), datum | {"context": context})
    return out.getvalue()


def framed(schema_id: int, value: bytes) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + value


def reason_of(letter: Any) -> str:
    return (dict(record_headers(letter))["forebay-reason"] or b"").decode()


def words_of(letter: Any) -> str:
    return (dict(record_headers(letter))["kafka_dlt-exception-message"] or b"").decode()


def test_what_schemas_of_others_wrote_is_read_or_refused_and_harms_nobody(
    pool: LivePool, new_worker: NewWorker
) -> None:
    """A value nested 20,000 deep ended each worker that met it; ten bytes of an array of nothing had no end."""
    empties = OURS | {
        "fields": [
            *OURS["fields"],
            {"name": "e", "type": {"type": "record", "name": "E", "fields": []}},
            {"name": "a", "type": {"type": "array", "items": "E"}},
        ]
    }
    recursive = with_field(["null", NODE])
    union: list[Any] = ["null", with_field(["null", "int"])]
    by_id: dict[int, dict[str, Any]] = {
        1: {"schema": json.dumps(recursive)},
        2: {"schema": json.dumps(empties)},
        3: {"schema": json.dumps(union)},
        4: {
            "schema": json.dumps(with_field(["null", "com.acme.Meta"])),
            "references": [{"name": "com.acme.Meta", "subject": "meta", "version": 3}],
        },
        5: {"schema": json.dumps(with_field({"type": "array", "items": ["null"]}))},
    }
    by_version: dict[tuple[str, int], dict[str, Any]] = {
        ("meta", 3): {
            "schema": json.dumps(META),
            "references": [{"name": "com.acme.Unit", "subject": "unit", "version": 1}],
        },
        ("unit", 1): {"schema": json.dumps(UNIT)},
    }
    plain = written(OURS, request_id="poison")
    deep = plain + (b"\x02\x02n" * 20_000) + b"\x00"
    endless = plain + b"\xfe" + b"\xff" * 8 + b"\x01\x00\x00"
    poisons = {
        framed(1, deep): "nested deeper than 64",
        framed(2, endless): "an array of items that take no bytes",
        framed(3, b"\x00"): "a value of type null, and not a record",
        framed(5, endless): "it breaks off",
    }
    with fake_registry(by_id=by_id, by_version=by_version) as url:
        pool.submit(Tier.MID, *(envelope(f"innocent-{number}", payload={"do": "answer"}) for number in range(3)))
        for poison in poisons:
            pool.send(Tier.LOW, poison)
        chain = {"label": "a", "child": {"label": "b", "child": None}}
        pool.send(Tier.LOW, framed(1, written(recursive, request_id="recursive", context=chain)))
        pool.send(Tier.LOW, framed(3, b"\x02" + written(union[1], request_id="union", context=7)))
        refers = written(with_field(["null", "com.acme.Meta"]), UNIT, META, request_id="refers", context={"unit": "B"})
        pool.send(Tier.LOW, framed(4, refers))
        worker = new_worker(pool, handler=HANDLER, schema_registry_url=url)
        good = [*(f"innocent-{number}" for number in range(3)), "recursive", "union", "refers"]
        results = pool.results(good)
        letters = {letter.value(): letter for letter in pool.dead_letters(len(poisons))}
        assert {result.status for result in results.values()} == {Status.COMPLETED}
        assert {reason_of(letter) for letter in letters.values()} == {"undecodable"}
        for poison, words in poisons.items():
            assert words in words_of(letters[poison])
        assert worker.get("/livez")[0] == 200


class Sender:
    """A foreign client that lets itself send what it likes."""

    def __init__(self, pool: LivePool, *, codec: str) -> None:
        self._pool = pool
        self._producer = Producer(
            {
                "bootstrap.servers": pool.kafka.bootstrap_servers,
                "message.max.bytes": 10**9,
                "compression.type": codec,
                "linger.ms": 0,
                "logger": LOG,
            }
        )

    def send(self, value: bytes) -> KafkaError | None:
        """Sends a value; returns the error of its delivery."""
        said: list[KafkaError | None] = []
        self._producer.produce(
            self._pool.topics.requests(Tier.LOW), value, partition=0, on_delivery=lambda error, _: said.append(error)
        )
        self._producer.flush(60)
        [error] = said
        return error


def large(request_id: str, content: str) -> bytes:
    return json.dumps(envelope(request_id, payload={"do": "answer", "content": content})).encode()


@pytest.mark.parametrize("codec", ["gzip", "zstd"])
def test_the_broker_refuses_a_record_that_is_too_large_when_it_is_unpacked(pool: LivePool, codec: str) -> None:
    """300 MiB of gzip went through a topic of 8 MiB, where the topic left compression to producers."""
    sender = Sender(pool, codec=codec)
    error = sender.send(large("large", "x" * (30 * MIB)))
    assert error is not None
    assert error.code() == KafkaError.MSG_SIZE_TOO_LARGE
    assert sender.send(large("small", "x" * (7 * MIB))) is None


def test_where_the_broker_takes_it_the_worker_refuses_it_and_keeps_what_it_can(
    pool: LivePool, new_worker: NewWorker, tmp_path: Path
) -> None:
    """Of itself a worker compresses nothing; this one is told to."""
    properties = tmp_path / "lz4.properties"
    properties.write_text("compression.type=lz4\n", encoding="utf-8")
    topic = pool.topics.requests(Tier.LOW)
    admin = pool.kafka.admin()
    entry = ConfigEntry("compression.type", "producer", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(30)
    kept = large("kept", "x" * (30 * MIB))
    # Base64 of noise: zstd makes three quarters of it, the worker's lz4 nothing.
    noise = base64.b64encode(random.Random(1).randbytes(7 * MIB)).decode()
    sender = Sender(pool, codec="zstd")
    # The controller has the setting; the partition's leader hears of it a moment later.
    wait_until("a broker that takes it", lambda: sender.send(kept) is None)
    assert sender.send(large("named", noise)) is None
    pool.submit(Tier.LOW, envelope("small", payload={"do": "answer"}))
    worker = new_worker(pool, handler=HANDLER, kafka_properties=properties)
    results = pool.results(["kept", "named", "small"])
    assert results["small"].status is Status.COMPLETED
    for name in ("kept", "named"):
        assert (results[name].status, results[name].reason) == (Status.REJECTED, "request_too_large")
        assert "bytes, uncompressed, where 8,388,608 are taken" in (results[name].error or "")
    by_size = sorted(pool.dead_letters(2), key=lambda letter: len(letter.value() or b""))
    assert {reason_of(letter) for letter in by_size} == {"request_too_large"}
    assert by_size[1].value() == kept
    assert by_size[0].value() is None
    assert f"the record itself is only at {topic}:0:1" in words_of(by_size[0])
    assert worker.get("/livez")[0] == 200
