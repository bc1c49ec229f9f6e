"""Framed Avro with a real Schema Registry: who registers, who fetches, and what happens while it is away."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import fastavro
import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from forebay_producer import Producer, ProducerSettings
from forebay_sandbox.kafka.local import free_port
from forebay_sandbox.testing.proxy import CUT, PASS, TcpProxy
from forebay_sandbox.testing.schema_registry import LocalRegistry
from forebay_schemas.contract.headers import record_headers
from forebay_schemas.contract.reasons import Status
from forebay_schemas.contract.tiers import TIERS, Tier
from forebay_schemas.formats.avro import AvroCodec, latest_schema
from forebay_schemas.formats.schema_registry import (
    SchemaRegistry,
    SchemaRegistryRefusedError,
    SchemaRegistryUnreachableError,
)
from harness.forebay_command import ForebayCommand
from harness.live_pool import LivePool, envelope
from harness.waiting import wait_until
from harness.workers import NewWorker

pytestmark = pytest.mark.long

HANDLER = "harness.handlers:obey"
FOREIGN = {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"}
UNKNOWN_ID = 4_000_001
ORDER = {"type": "record", "name": "Request", "fields": [{"name": "order", "type": "long"}]}


def answer(request_id: str, **fields: Any) -> dict[str, Any]:
    return envelope(request_id, payload={"do": "answer"}, **fields)


@contextmanager
def client_of(registry: LocalRegistry) -> Iterator[SchemaRegistryClient]:
    with SchemaRegistryClient({"url": registry.url, "timeout": 30}) as client:
        yield client


def producer_of(pool: LivePool, url: str) -> Producer:
    return Producer(
        settings=ProducerSettings(
            bootstrap_servers=pool.kafka.bootstrap_servers, pool=pool.name, codec="avro", schema_registry_url=url
        )
    )


def test_what_a_producer_registers_a_worker_fetches(
    pool: LivePool, registry: LocalRegistry, new_worker: NewWorker
) -> None:
    with producer_of(pool, registry.url) as producer:
        producer.submit(answer("one", priority=9, tenant="acme"))
        producer.submit_batch([answer(f"r-{number}", priority=number % 11) for number in range(20)])
    with client_of(registry) as client:
        assert {f"{pool.topics.requests(tier)}-value" for tier in TIERS} <= set(client.get_subjects())
    new_worker(pool, handler=HANDLER, schema_registry_url=registry.url)
    results = pool.results(["one", *(f"r-{number}" for number in range(20))])
    assert {result.status for result in results.values()} == {Status.COMPLETED}
    assert results["one"].body["tenant"] == "acme"
    [value] = [
        record.value() for record in pool.kafka.read_all(pool.topics.requests(Tier.HIGH)) if record.key() == b"one"
    ]
    assert value is not None
    assert value[:1] == b"\x00"


def test_a_foreign_producer_with_confluent_s_serializer_is_read_and_so_is_its_newer_schema(
    pool: LivePool, registry: LocalRegistry, new_worker: NewWorker
) -> None:
    newer = json.loads(latest_schema().text)
    newer["fields"].insert(1, {"name": "cost_centre", "type": ["null", "string"], "default": None})
    topic = pool.topics.requests(Tier.MID)
    with client_of(registry) as client:
        for number, text in enumerate((latest_schema().text, json.dumps(newer))):
            serialize = AvroSerializer(client, text)
            fields = {"request_id": f"f-{number}", "biz_type": "x", "payload": b'{"do": "answer"}', "ttl_ms": 60_000}
            value = serialize(fields | {"cost_centre": "c"}, SerializationContext(topic, MessageField.VALUE))
            pool.send(Tier.MID, value)
    new_worker(pool, handler=HANDLER, schema_registry_url=registry.url)
    results = pool.results(["f-0", "f-1"])
    assert {result.status for result in results.values()} == {Status.COMPLETED}


def test_schemas_that_refer_to_others_and_unions_are_read(
    pool: LivePool, registry: LocalRegistry, new_worker: NewWorker
) -> None:
    unit = {"type": "enum", "name": "Unit", "namespace": "com.acme", "symbols": ["A", "B"]}
    meta = {"type": "record", "name": "Meta", "namespace": "com.acme", "fields": [{"name": "unit", "type": "Unit"}]}
    ours = json.loads(latest_schema().text)
    refers = ours | {"fields": [*ours["fields"], {"name": "meta", "type": "com.acme.Meta"}]}
    fields = {"request_id": "refers", "biz_type": "x", "payload": b'{"do": "answer"}', "ttl_ms": 60_000}
    known: dict[str, Any] = {}
    for schema in (unit, meta):
        fastavro.parse_schema(schema, named_schemas=known)
    with client_of(registry) as client:
        for name, schema, needs in ((f"{pool.name}-unit", unit, []), (f"{pool.name}-meta", meta, ["unit"])):
            references = [SchemaReference(f"com.acme.{need.title()}", f"{pool.name}-{need}", 1) for need in needs]
            client.register_schema(name, Schema(json.dumps(schema), "AVRO", references))
        references = [SchemaReference("com.acme.Meta", f"{pool.name}-meta", 1)]
        refers_id = client.register_schema(f"{pool.name}-refers", Schema(json.dumps(refers), "AVRO", references))
        union_id = client.register_schema(f"{pool.name}-union", Schema(json.dumps(["null", ours]), "AVRO"))
    out = io.BytesIO()
    parsed = fastavro.parse_schema(refers, named_schemas=known)
    fastavro.schemaless_writer(out, parsed, fields | {"meta": {"unit": "B"}})
    pool.send(Tier.MID, b"\x00" + refers_id.to_bytes(4, "big") + out.getvalue())
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(["null", ours]), fields | {"request_id": "union"})
    pool.send(Tier.MID, b"\x00" + union_id.to_bytes(4, "big") + out.getvalue())
    new_worker(pool, handler=HANDLER, schema_registry_url=registry.url)
    results = pool.results(["refers", "union"])
    assert {result.status for result in results.values()} == {Status.COMPLETED}


def test_an_id_that_nobody_registered_and_bytes_that_do_not_fit_are_dead_letters(
    pool: LivePool, registry: LocalRegistry, new_worker: NewWorker
) -> None:
    with client_of(registry) as client:
        order_id = client.register_schema(f"{pool.name}-orders", Schema(json.dumps(ORDER), "AVRO"))
        text_id = client.register_schema(f"{pool.name}-text", Schema(json.dumps(FOREIGN), "JSON"))
    ours = SchemaRegistry(registry.url, properties=None)
    good = AvroCodec(schema_id=ours.id_of_latest(pool.topics.requests(Tier.LOW))).encode(answer("good"))
    ours.close()
    bad = [
        b"\x00" + UNKNOWN_ID.to_bytes(4, "big") + good[5:],
        b"\x00" + order_id.to_bytes(4, "big") + b"\x02",
        b"\x00" + text_id.to_bytes(4, "big") + b"{}",
        good[:-1],
    ]
    for value in bad:
        pool.send(Tier.LOW, value)
    pool.send(Tier.LOW, good)
    new_worker(pool, handler=HANDLER, schema_registry_url=registry.url)
    assert pool.result("good").status is Status.COMPLETED
    letters = pool.dead_letters(len(bad))
    assert sorted(letter.value() or b"" for letter in letters) == sorted(bad)
    assert {dict(record_headers(letter))["forebay-reason"] for letter in letters} == {b"undecodable"}
    said = b" ".join(dict(record_headers(letter))["kafka_dlt-exception-message"] or b"" for letter in letters).decode()
    assert f"schema {UNKNOWN_ID}, which its Schema Registry does not know" in said


def test_while_the_registry_is_away_requests_wait_and_none_is_lost(
    pool: LivePool, registry: LocalRegistry, new_worker: NewWorker
) -> None:
    address = urlsplit(registry.url)
    assert address.port is not None
    with TcpProxy(target_port=address.port) as link:
        url = f"http://127.0.0.1:{link.port}{address.path}"
        with producer_of(pool, url) as producer:
            producer.submit(answer("first", priority=5, ttl_ms=600_000))
            link.set(CUT)
            # The producer knows its ids, so it goes on; the worker knows none yet.
            producer.submit_batch([answer(f"w-{number}", priority=5, ttl_ms=600_000) for number in range(200)])
        pool.submit(Tier.HIGH, answer("json", priority=9, ttl_ms=600_000))
        worker = new_worker(pool, wait=False, handler=HANDLER, schema_registry_url=url)
        worker.wait_listening()
        assert pool.result("json").status is Status.COMPLETED
        wait_until("the worker says why it waits", lambda: "wait for their schema" in worker.get("/readyz")[1])
        assert pool.ended() == {"json"}
        assert pool.kafka.read_all(pool.topics.dead_letter) == []
        link.set(PASS)
        results = pool.results(["first", *(f"w-{number}" for number in range(200))])
        assert {result.status for result in results.values()} == {Status.COMPLETED}
        worker.wait_ready()


def test_a_producer_without_a_registry_sends_nothing_and_says_so(pool: LivePool) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with producer_of(pool, url) as producer:
        with pytest.raises(SchemaRegistryUnreachableError, match=f"no Schema Registry answered at {url} while looking"):
            producer.submit(answer("a"))
        with pytest.raises(SchemaRegistryUnreachableError):
            producer.submit_batch([answer("b")])
    forebay = ForebayCommand(
        bootstrap_servers=pool.kafka.bootstrap_servers,
        pool=pool.name,
        FOREBAY_CODEC="avro",
        FOREBAY_SCHEMA_REGISTRY_URL=url,
    )
    done = forebay.run("submit", "-", stdin=json.dumps(answer("c")).encode())
    assert (done.code, done.out) == (3, "")
    assert "check FOREBAY_SCHEMA_REGISTRY_URL" in done.err
    assert [pool.kafka.read_all(pool.topics.requests(tier)) for tier in TIERS] == [[], [], []]


def test_another_schema_under_the_subject_is_a_clear_refusal(pool: LivePool, registry: LocalRegistry) -> None:
    subject = f"{pool.topics.requests(Tier.HIGH)}-value"
    with client_of(registry) as client:
        client.register_schema(subject, Schema(json.dumps(ORDER), "AVRO"))
        client.set_compatibility(subject, "BACKWARD")
    with (
        producer_of(pool, registry.url) as producer,
        pytest.raises(
            SchemaRegistryRefusedError, match=rf"registering the envelope's schema under {subject}: HTTP 409"
        ),
    ):
        producer.submit(answer("a", priority=9))


@pytest.mark.parametrize("level", ["BACKWARD_TRANSITIVE", "FORWARD_TRANSITIVE", "FULL_TRANSITIVE"])
def test_a_registry_holds_a_field_with_a_default_for_compatible_both_ways(registry: LocalRegistry, level: str) -> None:
    subject = f"evolution-{level}-{free_port()}"
    newer, broken = json.loads(latest_schema().text), json.loads(latest_schema().text)
    newer["fields"].append({"name": "cost_centre", "type": ["null", "string"], "default": None})
    broken["fields"][0] = {"name": "request_id", "type": "long"}
    with client_of(registry) as client:
        client.register_schema(subject, Schema(latest_schema().text, "AVRO"))
        client.set_compatibility(subject, level)
        assert client.register_schema(subject, Schema(json.dumps(newer), "AVRO")) > 0
        assert not client.test_compatibility(subject, Schema(json.dumps(broken), "AVRO"))


def test_the_check_makes_a_real_call_and_says_what_is_wrong(registry: LocalRegistry) -> None:
    found = SchemaRegistry(registry.url, properties=None)
    assert found.check().startswith(f"{registry.url} answers")
    found.close()
    wrong = SchemaRegistry(registry.url.removesuffix("/v7"), properties=None)
    with pytest.raises(SchemaRegistryRefusedError, match="it may need a path, /apis/ccompat/v7"):
        wrong.check()
    wrong.close()
